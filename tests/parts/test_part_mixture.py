"""Networks that answer together: by the equations, in a run, and exported."""

import pytest
import torch
from torch import nn

import by_hand
from polyfed.errors import UsageError
from polyfed.models.base import Ensemble, Net
from polyfed.parts.mixture import gated, mix


@pytest.fixture
def two() -> list[Net]:
    torch.manual_seed(0)
    return [by_hand.tiny_net(bn=True).eval() for _ in range(2)]


X = torch.randn(6, by_hand.INTO, generator=torch.Generator().manual_seed(1))


def test_logits_are_added_up_with_their_weights(two: list[Net]) -> None:
    one, other = two
    torch.testing.assert_close(mix([(one, 1), (other, -0.5)])(X), one(X) - 0.5 * other(X))


def test_of_probabilities_the_weighted_mean_is_taken(two: list[Net]) -> None:
    one, other = two
    found = mix([(one, 3), (other, 1)], how="probabilities")(X)
    torch.testing.assert_close(found.softmax(1), 0.75 * one(X).softmax(1) + 0.25 * other(X).softmax(1))
    alone = mix([(one, 1), (other, 0)], how="probabilities")(X)
    torch.testing.assert_close(alone, one(X).log_softmax(1))


@pytest.mark.parametrize("how", ["logits", "probabilities"])
def test_a_gate_shares_out_every_sample(two: list[Net], how: str) -> None:
    gate = nn.Linear(by_hand.INTO, 2)
    with torch.no_grad():
        gate.weight.zero_()
        gate.bias.copy_(torch.tensor([0.0, float(torch.log(torch.tensor(3.0)))]))  # a quarter and three quarters
    fixed = mix(list(zip(two, (0.25, 0.75), strict=True)), how=how)
    torch.testing.assert_close(gated(two, gate, how)(X), fixed(X))


def test_it_is_built_again_from_its_plan_and_its_weights(two: list[Net]) -> None:
    made = mix(list(zip(two, (0.3, 0.7), strict=True)), how="probabilities")
    again = Ensemble.kinds["mixture"].planned(made.plan(), lambda: by_hand.tiny_net(bn=True)).eval()
    again.load_state_dict(made.state_dict())
    assert torch.equal(again(X), made(X))


def test_what_cannot_be_mixed_is_refused(two: list[Net]) -> None:
    one, other = two
    with pytest.raises(UsageError, match="at least one network"):
        mix([])
    with pytest.raises(UsageError, match="by logits or probabilities, not by 'votes'"):
        mix([(one, 1.0)], how="votes")  # type: ignore[arg-type]
    for weights in ((1.0, -0.1), (0.0, 0.0)):
        with pytest.raises(UsageError, match="weights of at least 0 that are not all 0"):
            mix(list(zip((one, other), weights, strict=True)), how="probabilities")
