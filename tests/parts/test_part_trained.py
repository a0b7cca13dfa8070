"""Fits on tensors of the method's own: the model is frozen, the tensors move, and the rest of a fit holds for them."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import by_hand
from polyfed.errors import UsageError
from polyfed.parts.resident import Batch
from polyfed.parts.steps import adam, maml, moreau, sgd


def scaled_by(scale: Tensor) -> Any:
    return lambda batch: F.cross_entropy(batch.logits * scale, batch.y)


def test_a_scale_descends_and_the_model_keeps_its_bits() -> None:
    home = by_hand.resident(bn=True)
    client = by_hand.client(home, by_hand.some(11), train={"batch": 20, "lr": 0.1})
    scale, expected = torch.ones(by_hand.CLASSES), torch.ones(by_hand.CLASSES, requires_grad=True)
    x, y = client.data.take(torch.arange(11))
    logits = home.model.eval()(x).detach()
    optimiser = torch.optim.SGD([expected], lr=0.1)
    for _ in range(4):
        optimiser.zero_grad()
        F.cross_entropy(logits * expected, y).backward()
        optimiser.step()
    assert client.fit(scaled_by(scale), train=[scale], steps=4) == 4
    torch.testing.assert_close(scale, expected.detach())
    assert home.params.digest() == home.initial.digest()
    assert not scale.requires_grad, "it can be kept, sent and stored"
    client.memory.scale = scale


@pytest.mark.parametrize("step", [sgd, adam, maml(0.1), moreau(lam=2.0)], ids=["sgd", "adam", "maml", "moreau"])
def test_every_step_and_momentum_hold_for_them(step: Any) -> None:
    home = by_hand.resident()
    client = by_hand.client(home, by_hand.some(12), train={"batch": 4, "momentum": 0.9, "clip": 1.0})
    scale, shift = torch.ones(by_hand.CLASSES), torch.zeros(1, by_hand.CLASSES)
    loss = lambda batch: F.cross_entropy(batch.logits * scale + shift, batch.y)  # noqa: E731
    assert client.fit(loss, train=[scale, shift], steps=3, step=step) == 3
    assert not torch.equal(scale, torch.ones(by_hand.CLASSES))
    assert shift.any()
    assert home.params.digest() == home.initial.digest()


def test_a_gate_is_trained_by_its_parameters() -> None:
    home = by_hand.resident()
    client = by_hand.client(home, by_hand.some(12), train={"lr": 0.5})
    other = client.frozen(by_hand.as_params(home, 0.1))
    torch.manual_seed(0)
    gate = nn.Linear(by_hand.WIDTH, 1)

    def loss(batch: Batch) -> Tensor:
        share = torch.sigmoid(gate(batch.features))
        return F.cross_entropy(share * batch.logits + (1 - share) * other.logits(batch), batch.y)

    client.fit(loss, train=list(gate.parameters()), steps=20)
    losses = [float(each) for each in client.tally.losses]
    assert losses[-1] < losses[0]


def test_a_correction_sees_them_as_one_vector() -> None:
    client = by_hand.client(by_hand.resident(), by_hand.some(12), train={"lr": 1.0})
    one, two = torch.zeros(2, 2), torch.zeros(3)
    push = torch.arange(7.0)
    loss = lambda batch: 0.0 * (one.sum() + two.sum())  # noqa: E731
    client.fit(loss, train=[one, two], steps=1, correct=lambda grad: grad.add_(push))
    assert one.tolist() == [[0.0, -1.0], [-2.0, -3.0]]
    assert two.tolist() == [-4.0, -5.0, -6.0]


def test_what_cannot_be_trained_is_refused() -> None:
    client = by_hand.client(by_hand.resident(), by_hand.some(12))
    computed = torch.ones(3, requires_grad=True) * 2
    for wrong in ([torch.ones(3, dtype=torch.int64)], [computed], ["head"]):
        with pytest.raises(UsageError, match="'train' must be a slice or a list of floating-point tensors"):
            client.fit(scaled_by(torch.ones(3)), train=wrong)
