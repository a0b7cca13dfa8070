"""MOON (Li et al. 2021, eqs. 3-4): the contrast of features, and whose features they are."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from riding import Ride, spoiling

import by_hand
from polyfed.message import Memory
from polyfed.methods.moon import MOON
from polyfed.parts.distil import contrast
from polyfed.parts.resident import Batch

Riding = Callable[..., Ride]


def test_the_contrast_by_hand() -> None:
    """cos = 1 and 0 in the first row, 0 and -0.6 in the second; t = 0.5."""
    rows = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    towards, away = torch.tensor([[5.0, 0.0], [1.0, 0.0]]), torch.tensor([[0.0, 1.0], [4.0, -3.0]])
    each = [-math.log(math.exp(2) / (math.exp(2) + 1)), -math.log(1 / (1 + math.exp(-1.2)))]
    assert float(contrast(rows, towards, away, 0.5)) == pytest.approx(sum(each) / 2, rel=1e-6)


def test_the_contrast_of_alike_models_is_log_2() -> None:
    rows, same = torch.randn(5, 3), torch.randn(5, 3)
    assert float(contrast(rows, same, same, 0.5)) == pytest.approx(math.log(2), rel=1e-6)


def test_its_gradient_is_that_of_a_cross_entropy_over_two_similarities() -> None:
    """Eq. 3 is a softmax over {sim(z, z_glob), sim(z, z_prev)} / tau whose right answer is the first."""
    rows = torch.randn(6, 4, requires_grad=True)
    towards, away = torch.randn(2, 6, 4)
    (found,) = torch.autograd.grad(contrast(rows, towards, away, 0.3), rows)
    z = torch.stack([F.cosine_similarity(rows, other) for other in (towards, away)], 1) / 0.3
    (expected,) = torch.autograd.grad(F.cross_entropy(z, torch.zeros(6, dtype=torch.int64)), rows)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def with_previous(home: Any, **keys: Any):
    """A client whose last model and received model are both other than its live one."""
    sent, previous = (by_hand.as_params(home, v + 0.3 * torch.arange(home.layout.size).sin()) for v in (0.1, -0.2))
    client = by_hand.client(home, by_hand.some(6), received=sent, memory=Memory(previous=previous))
    home.params.set(home.initial)
    x, y = client.data.take(torch.arange(6))
    return client, Batch(client.model, x, y, torch.arange(6), client.data), sent, previous


def features(home: Any, params: Any, x: torch.Tensor) -> torch.Tensor:
    kept = home.params.copy()
    home.params.set(params)
    with torch.no_grad():
        found = home.model.features(x).clone()
    home.params.set(kept)
    return found


def test_the_loss_draws_to_the_received_model_and_away_from_the_last_one() -> None:
    home = by_hand.resident()
    client, batch, sent, previous = with_previous(home)
    towards, away, here = (features(home, p, batch.x) for p in (sent, previous, home.initial))
    expected = F.cross_entropy(home.model(batch.x), batch.y) + 3.0 * contrast(here, towards, away, 0.7)
    torch.testing.assert_close(MOON(mu=3.0, temp=0.7).loss(client, batch), expected)


def test_at_first_the_contrast_is_a_constant() -> None:
    home = by_hand.resident()
    client = by_hand.client(home, by_hand.some(6))
    x, y = client.data.take(torch.arange(6))
    batch = Batch(client.model, x, y, torch.arange(6), client.data)
    plain = float(F.cross_entropy(home.model(x), y).detach())
    assert float(MOON(mu=2.0).loss(client, batch).detach()) == pytest.approx(plain + 2 * math.log(2), rel=1e-6)


def test_the_first_round_is_fedavgs_bit_for_bit(ride: Riding) -> None:
    one, other = ride("moon", data="skewed", rounds=1), ride("fedavg", data="skewed", rounds=1)
    assert torch.equal(one.params.flat, other.params.flat)


def test_the_frozen_models_are_made_once_a_round() -> None:
    home = by_hand.resident()
    client, batch, _, _ = with_previous(home)
    method, made = MOON(), []
    real = client.frozen
    client.frozen = lambda params: made.append(params) or real(params)  # type: ignore[method-assign, func-returns-value]
    for _ in range(3):
        method.loss(client, batch)
    assert len(made) == 2


def test_what_is_kept_is_the_model_that_was_sent(ride: Riding) -> None:
    run = ride("moon", data="skewed", rounds=2)
    for seen in run.of("train"):
        assert set(seen.up) == set(seen.down) == {"w"}
        assert torch.equal(seen.memory().previous.flat, seen.up.w)
    assert run.train(2, 0).before == run.train(1, 0).after


def test_a_rejected_upload_leaves_the_previous_model_as_before(ride: Riding) -> None:
    run = ride(spoiling(MOON), data="skewed", rounds=3)
    assert run.result["rejected"] == {"nonfinite": 1}
    assert run.train(3, 1).before == run.train(1, 1).after


def test_a_stronger_contrast_brings_features_nearer_to_the_received_models() -> None:
    nearer = []
    for mu in (0.0, 20.0):
        home = by_hand.resident()
        client, batch, sent, _ = with_previous(home)
        MOON(mu=mu).local(client, steps=8, lr=0.02)
        here, there = features(home, home.params, batch.x), features(home, sent, batch.x)
        nearer.append(float(F.cosine_similarity(here, there).mean()))
    assert nearer[1] > nearer[0] + 0.01
