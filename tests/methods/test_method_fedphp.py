"""FedPHP (Li et al. 2021; MAP eqs. 10-13): the inherited private model and what it teaches."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from riding import Ride, spoiling

import by_hand
from polyfed.message import Memory
from polyfed.methods.fedphp import FedPHP
from polyfed.parts.distil import kl, mmd, soft_cross_entropy
from polyfed.parts.losses import cross_entropy
from polyfed.parts.resident import Batch, Frozen

Riding = Callable[..., Ride]


def remembering(home, times: int = 1, value: float = 0.2, **keys: Any):
    """A client that inherited a model."""
    hpm = by_hand.as_params(home, home.initial.flat + value)
    hpm.integers.fill_(50)
    return by_hand.client(home, by_hand.some(9), memory=Memory(hpm=hpm, times=times), **keys), hpm


# ---- momentum


@pytest.mark.parametrize(
    ("times", "participation", "rounds", "expected"),
    [
        (0, 0.2, 150, 0.0),
        (1, 0.2, 150, 0.9 * 1 / 30),
        (30, 0.2, 150, 0.9),
        (45, 0.2, 150, 0.9),  # capped: it never freezes
        (1, 0.1, 5, 0.9),  # int(Q T) = 0 counts as 1
        (2, 0.5, 9, 0.9 * 2 / 4),
    ],
)
def test_the_momentum_by_hand(times: int, participation: float, rounds: int, expected: float) -> None:
    """mu_k = min(max(mu z / max(int(Q T), 1), 0), 0.9), z the selections before this one (below MAP eq. 10)."""
    home = by_hand.resident()
    client, _ = remembering(home, times, participation=participation, rounds=rounds)
    assert FedPHP().mu_k(client) == pytest.approx(expected)


def test_the_momentum_never_falls_and_never_passes_its_cap() -> None:
    home = by_hand.resident()
    for mu, cap in ((0.9, 0.9), (1.0, 0.9), (1.0, 1.0), (0.0, 0.9)):
        method = FedPHP(mu=mu, mu_cap=cap)
        found = [method.mu_k(remembering(home, z, participation=0.3, rounds=20)[0]) for z in range(25)]
        assert found == sorted(found)
        assert found[0] == 0
        assert max(found) <= cap


# ---- inheriting


def test_the_inherited_model_is_a_moving_average() -> None:
    """MAP eq. 10: psi_p <- (1 - mu_k) psi + mu_k psi_p, buffers too; integers are the new model's; z grows."""
    home = by_hand.resident(bn=True)
    client, hpm = remembering(home, times=2, participation=0.5, rounds=8)  # mu_k = 0.9 * 2 / 4
    home.params.integers.fill_(7)
    now = home.params.copy()
    FedPHP().inherit(client)
    torch.testing.assert_close(client.memory.hpm.flat, 0.55 * now.flat + 0.45 * hpm.flat)
    assert client.memory.hpm.integers.tolist() == [7, 7]
    assert client.memory.times == 3


def test_at_the_first_selection_it_is_the_personal_model(ride: Riding) -> None:
    """Without an inherited model there is nothing to mix."""
    run = ride("fedphp", data="skewed", model="mlp-bn", rounds=3)
    for k in range(4):
        one = run.train(1, k)
        assert torch.equal(one.memory().hpm.flat, one.live)
        assert torch.equal(one.up.w, one.live)  # the trained model is what is sent
        assert one.memory().times == 1


def test_on_the_way_it_stays_a_convex_combination(ride: Riding) -> None:
    """So no variance ever falls below the smaller of its parents', let alone below zero."""
    run = ride("fedphp", data="skewed", model="mlp-bn", rounds=3)
    variances = [e for e in run.layout.floats if e.name.endswith("running_var")]
    assert len(variances) == 2
    for k in range(4):
        for round in (2, 3):
            seen = run.train(round, k)
            old, new, live = seen.memory(after=False).hpm.flat, seen.memory().hpm.flat, seen.live
            mu = 0.9 * (round - 1) / 3
            torch.testing.assert_close(new, (1 - mu) * live + mu * old, rtol=1e-4, atol=1e-6)
            for entry in variances:
                assert (entry.view(new) > 0).all()


# ---- teaching


def batch_of(client) -> Batch:
    x, y = client.data.take(torch.arange(client.n))
    return Batch(client.model, x, y, torch.arange(client.n), client.data)


