"""FedMMD (Yao et al. 2018): cross-entropy plus the discrepancy of the features from the received model's."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from riding import Ride

import by_hand
from polyfed.methods.fedmmd import FedMMD
from polyfed.parts.distil import mmd
from polyfed.parts.resident import Batch

Riding = Callable[..., Ride]


def whole_batch(client) -> Batch:
    x, y = client.data.take(torch.arange(client.n))
    return Batch(client.model, x, y, torch.arange(client.n), client.data)


@pytest.mark.parametrize("lam", [0.0, 0.5, 3.0])
def test_the_loss_by_its_parts(lam: float) -> None:
    home = by_hand.resident()
    client = by_hand.client(home, by_hand.some(6))
    sent = home.model.features(client.data.pool.x).detach()
    home.params.weights.add_(0.1)
    batch = whole_batch(client)
    expected = F.cross_entropy(home.model(batch.x), batch.y) + lam * mmd(home.model.features(batch.x), sent)
    torch.testing.assert_close(FedMMD(lam=lam).loss(client, batch), expected)


def test_at_the_received_model_there_is_no_discrepancy() -> None:
    home = by_hand.resident()
    client = by_hand.client(home, by_hand.some(6))
    batch = whole_batch(client)
    plain = float(F.cross_entropy(home.model(batch.x), batch.y).detach())
    assert float(FedMMD(lam=100.0).loss(client, batch).detach()) == pytest.approx(plain, abs=1e-4)


def test_a_stronger_term_keeps_features_nearer() -> None:
    apart = []
    for lam in (0.0, 1.0):
        home = by_hand.resident()
        client = by_hand.client(home, by_hand.some(24), train={"lr": 0.05, "epochs": 20})
        sent = home.model.features(client.data.pool.x).detach()
        FedMMD(lam=lam).train(client)
        apart.append(float(mmd(home.model.features(client.data.pool.x).detach(), sent)))
    assert apart[0] > 1.5 * apart[1] > 0


def test_a_batch_of_one_has_a_finite_gradient() -> None:
    home = by_hand.resident()
    client = by_hand.client(home, by_hand.some(1), train={"batch": 1})
    FedMMD(lam=1.0).local(client, steps=3)
    assert torch.isfinite(home.params.flat).all()
    assert client.steps == 3


def test_nothing_but_the_model_crosses_and_nothing_is_kept(ride: Riding) -> None:
    run = ride({"name": "fedmmd", "lam": 5.0}, data="skewed", rounds=1)
    assert all(set(seen.up) == set(seen.down) == {"w"} and seen.after is None for seen in run.of("train"))
