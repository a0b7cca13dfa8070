"""Per-FedAvg (Fallah et al. 2020), first order: w descends along the gradient where one step of each client leads."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from riding import Ride
from test_method_pfedme import gradient

import by_hand
from polyfed.config import Train
from polyfed.methods.fedavg import FedAvg
from polyfed.methods.per_fedavg import PerFedAvg

Riding = Callable[..., Ride]


@pytest.mark.parametrize(("keys", "alpha"), [({}, 0.3), ({"inner_lr": 0.7}, 0.7)])
def test_two_steps_by_hand(keys: dict[str, Any], alpha: float) -> None:
    """w' = w - alpha grad(w), w <- w - beta grad(w'); a client with one batch uses it for both."""
    home, data = by_hand.resident(), by_hand.some(6)
    w = home.initial.weights.clone()
    for _ in range(2):
        ahead = w - alpha * gradient(home, data, w)
        w = w - 0.2 * gradient(home, data, ahead)
    client = by_hand.client(home, data, train={"lr": 0.3, "batch": 6, "epochs": 4})
    upload = PerFedAvg(meta_lr=0.2, **keys).train(client)
    assert client.steps == 2
    torch.testing.assert_close(upload.w, w, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("epochs", "batch", "steps"), [(1, 4, 2), (1, 6, 1), (2, 4, 3), (3, 12, 2), (0.1, 12, 0)])
def test_two_batches_make_a_step(epochs: float, batch: int, steps: int) -> None:
    """12 samples: so many epochs of so many batches, in pairs; an odd one is filled up."""
    client = by_hand.client(by_hand.resident(), by_hand.some(12), train={"epochs": epochs, "batch": batch})
    PerFedAvg().train(client)
    assert client.steps == steps
    assert client.tally.samples == 2 * batch * steps


@pytest.mark.parametrize("rule", [{}, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.5, "clip": 1e-3}])
def test_the_personal_model_is_one_plain_step_away(rule: dict[str, Any]) -> None:
    """Eq. 3: w - alpha grad F_k(w), whatever the rule of the run is."""
    home, data = by_hand.resident(), by_hand.some(6)
    w = home.initial.weights.clone()
    expected = w - 0.3 * gradient(home, data, w)
    client = by_hand.client(home, data, train={"lr": 0.3, "batch": 6, "epochs": 5, **rule})
    PerFedAvg().adapt(client)
    assert client.steps == 1
    torch.testing.assert_close(client.live.weights, expected, rtol=1e-4, atol=1e-6)


def test_or_as_many_epochs_as_a_round_has() -> None:
    """MAP's protocol: FedAvg's local training from the global model, bit for bit."""
    home, data, train = (
        by_hand.resident(bn=True),
        by_hand.some(12),
        {"lr": 0.3, "batch": 4, "epochs": 2, "momentum": 0.9},
    )
    plain = by_hand.client(home, data, train=train)
    FedAvg().local(plain)
    expected = plain.live.copy()
    client = by_hand.client(home, data, train=train)
    PerFedAvg(personalise="epochs").adapt(client)
    assert torch.equal(client.live.flat, expected.flat)
    assert client.steps == 6


def test_what_answers_is_the_adapted_model_and_the_global_one_is_not_adapted(ride: Riding) -> None:
    run = ride("per-fedavg", data="skewed", rounds=2, **{"split.heldout": 1})
    whole = torch.cat([p.detach().flatten() for p in run.result.global_model().model.parameters()])
    assert torch.equal(whole, run.params.flat)
    for k in range(4):  # a stranger adapts like everybody
        flat = torch.cat([p.detach().flatten() for p in run.result.client(k).model.parameters()])
        assert not torch.equal(flat, whole)
        assert float((flat - whole).norm()) < 0.5 * float(whole.norm())
    assert all(seen.after is None for seen in run.of("evaluate") + run.of("train"))  # nothing is kept


def test_training_does_not_begin_at_the_adapted_model(ride: Riding) -> None:
    """A round is two fewer gradients than it would be: 32 samples in batches of 4 are 4 steps and no more."""
    run = ride("per-fedavg", rounds=1)
    assert run.train(1, 0).numbers["steps"] == 4
    assert Train(batch=4).steps(8) == 8
