"""ECL (its eqs. 3-6, algorithm 1): phase two on every client, whatever phase one was."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from riding import HOLDS, Ride
from torch import Tensor, nn

import by_hand
from polyfed.methods.ecl import ECL, last_block
from polyfed.methods.sites import Client
from polyfed.models.base import Net, models
from polyfed.params import Layout, Params, body, head, last, trunk
from polyfed.parts.experts import frequency_groups
from polyfed.parts.fit import balanced, shuffled

Riding = Callable[..., Ride]
LABELS = [0] * 9 + [1] * 5 + [2] * 2
TRAIN = {"batch": 16, "momentum": 0.9, "weight_decay": 0.01}


class Fits:
    """What every fit of phase two was asked for, and what it made of the model."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.calls: list[dict[str, Any]] = []
        real = Client.fit

        def fit(client: Client, loss: Any, on: Any = None, **options: Any) -> int:
            first: list[Tensor] = []
            before = client.live.copy()
            taken = real(client, lambda b: first.append(loss(b)) or first[-1], on, **options)
            seen = {"before": before, "after": client.live.copy(), "on": on, "loss": first[0].detach()}
            self.calls.append({**options, **seen})
            return taken

        monkeypatch.setattr(Client, "fit", fit)


def finished(home, labels=LABELS, train: dict[str, Any] | None = None, **keys: Any) -> tuple[ECL, Client]:
    method = ECL(**{"phase2_epochs": 3, **keys})
    client = by_hand.client(home, by_hand.some(labels=labels), train=train or TRAIN, round=4, rounds=3)
    method.finish(client)
    return method, client


def answers(method: ECL, client: Client, x: Tensor) -> Tensor:
    """The client's predictor as it is evaluated: with the global model loaded again."""
    client.load(client.received.w)
    with torch.no_grad():
        return method.predictor(client)(x)


def expert_params(client: Client, m: int) -> Params:
    made = client.received.w.copy()
    made.put(head | last, client.memory[f"expert_{m}"])
    return made


def branch_params(client: Client) -> Params:
    made = client.received.w.copy()
    made.put(head, client.memory.branch)
    return made


def head_of(params: Params) -> Tensor:
    entry = next(e for e in params.layout.floats if e.name == "head.weight")
    return entry.view(params.flat)


# ---- the fits of phase two


def test_the_global_branch_retrains_only_the_head_with_balanced_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eq. 3: - log(n_y exp z_y / sum_j n_j exp z_j), on cached features, from the current head."""
    fits = Fits(monkeypatch)
    home = by_hand.resident(bn=True)
    _, client = finished(home)
    call = fits.calls[0]
    assert call["before"].digest() == home.initial.digest()
    assert torch.equal(call["after"].get(body)[0], home.initial.get(body)[0])
    assert torch.equal(client.memory.branch, call["after"].get(head)[0])
    assert not torch.equal(client.memory.branch, home.initial.get(head)[0])
    with torch.no_grad():
        z = home.frozen(home.initial, False).model(client.data.pool.x)
    n = torch.tensor([9.0, 5.0, 2.0])
    p = n * z.exp() / (n * z.exp()).sum(1, keepdim=True)
    expected = -p[torch.arange(16), client.data.y].log().mean()
    torch.testing.assert_close(call["loss"], expected, rtol=1e-4, atol=1e-5)
    assert call["on"].cut == "head"


def test_experts_train_on_their_own_classes_and_the_tail_only_its_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eq. 4: plain cross-entropy over all C outputs on the group's samples."""
    fits = Fits(monkeypatch)
    home = by_hand.resident(bn=True)
    _, client = finished(home, experts=2)
    _, front, tail = fits.calls
    assert frequency_groups(client.counts, 2) == [[0, 1], [2]]
    assert sorted(set(front["on"].y.tolist())) == [0, 1]
    assert set(tail["on"].y.tolist()) == {2}
    assert (front["on"].cut, tail["on"].cut) == ("last", "head")
    assert (front["batches"], tail["batches"]) == (shuffled, balanced)
    for call in (front, tail):
        assert torch.equal(call["after"].get(trunk)[0], home.initial.get(trunk)[0])
        assert torch.equal(call["before"].get(body)[0], home.initial.get(body)[0])  # each starts from w^T's body
        assert not torch.equal(call["before"].get(head)[0], home.initial.get(head)[0])  # and from a fresh head
    assert not torch.equal(front["after"].get(last)[0], home.initial.get(last)[0])
    assert torch.equal(tail["after"].get(last)[0], home.initial.get(last)[0])
    logits = home.frozen(tail["before"], False).model(client.data.pool.x[client.data.y == 2])
    each = [float(F.cross_entropy(logits[list(drawn)], torch.tensor([2, 2]))) for drawn in ((0, 0), (0, 1), (1, 1))]
    assert float(tail["loss"]) in [pytest.approx(one, rel=1e-4) for one in each]  # two draws with replacement