@pytest.mark.parametrize(
    ("keys", "transfer"),
    [
        ({}, lambda t, s, ft, fs: kl(t, s, 4.0)),  # eq. 11
        ({"kd_temp": 2.0}, lambda t, s, ft, fs: kl(t, s, 2.0)),
        ({"kd": "official"}, lambda t, s, ft, fs: soft_cross_entropy(t, s, 4.0)),
        ({"kt": "mmd"}, lambda t, s, ft, fs: mmd(fs, ft)),  # eq. 12
    ],
    ids=["kd", "kd at 2", "kd as released", "mmd"],
)
@pytest.mark.parametrize("lam", [0.0, 0.3, 1.0])
def test_the_loss_is_a_mixture(keys: dict[str, Any], transfer: Callable[..., Any], lam: float) -> None:
    """MAP eq. 13: (1 - lambda) CE + lambda L_kt against the inherited model in eval mode."""
    home = by_hand.resident(bn=True)
    client, hpm = remembering(home)
    batch = batch_of(client)
    teacher = home.frozen(hpm, augmented=False).model
    with torch.no_grad():
        expected = (1 - lam) * F.cross_entropy(batch.logits, batch.y) + lam * transfer(
            teacher(batch.x), batch.logits, teacher.features(batch.x), batch.features
        )
        found = FedPHP(lam=lam, **keys).teach(client)(batch)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_teacher_that_says_the_same_changes_nothing() -> None:
    """KD at student == teacher is 0, so only (1 - lambda) CE is left."""
    home = by_hand.resident()
    client, _ = remembering(home, value=0.0)
    batch = batch_of(client)
    for kt in ("kd", "mmd"):
        loss = FedPHP(lam=0.3, kt=kt).teach(client)(batch)
        torch.testing.assert_close(loss.detach(), 0.7 * cross_entropy(batch).detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("keys", [{"kt": "none"}, {}], ids=["no transfer", "nothing inherited"])
def test_without_a_teacher_it_is_plain_cross_entropy(keys: dict[str, Any]) -> None:
    """The first time lambda is 0: the whole loss, not (1 - lambda) of it."""
    home = by_hand.resident()
    client = remembering(home)[0] if keys else by_hand.client(home, by_hand.some(9))
    assert FedPHP(lam=0.5, **keys).teach(client) is cross_entropy


def test_the_teachers_answers_are_computed_once_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    home = by_hand.resident()
    client, _ = remembering(home, train={"batch": 3, "epochs": 4})
    rows: list[int] = []
    real = Frozen._run
    monkeypatch.setattr(Frozen, "_run", lambda self, what, x, cut: rows.append(len(x)) or real(self, what, x, cut))
    FedPHP().train(client)
    assert client.steps == 12
    assert rows == [9]


# ---- one stage


def test_all_steps_learn_from_the_inherited_model() -> None:
    home = by_hand.resident()
    train = {"batch": 3, "lr": 0.1, "min_steps": 5}
    client, _ = remembering(home, train=train)
    method = FedPHP(lam=0.5)
    client.fit(method.teach(client), steps=5)
    expected = home.params.flat.clone()
    client, _ = remembering(home, train=train)
    upload = FedPHP(lam=0.5).train(client)
    assert torch.equal(upload.w, expected)
    assert client.steps == 5


def test_the_global_model_moves_and_the_inherited_one_answers(ride: Riding) -> None:
    run = ride("fedphp", data="skewed", rounds=3)
    assert not torch.equal(run.params.flat, run.initial.flat)
    for k in range(4):
        flat = torch.cat([p.detach().flatten() for p in run.result.client(k).model.parameters()])
        assert torch.equal(flat, run.train(3, k).memory().hpm.flat)


def test_a_client_that_was_never_selected_gets_the_global_model(ride: Riding) -> None:
    run = ride("fedphp", data="skewed", rounds=2, **{"split.heldout": 1})
    (out,) = run.world.federation.heldout
    flat = torch.cat([p.detach().flatten() for p in run.result.client(out).model.parameters()])
    assert torch.equal(flat, run.params.flat)


def test_a_rejected_upload_leaves_model_and_counter_as_before(ride: Riding) -> None:
    run = ride(spoiling(FedPHP), data="skewed", rounds=3)
    assert run.result["rejected"] == {"nonfinite": 1}
    one, two, three = (run.train(r, 1) for r in (1, 2, 3))
    assert three.before == one.after != two.after
    assert (two.memory().times, three.memory(after=False).times, three.memory().times) == (2, 1, 2)
