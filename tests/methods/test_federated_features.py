"""What CReFF and MuPFL share: which real samples give a gradient, and what training on features moves."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from bench import Bench, descended
from torch import Tensor

from polyfed.config import Train
from polyfed.methods.creff import CReFF
from polyfed.methods.federated_features import FederatedFeatures
from polyfed.params import body, head
from polyfed.parts import match

RULES: dict[str, dict[str, Any]] = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "decay": {"weight_decay": 0.2},
    "clip": {"clip": 0.05},
    "all": {"momentum": 0.9, "weight_decay": 0.2, "clip": 0.05},
}


@pytest.mark.parametrize("name", RULES)
def test_training_on_features_moves_the_head_by_its_rule_and_nothing_else(name: str) -> None:
    """The body's gradient is zero, but decay and momentum would move it all the same."""
    bench = Bench(CReFF(m=3), momentum=0.5, weight_decay=0.3, clip=1e-3)  # the run's own rule is another
    client, rule = bench.client(), Train(**RULES[name])
    h = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(5))
    before = client.live.get(body)[0]
    weight, bias = (p.detach().clone() for p in client.model.head.parameters())
    known = {"features": h, "feature_classes": torch.tensor([0, 1])}
    FederatedFeatures.fit_head(client, known, rule, epochs=3, lr=0.4, batch=100)
    expected = descended([weight, bias], h.flatten(0, 1), torch.tensor([0, 0, 0, 1, 1, 1]), 3, 0.4, rule)
    assert torch.allclose(client.live.get(head)[0], expected, atol=1e-6)
    assert torch.equal(client.live.get(body)[0], before)


@pytest.mark.parametrize(("b_real", "draws"), [(3, 2), (2, 5)])
def test_a_gradient_is_the_mean_over_draws_of_b_real_samples(
    monkeypatch: pytest.MonkeyPatch, b_real: int, draws: int
) -> None:
    """Four samples of each class, more than one draw takes."""
    taken: list[Tensor] = []
    real = match.drawn
    monkeypatch.setattr(match, "drawn", lambda *given: taken.append(real(*given)) or taken[-1])
    bench = Bench(CReFF(m=2, b_real=b_real, draws=draws))
    client = bench.client()
    bench.method.take_gradients(client)
    x, y = client.data.take(torch.arange(8))
    rows, layer = client.model.features(x).detach(), client.model.head
    for c, positions in enumerate(taken):
        batches = positions.view(draws, b_real)
        assert all(len(set(batch.tolist())) == b_real for batch in batches)  # a draw takes nothing twice
        own, found = (y == c).nonzero().flatten(), []
        for batch in batches:
            layer.requires_grad_(True)
            loss = F.cross_entropy(layer(rows[own[batch]]), y[own[batch]])
            weight, bias = torch.autograd.grad(loss, list(layer.parameters()))
            found.append(torch.cat([weight, bias[:, None]], 1))
        assert torch.allclose(client.scratch.z[c], torch.stack(found).mean(0), atol=1e-6)
    assert len(taken) == 2


def test_other_clients_and_rounds_draw_other_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Tensor] = []
    real = match.drawn
    monkeypatch.setattr(match, "drawn", lambda *given: taken.append(real(*given)) or taken[-1])
    bench = Bench(CReFF(m=2, b_real=3, draws=9))
    for id, round in ((0, 1), (0, 1), (1, 1), (0, 2)):
        client = bench.client(id)
        client.round = round
        bench.method.take_gradients(client)
    first, again, other, later = (torch.cat(taken[i : i + 2]) for i in range(0, 8, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, later)
