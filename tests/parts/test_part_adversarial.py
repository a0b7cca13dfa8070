"""Features made of others: which are wanted, from what, and where gradient steps on the feature take them."""

import numpy as np
import pytest
import torch

from polyfed.parts.adversarial import Towards, wanted

WEIGHT = torch.tensor([[1.0, 0.0], [0.0, 1.0]])


def classify(h: torch.Tensor) -> torch.Tensor:
    return h @ WEIGHT.T


def test_one_step_is_the_normalised_gradient_of_the_cross_entropy() -> None:
    """At h = (1, 1) both are equally likely: the gradient for class 1 is (p_0, p_1 - 1) = (0.5, -0.5)."""
    h, y = torch.tensor([[1.0, 1.0]]), torch.tensor([1])
    moved, sure = Towards(steps=1, size=0.5)(classify, h, y, torch.zeros(1, 2))
    far = 0.5 / 2**0.5
    torch.testing.assert_close(moved, torch.tensor([[1 - far, 1 + far]]))
    assert sure.tolist() == [True]


def test_every_row_has_its_own_gradient_and_step() -> None:
    h, y = torch.tensor([[4.0, 1.0], [1.0, 1.0]]), torch.tensor([1, 0])
    both, _ = Towards(steps=3)(classify, h, y, torch.zeros(2, 2))
    alone = [Towards(steps=3)(classify, h[i : i + 1], y[i : i + 1], torch.zeros(1, 2))[0] for i in (0, 1)]
    torch.testing.assert_close(both, torch.cat(alone))


def test_noise_has_the_length_of_a_step() -> None:
    moved, _ = Towards(steps=0, size=0.5)(
        classify, torch.full((1, 2), 2.0), torch.tensor([0]), torch.tensor([[3.0, 4.0]])
    )
    torch.testing.assert_close(moved, torch.tensor([[2.3, 2.4]]))


@pytest.mark.parametrize(("start", "lowest"), [([0.1, 0.2], 0.0), ([-0.3, 0.2], -0.3)])
def test_features_do_not_fall_below_what_there_is(start: list[float], lowest: float) -> None:
    moved, _ = Towards(steps=5)(classify, torch.tensor([start]), torch.tensor([1]), torch.zeros(1, 2))
    assert float(moved.min()) == pytest.approx(lowest)


def test_only_what_is_probable_enough_is_accepted() -> None:
    """p(1) at (2, 0) is 1 / (1 + e^2) = 0.119, and 0.5 at (1, 1)."""
    h, y = torch.tensor([[2.0, 0.0], [1.0, 1.0]]), torch.tensor([1, 1])
    for least, sure in ((0.1, [True, True]), (0.12, [False, True]), (0.5, [False, True]), (0.51, [False, False])):
        assert Towards(steps=0, accept=least)(classify, h, y, torch.zeros(2, 2))[1].tolist() == sure


def test_nothing_is_made_of_nothing() -> None:
    moved, sure = Towards()(classify, torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64), torch.zeros(0, 2))
    assert moved.shape == (0, 2)
    assert sure.shape == (0,)


def test_the_classifier_is_left_without_a_gradient() -> None:
    weight = WEIGHT.clone().requires_grad_(True)
    moved, _ = Towards(steps=1)(lambda h: h @ weight.T, torch.ones(1, 2), torch.tensor([0]), torch.zeros(1, 2))
    assert not moved.requires_grad
    assert weight.grad is None


def test_rare_classes_are_wanted_as_often_as_they_are_rare() -> None:
    counts, y = torch.tensor([40, 10, 20]), torch.arange(3).repeat(4000)
    chosen, _ = wanted(y, counts, np.random.default_rng(0))
    shares = torch.bincount(y[chosen], minlength=3) / 4000
    torch.testing.assert_close(shares, torch.tensor([0.0, 0.75, 0.5]), atol=0.03, rtol=0)


def test_sources_are_seldom_of_classes_that_are_far_larger() -> None:
    """For a target with n = 10 of n_max = 40, sources of 40, 10 and 20 weigh 0.25, 1 and 0.75."""
    counts, y = torch.tensor([40, 10, 20]), torch.arange(3).repeat(300)
    chosen, source = wanted(y, counts, np.random.default_rng(1))
    of_rare = source[y[chosen] == 1]
    shares = torch.bincount(y[of_rare], minlength=3) / len(of_rare)
    torch.testing.assert_close(shares, torch.tensor([0.125, 0.5, 0.375]), atol=0.12, rtol=0)
    assert 0 <= int(source.min()) <= int(source.max()) < len(y)


@pytest.mark.parametrize("counts", [[8, 0, 0], [4, 4, 4]])
def test_where_no_class_is_rarer_than_another_nothing_is_wanted(counts: list[int]) -> None:
    chosen, source = wanted(torch.zeros(6, dtype=torch.int64), torch.tensor(counts), np.random.default_rng(0))
    assert len(chosen) == len(source) == 0
