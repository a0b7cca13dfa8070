"""FedCRC (its eqs. 3-9): body under a fixed global head, a personal head, a global head taught by it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from riding import Ride, spoiling
from torch import Tensor

import by_hand
from polyfed.message import Memory
from polyfed.methods.base import part_message
from polyfed.methods.fedcrc import FedCRC
from polyfed.methods.sites import Client
from polyfed.params import body, everything, head

Riding = Callable[..., Ride]
TRAIN = {"lr": 0.3, "batch": 12}


class Stages:
    """What each fit of a client began and ended with, and its loss at the first batch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.before: list[Tensor] = []
        self.after: list[Tensor] = []
        self.losses: list[Tensor] = []
        self.on: list[Any] = []
        real = Client.fit

        def fit(client: Client, loss: Any, on: Any = None, **options: Any) -> int:
            first: list[Tensor] = []
            self.before.append(client.live.flat.clone())
            self.on.append(on)
            taken = real(client, lambda b: first.append(loss(b)) or first[-1], on, **options)
            self.losses.append(first[0].detach())
            self.after.append(client.live.flat.clone())
            return taken

        monkeypatch.setattr(Client, "fit", fit)


def parts(home, flat: Tensor) -> tuple[Tensor, Tensor]:
    params = by_hand.as_params(home, flat)
    return params.get(body)[0], params.get(head)[0]


@pytest.mark.parametrize("bn", [False, True])
def test_each_stage_leaves_what_is_frozen_bit_for_bit(monkeypatch: pytest.MonkeyPatch, bn: bool) -> None:
    """Stage 1 leaves h_g; 2 leaves f (and h_g, which is put aside); 3 leaves f and h_i."""
    home, data = by_hand.resident(bn=bn), by_hand.some(12)
    h_i = home.initial.get(head)[0] + 0.5
    client = by_hand.client(home, data, memory=Memory(personal_head=h_i.clone()), train=TRAIN)
    stages = Stages(monkeypatch)
    upload = FedCRC().train(client)
    (f0, h0), (f1, h1) = parts(home, stages.before[0]), parts(home, stages.after[0])
    assert torch.equal(h0, h1)
    assert not torch.equal(f0, f1)
    (f2, start), (f3, trained) = parts(home, stages.before[1]), parts(home, stages.after[1])
    assert torch.equal(f1, f2)
    assert torch.equal(f2, f3)
    assert torch.equal(start, h_i)  # stage 2 goes on from its own head
    assert not torch.equal(start, trained)
    (f4, g_start), (f5, g_end) = parts(home, stages.before[2]), parts(home, stages.after[2])
    assert torch.equal(f3, f4)
    assert torch.equal(f4, f5)
    assert torch.equal(g_start, h0)  # stage 3 begins with the received h_g
    assert not torch.equal(g_start, g_end)
    assert torch.equal(client.memory.personal_head, trained)
    assert torch.equal(upload.w, stages.after[2])  # f and h_gi; never h_i
    assert stages.on[1] is stages.on[2] is not None  # cached features of the frozen body


def test_the_losses_are_equations_4_5_and_7(monkeypatch: pytest.MonkeyPatch) -> None:
    home, data = by_hand.resident(), by_hand.some(12)
    client = by_hand.client(home, data, memory=Memory(personal_head=home.initial.get(head)[0] * -4), train=TRAIN)
    stages = Stages(monkeypatch)
    FedCRC(kl_weight=0.7).train(client)

    def logits(flat: Tensor) -> Tensor:
        with torch.no_grad():
            return home.frozen(by_hand.as_params(home, flat), False).model(data.pool.x)

    first = F.cross_entropy(logits(stages.before[0]), data.y)
    torch.testing.assert_close(stages.losses[0], first)  # eq. 4: L_i(f_g, h_g)
    second = F.cross_entropy(logits(stages.before[1]), data.y)
    torch.testing.assert_close(stages.losses[1], second)  # eq. 5: L_i(f, h_i)
    p_i, z_g = logits(stages.after[1]).softmax(1), logits(stages.before[2])
    divergence = (p_i * (p_i.log() - z_g.log_softmax(1))).sum(1).mean()  # eq. 6: the global imitates the local
    third = F.cross_entropy(z_g, data.y) + 0.7 * divergence
    torch.testing.assert_close(stages.losses[2], third, rtol=1e-4, atol=1e-5)


def test_the_first_personal_head_begins_with_the_global_one(monkeypatch: pytest.MonkeyPatch) -> None:
    home = by_hand.resident()
    client = by_hand.client(home, by_hand.some(12), train=TRAIN)
    stages = Stages(monkeypatch)
    FedCRC().train(client)
    assert torch.equal(parts(home, stages.before[1])[1], home.initial.get(head)[0])


def test_without_teaching_the_third_stage_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    home, data = by_hand.resident(), by_hand.some(12)
    client = by_hand.client(home, data, train=TRAIN)
    stages = Stages(monkeypatch)
    FedCRC(kl_weight=0.0).train(client)
    torch.testing.assert_close(stages.losses[1], stages.losses[2])  # both begin at (f, h_g)