def test_the_tail_experts_body_is_the_global_one_bit_for_bit(ride: Riding) -> None:
    """Weight decay would show that anything more is trained."""
    run = ride("ecl", data="skewed", model="mlp-bn", rounds=2, **{"train.weight_decay": 0.01})
    for seen in run.of("finish"):
        memory = seen.memory()
        groups = frequency_groups(run.world.federation.clients[seen.client].counts, 2)
        sent = run.down_whole(seen)
        for m in range(len(groups)):
            expert = sent.copy()
            expert.put(head | last, memory[f"expert_{m}"])
            same = torch.equal(expert.get(body)[0], sent.get(body)[0])
            assert same == (m == len(groups) - 1)


def test_groups_follow_the_counts_of_each_client(ride: Riding) -> None:
    run = ride("ecl", data="skewed", rounds=2)
    for seen in run.of("finish"):
        counts = run.world.federation.clients[seen.client].counts
        groups = frequency_groups(counts, 2)
        assert sorted(c for g in groups for c in g) == sorted(HOLDS[seen.client])
        assert max(map(len, groups)) - min(map(len, groups)) <= 1
        flat = [int(counts[c]) for g in groups for c in g]
        assert flat == sorted(flat, reverse=True)
        assert {n for n in seen.memory() if n.startswith("expert")} == {f"expert_{m}" for m in range(len(groups))}


@pytest.mark.parametrize("experts", [1, 2, 3, 7])
def test_any_number_of_experts(experts: int) -> None:
    method, client = finished(by_hand.resident(), experts=experts)
    assert sum(name.startswith("expert") for name in client.memory) == min(experts, 3)
    out = answers(method, client, client.data.pool.x)
    assert torch.isfinite(out).all()


def test_phase_two_has_its_own_epochs_and_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    fits = Fits(monkeypatch)
    finished(by_hand.resident(), train={"batch": 4, "lr": 9.0}, phase2_epochs=2, phase2_lr=0.02)
    assert [call["lr"] for call in fits.calls] == [0.02] * 3
    assert [call["epochs"] for call in fits.calls] == [2] * 3


def test_norms_are_fixed_in_phase_two_unless_asked_for() -> None:
    home = by_hand.resident(bn=True)
    for mode, moves in (("eval", False), ("train", True)):
        _, client = finished(home, phase2_bn=mode)
        expert = expert_params(client, 0)
        stats = [e for e in home.layout.floats if e.kind == "buffer"]
        assert any(not torch.equal(e.view(expert.flat), e.view(home.initial.flat)) for e in stats) == moves


@pytest.mark.parametrize("init", ["fresh", "global"])
def test_where_an_experts_head_begins(monkeypatch: pytest.MonkeyPatch, init: str) -> None:
    fits = Fits(monkeypatch)
    home = by_hand.resident()
    finished(home, expert_head_init=init)
    heads = [call["before"].get(head)[0] for call in fits.calls[1:]]
    assert [torch.equal(h, home.initial.get(head)[0]) for h in heads] == [init == "global"] * 2
    if init == "fresh":
        assert not torch.equal(*heads)  # each expert its own


def test_the_tail_can_be_sampled_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    fits = Fits(monkeypatch)
    finished(by_hand.resident(), tail_balanced=False)
    assert fits.calls[2]["batches"] is shuffled


# ---- classes the client does not hold


