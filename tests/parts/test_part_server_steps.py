"""Steps of a server along the mean change of its clients; test_method_fedopt.py has them against torch and by hand."""

import pytest
import torch

from polyfed.parts.server_steps import AdaptiveStep, momentum_step


def test_momentum_by_hand() -> None:
    """g = 1 and 0.5, lr 0.5, momentum 0.5: v = 0.5, then 0.25 + 0.25."""
    w, v = torch.tensor([3.0]), None
    for g, expected in ((1.0, 2.5), (0.5, 2.0)):
        mean = w - g
        v = momentum_step(w, mean, v, 0.5, 0.5)
        assert mean.tolist() == [expected]
        w = mean
    assert v is not None
    assert v.tolist() == [0.5]


def test_without_momentum_nothing_is_remembered_and_rate_one_is_the_mean() -> None:
    before, mean = torch.randn(2, 100)
    kept = mean.clone()
    assert momentum_step(before, mean, None, 1.0, 0.0) is None
    assert torch.equal(mean, kept)


@pytest.mark.parametrize("kind", ["adam", "yogi", "adagrad"])
def test_an_adaptive_step_moves_where_the_clients_went_and_not_at_all_where_they_stayed(kind: str) -> None:
    step = AdaptiveStep(kind, 0.1, (0.9, 0.99), 1e-3)  # type: ignore[arg-type]
    before, mean = torch.zeros(3), torch.tensor([1.0, -1.0, 0.0])
    m, v = step(before, mean, *step.begin(before))
    assert mean[0] == -mean[1] > 0
    assert mean[2] == 0.0
    assert m.tolist() == pytest.approx([-0.1, 0.1, 0.0])
    assert not before.any()
    assert (v > 0).all()