@pytest.mark.parametrize(("keys", "steps"), [({}, 2 + 2 + 2), ({"epochs": (1, 3, 5)}, 1 + 3 + 5)])
def test_the_epochs_of_the_stages(keys: dict[str, Any], steps: int) -> None:
    client = by_hand.client(by_hand.resident(), by_hand.some(12), train={**TRAIN, "epochs": 2})
    FedCRC(**keys).train(client)
    assert client.steps == steps


def test_a_body_without_weights_skips_the_first_stage() -> None:
    """A linear model has no body: stage 1 is skipped."""
    from torch import nn

    from polyfed.models.base import Net

    home = by_hand.resident(make=lambda: Net(nn.Flatten(), nn.Identity(), nn.Linear(by_hand.INTO, by_hand.CLASSES)))
    client = by_hand.client(home, by_hand.some(12), train=TRAIN)
    upload = FedCRC().train(client)
    assert client.steps == 2
    assert not torch.equal(upload.w, home.initial.flat)


# ---- the server


@pytest.mark.parametrize("tau", [0.0, 0.5, 0.99, 1.0])
def test_the_head_is_a_moving_average_and_the_body_a_plain_one(tau: float) -> None:
    """Eq. 3 for f_g; eqs. 8-9 for h_g: tau h_g + (1 - tau) sum n_i / N h_gi."""
    home = by_hand.resident(bn=True)
    method = FedCRC(tau=tau)
    server = by_hand.server(home, [1, 3], method)
    server.shared = by_hand.as_params(home, 10.0)
    sent = [part_message("w", *by_hand.as_params(home, v).get(everything)) for v in (2.0, 6.0)]
    method.merge(server, by_hand.uploads(*sent, sizes=[1, 3]))
    assert set(server.shared.get(body)[0].tolist()) == {5.0}
    expected = tau * 10 + (1 - tau) * 5
    assert server.shared.get(head)[0].tolist() == pytest.approx([expected] * 18)
    if tau == 1:
        assert set(server.shared.get(head)[0].tolist()) == {10.0}


def test_tau_1_keeps_the_head_for_the_whole_run(ride: Riding) -> None:
    run = ride({"name": "fedcrc", "tau": 1.0}, data="skewed", rounds=3)
    first = run.initial.get(head)[0]
    assert torch.equal(run.params.get(head)[0], first)
    assert not torch.equal(run.params.get(body)[0], run.initial.get(body)[0])
    moved = ride("fedcrc", data="skewed", rounds=3)
    assert not torch.equal(moved.params.get(head)[0], first)


# ---- who answers


def test_the_personal_head_answers_on_the_latest_global_body(ride: Riding) -> None:
    run = ride("fedcrc", data="skewed", rounds=3)
    for k in range(4):
        expected = run.params.copy()
        expected.put(head, run.train(3, k).memory().personal_head)
        flat = torch.cat([p.detach().flatten() for p in run.result.client(k).model.parameters()])
        assert torch.equal(flat, expected.flat)
    whole = torch.cat([p.detach().flatten() for p in run.result.global_model().model.parameters()])
    assert torch.equal(whole, run.params.flat)
    assert run.result["global"] is not None


def test_or_on_the_body_it_was_trained_on(ride: Riding) -> None:
    run = ride({"name": "fedcrc", "per_body": "local"}, data="skewed", rounds=2)
    for k in range(4):
        memory = run.train(2, k).memory()
        flat = torch.cat([p.detach().flatten() for p in run.result.client(k).model.parameters()])
        assert torch.equal(flat, torch.cat([memory.personal_body, memory.personal_head]))
        live = run.initial.copy()
        live.flat.copy_(run.train(2, k).live)
        assert torch.equal(memory.personal_body, live.get(body)[0])


def test_a_client_that_never_trained_answers_with_the_global_model(ride: Riding) -> None:
    run = ride("fedcrc", data="skewed", rounds=2, **{"split.heldout": 1})
    (out,) = run.world.federation.heldout
    flat = torch.cat([p.detach().flatten() for p in run.result.client(out).model.parameters()])
    assert torch.equal(flat, run.params.flat)


def test_the_personal_head_is_not_the_head_that_is_sent(ride: Riding) -> None:
    run = ride("fedcrc", data="skewed", rounds=3)
    for seen in run.of("train"):
        live = run.initial.copy()
        live.flat.copy_(seen.up.w)
        assert not torch.equal(live.get(head)[0], seen.memory().personal_head)
        assert set(seen.memory()) == {"personal_head"}


def test_a_client_of_one_class_learns_to_say_it(ride: Riding) -> None:
    run = ride("fedcrc", data="skewed", rounds=3, **{"train.epochs": 8})
    table = run.result.counts()["final_personal"][3]  # client 3 holds class 3 alone
    assert table.sum() > 0
    assert table[3, 3] == table.sum()


def test_a_rejected_upload_leaves_the_head_as_before(ride: Riding) -> None:
    run = ride(spoiling(FedCRC), data="skewed", rounds=3)
    assert run.result["rejected"] == {"nonfinite": 1}
    one, two, three = (run.train(r, 1) for r in (1, 2, 3))
    assert three.before == one.after != two.after