def test_the_balanced_softmax_of_the_branch_never_counts_an_absent_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eq. 3 with n_3 = 0: the class leaves the softmax, and its row of the head never moves."""
    fits = Fits(monkeypatch)
    home = by_hand.resident(classes=4)
    client = by_hand.client(home, by_hand.some(labels=LABELS), classes=4, train={"batch": 16})
    ECL(phase2_epochs=5, phase2_lr=0.5).finish(client)
    with torch.no_grad():
        z = home.frozen(home.initial, False).model(client.data.pool.x)[:, :3]
    top = torch.tensor([9.0, 5.0, 2.0]) * z.exp()
    expected = -(top / top.sum(1, keepdim=True))[torch.arange(16), client.data.y].log().mean()
    torch.testing.assert_close(fits.calls[0]["loss"], expected, rtol=1e-4, atol=1e-5)
    moved = (head_of(branch_params(client)) - head_of(home.initial)).abs().amax(1)
    assert (moved > 0).tolist() == [True, True, True, False]


def test_the_row_of_an_absent_class_stays_as_it_was_bit_for_bit() -> None:
    """The same in closed form, where nobody looks at the loss."""
    home = by_hand.resident(classes=4)
    client = by_hand.client(home, by_hand.some(labels=LABELS), classes=4, train={"batch": 16})
    ECL(phase2_epochs=5, phase2_lr=0.5).finish(client)
    before, after = head_of(home.initial), head_of(branch_params(client))
    assert [torch.equal(before[c], after[c]) for c in range(4)] == [False, False, False, True]


def test_no_expert_is_made_for_an_absent_class() -> None:
    home = by_hand.resident(classes=4)
    client = by_hand.client(home, by_hand.some(labels=[0] * 9 + [3] * 2), classes=4, train=TRAIN)
    ECL(experts=3, phase2_epochs=1).finish(client)
    assert sorted(client.memory) == ["branch", "expert_0", "expert_1"]
    assert frequency_groups(client.counts, 3) == [[0], [3]]


# ---- scales, eq. 5


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        ("ecl", [14 / 4] * 2),  # |U_m|^2 / |U_0|^2 over the whole matrix
        ("none", [1.0, 1.0]),
        ("per_class", [5 / 1, 9 / 3]),
        ("inverse", [4 / 14] * 2),
    ],
)
def test_the_scale_forms_by_hand(scale: str, expected: list[float]) -> None:
    expert = torch.tensor([[1.0, 2.0], [3.0, 0.0]])
    branch = torch.tensor([[1.0, 0.0], [1.0, 2.0**0.5]])
    assert ECL(scale=scale).factor(expert, branch).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("scale", ["ecl", "none", "per_class", "inverse"])
def test_a_branch_without_weights_has_scale_1(scale: str) -> None:
    assert ECL(scale=scale).factor(torch.ones(2, 3), torch.zeros(2, 3)).tolist() == [1.0, 1.0]


# ---- the answer, eq. 6


@pytest.mark.parametrize("absent", ["mask", "global"])
@pytest.mark.parametrize("scale", ["ecl", "none", "per_class"])
@pytest.mark.parametrize("lam", [0.0, 0.5, 1.0])
def test_the_answer_is_equation_6_on_equation_5(lam: float, scale: str, absent: str) -> None:
    home = by_hand.resident(bn=True, classes=4)
    method = ECL(phase2_epochs=3, lam=lam, scale=scale, absent=absent)
    data = by_hand.some(labels=LABELS)  # class 3 is absent
    client = by_hand.client(home, data, classes=4, train=TRAIN)
    method.finish(client)
    x = data.pool.x
    found = answers(method, client, x)
    u_0 = branch_params(client)
    with torch.no_grad():
        z_0 = home.frozen(u_0, False).model(x)
        expected = torch.full_like(z_0, float("-inf")) if absent == "mask" else z_0.clone()
        for m, group in enumerate(([0, 1], [2])):
            params = expert_params(client, m)
            z_m = home.frozen(params, False).model(x)
            for c in group:
                u, v = head_of(params), head_of(u_0)
                s = {"ecl": u.square().sum() / v.square().sum(), "none": 1.0}.get(
                    scale, u[c].square().sum() / v[c].square().sum()
                )
                expected[:, c] = lam * s * z_m[:, c] + (1 - lam) * z_0[:, c]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert torch.isneginf(found[:, 3]).all() == (absent == "mask")


def test_lambda_0_answers_like_the_global_branch_bit_for_bit() -> None:
    method, client = finished(by_hand.resident(), lam=0.0)
    x = client.data.pool.x
    found = answers(method, client, x)
    with torch.no_grad():
        assert torch.equal(found, client.frozen(branch_params(client)).model(x))


def test_lambda_1_answers_like_the_experts_bit_for_bit() -> None:
    method, client = finished(by_hand.resident(), lam=1.0, scale="none")
    x = client.data.pool.x
    found = answers(method, client, x)
    with torch.no_grad():
        for m, group in enumerate(([0, 1], [2])):
            assert torch.equal(found[:, group], client.frozen(expert_params(client, m)).model(x)[:, group])


def test_before_the_end_the_global_model_answers(ride: Riding) -> None:
    run = ride("ecl", data="skewed", rounds=2)
    assert run.result["personal_before"] == run.result["global_local"]
    assert run.result["personal"] != run.result["personal_before"]


# ---- degenerate


@pytest.mark.parametrize("absent", ["mask", "global"])
def test_a_client_of_one_class(absent: str) -> None:
    """One group, trained by the tail's rule; masked, the answer is that class."""
    home = by_hand.resident()
    method, client = finished(home, labels=[1, 1, 1, 1], absent=absent)
    assert set(client.memory) == {"branch", "expert_0"}
    assert torch.equal(expert_params(client, 0).get(body)[0], home.initial.get(body)[0])
    out = answers(method, client, torch.randn(20, by_hand.INTO))
    if absent == "mask":
        assert set(out.argmax(1).tolist()) == {1}
    else:
        assert torch.isfinite(out).all()


