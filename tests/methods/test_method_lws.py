"""LWS: a scale per class that the client holds, learnt with the model frozen."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from riding import Ride

import by_hand
from polyfed import rng
from polyfed.message import Memory
from polyfed.methods.lws import LWS
from polyfed.parts.fit import balanced

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
