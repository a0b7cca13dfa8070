"""FedLC (Zhang et al. 2022, eq. 5): logits lowered by tau n_c^(-1/4) in training, and in training only."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from riding import Ride

import by_hand
from polyfed.methods.fedlc import FedLC
from polyfed.parts.losses import calibrated_cross_entropy
from polyfed.parts.resident import Batch

Riding = Callable[..., Ride]


def test_the_shift_by_hand() -> None:
    """16^(-1/4) = 1/2, 1 stays, 81^(-1/4) = 1/3, and (1e-8)^(-1/4) = 100 for a class that is not there."""
    shift = calibrated_cross_entropy(torch.tensor([16, 1, 81, 0]), 2.0).shift
    assert shift is not None
    assert shift.tolist() == pytest.approx([-1.0, -2.0, -2 / 3, -200.0], rel=1e-5)


def test_the_loss_is_cross_entropy_on_calibrated_logits_over_all_classes() -> None:
    client = by_hand.client(by_hand.resident(), by_hand.some(labels=[0] * 16 + [1]))
    x, y = client.data.take(torch.arange(17))
    batch = Batch(client.model, x, y, torch.arange(17), client.data)
    logits = client.model(x) - torch.tensor([0.5, 1.0, 100.0])
    torch.testing.assert_close(FedLC().loss(client, batch), F.cross_entropy(logits, y))
    assert float(FedLC().loss(client, batch).detach()) > 0, "the printed form may fall below"


def test_an_absent_class_is_not_pushed_away() -> None:
    """Its probability is about e^-100, so that its row and bias keep their bits, while those of others move."""
    home = by_hand.resident()
    client = by_hand.client(home, by_hand.some(labels=[0, 1, 0, 1]), train={"lr": 0.5})
    FedLC().train(client)
    before, now = (p.weights[-18:] for p in (home.initial, home.params))  # 3 rows of 5, then 3 biases
    changed = [not torch.equal(before[:15].view(3, 5)[c], now[:15].view(3, 5)[c]) for c in range(3)]
    assert changed == [True, True, False]
    assert now[-1] == before[-1]


def test_balanced_classes_are_not_calibrated() -> None:
    """Equal counts shift all logits alike, which a softmax does not see."""
    client = by_hand.client(by_hand.resident(), by_hand.some(12))
    x, y = client.data.take(torch.arange(12))
    batch = Batch(client.model, x, y, torch.arange(12), client.data)
    torch.testing.assert_close(FedLC().loss(client, batch), F.cross_entropy(client.model(x), y))


def test_rare_classes_get_larger_logits() -> None:
    """One sample of class 1 beside thirty of class 0: calibrated training prefers class 0 less."""
    said = []
    for tau in (0.0, 2.0):
        home = by_hand.resident()
        client = by_hand.client(home, by_hand.some(labels=[0] * 30 + [1], classes=2), train={"lr": 0.2, "epochs": 20})
        FedLC(tau=tau).train(client)
        logits = home.model(client.data.pool.x)
        said.append(float((logits[:, 1] - logits[:, 0]).detach().mean()))
    assert said[1] > said[0]


def test_nobodys_answers_are_calibrated(ride: Riding) -> None:
    run = ride("fedlc", data="skewed", rounds=2)
    x = torch.zeros(1, 8)
    assert torch.equal(run.result.global_model().logits(x), run.result.client(3).logits(x))
    assert all(set(seen.up) == {"w"} and seen.after is None for seen in run.of("train"))