def test_a_client_of_one_sample() -> None:
    method, client = finished(by_hand.resident(bn=True), labels=[2])
    assert torch.isfinite(answers(method, client, client.data.pool.x)[:, 2]).all()


# ---- what of the body is trained


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mlp", {"last.fc2"}),
        ("mlp-bn", {"last.fc2", "last.norm2"}),
        ("cnn5", {"last.fc4"}),
        ("conv4", {"last.conv4", "last.norm4"}),
        ("resnet20", {"last.stage3.2." + part for part in ("conv1", "norm1", "conv2", "norm2")}),
    ],
)
def test_the_last_block_of_the_zoo(name: str, expected: set[str]) -> None:
    """One residual block; else the last layer with its norm, never a norm alone."""
    net = models.build({"name": name, "width": 0.1}, "model").build((3, 32, 32), 10)
    layout = Layout(net)
    block = last_block(layout)
    assert {e.name.rpartition(".")[0] for e in layout.floats if block.test(e)} == expected
    assert layout.length(block) <= layout.length(last)


def test_a_model_without_a_last_stage_trains_heads_only() -> None:
    def make() -> Net:
        return Net(nn.Sequential(nn.Linear(by_hand.INTO, 5), nn.ReLU()), nn.Identity(), nn.Linear(5, by_hand.CLASSES))

    for trainable in ("last_stage", "last_block"):
        home = by_hand.resident(make=make)
        method, client = finished(home, expert_trainable=trainable)
        assert torch.isfinite(answers(method, client, client.data.pool.x)).all()
        assert torch.equal(expert_params(client, 0).get(body)[0], home.initial.get(body)[0])


def test_only_the_last_block_moves_if_asked() -> None:
    def make() -> Net:
        two = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 5))
        return Net(nn.Sequential(nn.Linear(by_hand.INTO, 6), nn.ReLU()), two, nn.Linear(5, by_hand.CLASSES))

    for trainable, moved in (("last_stage", {"last.0", "last.2"}), ("last_block", {"last.2"})):
        home = by_hand.resident(make=make)
        _, client = finished(home, expert_trainable=trainable)
        expert = expert_params(client, 0)
        changed = {
            e.name.rpartition(".")[0]
            for e in home.layout.floats
            if not torch.equal(e.view(expert.flat), e.view(home.initial.flat))
        }
        assert changed - {"head"} == moved


# ---- on other methods


@pytest.mark.parametrize("base", [{"name": "fedprox", "mu": 0.1}, {"name": "scaffold"}, {"name": "fedrs"}], ids=str)
def test_ecl_stands_on_other_methods(ride: Riding, base: dict[str, Any]) -> None:
    """ECL's table 4: phase one is the base, untouched; phase two costs one model each and sends nothing."""
    run = ride({"name": "ecl", "phase2_epochs": 1, "base": base}, data="skewed", rounds=2)
    alone = ride(base, data="skewed", rounds=2)
    assert torch.equal(run.params.flat, alone.params.flat)
    for one, other in zip(run.of("train"), alone.of("train"), strict=True):
        assert torch.equal(one.up.w, other.up.w)
        assert one.after == other.after
    assert all("branch" in seen.memory() for seen in run.of("finish"))
    assert run.result["personal"] is not None


def test_masked_recall_is_never_below_the_unmasked(ride: Riding) -> None:
    """PA_cls_mask >= PA_cls, for every method."""
    for name in ("ecl", "fedavg", "map"):
        found = ride(name, data="skewed", rounds=2).result["personal_classes"]
        assert found["masked"]["accuracy"] >= found["accuracy"] - 1e-9
    tables = ride("ecl", data="skewed", rounds=2).result.counts()
    plain, masked = tables["final_classes"], tables["final_classes_masked"]
    assert plain.shape == masked.shape == (4, 5, 5)
    for k in range(4):  # a masked expert never answers with a class its client does not hold
        absent = sorted(set(range(5)) - set(HOLDS[k]))
        assert not np.any(masked[k][:, absent])
        assert not np.any(plain[k][:, absent])
