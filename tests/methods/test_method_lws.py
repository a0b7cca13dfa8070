"""LWS: a scale per class that the client holds, learnt with the model frozen."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from riding import Ride

import by_hand
from polyfed import rng
from polyfed.message import Memory
from polyfed.methods.lws import LWS
from polyfed.parts.fit import balanced
from polyfed.parts.steps import sgd

Riding = Callable[..., Ride]
LABELS = [0, 0, 0, 0, 0, 0, 2, 2]  # class 1 is missing


def test_the_scales_are_those_of_torchs_sgd_on_the_same_batches() -> None:
    home, data = by_hand.resident(), by_hand.some(labels=LABELS)
    client = by_hand.client(home, data, train={"batch": 4, "momentum": 0.5, "weight_decay": 0.3})
    model, before = LWS(epochs=2, lr=0.2), home.params.flat.clone()
    model.finish(client)
    h, held = home.model.features(data.pool.x).detach(), torch.tensor([0, 2])
    plain = home.model.head(h).detach()
    scales = torch.ones(2, requires_grad=True)
    optimiser = torch.optim.SGD([scales], 0.2, momentum=0.9, weight_decay=5e-4)
    for epoch in range(2):
        order = balanced(data, rng.generator(0, "batches-head", 1, 0, 0, epoch))
        for at in (0, 4):
            rows = order[at : at + 4]
            optimiser.zero_grad()
            F.cross_entropy(plain[rows] * torch.ones(3).index_copy(0, held, scales), data.y[rows]).backward()
            optimiser.step()
    torch.testing.assert_close(client.memory.scales[held], scales.detach(), rtol=1e-4, atol=1e-5)
    assert float(client.memory.scales[1]) == 1.0
    assert torch.equal(home.params.flat, before), "the model is frozen"
    assert not torch.allclose(scales.detach(), torch.ones(2), atol=0.01), "there was something to learn"


def learnt(monkeypatch: pytest.MonkeyPatch | None, **shape: Any) -> tuple[torch.Tensor, list[float], dict[str, float]]:
    """Scales, losses and tally; with a patch the steps are those of plain SGD, by autograd."""
    home, data = by_hand.resident(**shape), by_hand.some(labels=[*LABELS, 2])  # the last batch has one sample
    client = by_hand.client(home, data, train={"batch": 4})
    if monkeypatch is not None:
        monkeypatch.setattr("polyfed.methods.lws.scaling", lambda *given: sgd)
    LWS(epochs=5, lr=0.3).finish(client)
    return client.memory.scales, [float(loss) for loss in client.tally.losses], client.tally.numbers()


@pytest.mark.parametrize("shape", [{}, {"bn": True}, {"bias": False}])
def test_without_autograd_the_steps_are_the_same(shape: dict[str, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    quick, quick_losses, quick_tally = learnt(None, **shape)
    slow, slow_losses, slow_tally = learnt(monkeypatch, **shape)
    torch.testing.assert_close(quick, slow, rtol=1e-4, atol=1e-6)
    assert quick_losses == pytest.approx(slow_losses, rel=1e-4)
    assert quick_tally == pytest.approx(slow_tally, rel=1e-4)
    assert len(quick_losses) == 15


def test_inputs_that_change_are_passed_through_the_body_each_time() -> None:
    """There are no features to keep, so the steps are plain ones."""
    home = by_hand.resident()
    client = by_hand.client(home, by_hand.some(labels=LABELS), train={"batch": 4}, augment=lambda x, y: (-x, y))
    LWS(epochs=1).finish(client)
    assert client.steps == 2
    assert (client.memory.scales[[0, 2]] != 1).all()


@pytest.mark.parametrize("bias", [True, False])
def test_the_predictor_multiplies_the_logits(bias: bool) -> None:
    home, data = by_hand.resident(bias=bias), by_hand.some()
    scales = torch.tensor([2.0, 1.0, -0.5])
    client = by_hand.client(home, data, memory=Memory(scales=scales))
    answer = LWS().predictor(client)(data.pool.x)
    torch.testing.assert_close(answer, home.model(data.pool.x) * scales)
    torch.testing.assert_close(LWS().predictor(client)(data.pool.x), answer)  # asked again, it answers the same


def test_without_an_epoch_it_is_its_base(ride: Riding) -> None:
    run = ride({"name": "lws", "epochs": 0}, data="skewed", rounds=2)
    assert run.result["personal"] == run.result["personal_before"] == run.result["global_local"]


def test_rare_classes_gain(ride: Riding) -> None:
    run = ride("lws", data="skewed", rounds=2)
    for seen in run.of("finish"):
        scales = seen.memory().scales
        missing = torch.ones(5, dtype=torch.bool)
        missing[run.world.federation.clients[seen.client].counts.nonzero().flatten()] = False
        assert (scales[missing] == 1).all()
        assert (scales[~missing] != 1).all()
