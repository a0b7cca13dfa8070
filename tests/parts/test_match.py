"""Features that pull a head as the clients' data do: gradients by class, their means, and the matching."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from polyfed.data.augment import augmenter
from polyfed.data.samples import Samples
from polyfed.models.base import Net
from polyfed.parts.match import (
    class_gradients,
    class_means,
    distance_slope,
    drawn,
    head_gradients,
    labelled,
    linear,
    match_features,
)

D, C = 5, 4


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def a_head(bias: bool = True, seed: int = 0) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(D, C, bias=bias)


def by_autograd(layer: nn.Linear, rows: Tensor, y: Tensor, create_graph: bool = False) -> Tensor:
    """The gradient of the mean cross-entropy in the head, as torch finds it."""
    loss = nn.functional.cross_entropy(layer(rows), y)
    weight, *bias = torch.autograd.grad(loss, list(layer.parameters()), create_graph=create_graph)
    return torch.cat([weight, bias[0][:, None]], 1) if bias else weight


# ---- eqs. 16, 17, 19


@pytest.mark.parametrize("bias", [True, False])
def test_eqs_16_and_19_the_closed_form_is_what_autograd_finds(bias: bool) -> None:
    layer, rows, y = a_head(bias), random(3, 7, D), torch.tensor([1, 0, 3])
    found = head_gradients(rows, y[:, None].expand(3, 7), linear(layer))
    assert found.shape == (3, C, D + bias)
    for i in range(3):
        assert torch.allclose(found[i], by_autograd(layer, rows[i], y[i].expand(7)), atol=1e-6)


def test_eq_16_by_hand() -> None:
    """Two classes, weight and bias 0: p = (1/2, 1/2), so the error of class 0 is (-1/2, 1/2)."""
    zero = torch.zeros(2, 2), torch.zeros(2)
    found = head_gradients(torch.tensor([[2.0, 4.0], [0.0, 2.0]]), torch.tensor([0, 0]), zero)
    assert found.tolist() == [[-0.5, -1.5, -0.5], [0.5, 1.5, 0.5]]  # -1/2 times the mean row; the bias has -1/2


def a_net(bias: bool = True) -> Net:
    torch.manual_seed(1)
    trunk = nn.Sequential(nn.Flatten(), nn.Linear(16, D), nn.BatchNorm1d(D), nn.ReLU())
    return Net(trunk, nn.Dropout(0.5), nn.Linear(D, C, bias=bias))


def some_samples(n: int = 30) -> Samples:
    return Samples.of(random(n, 1, 4, 4, seed=2), torch.arange(n) % 3)  # class 3 is missing


@pytest.mark.parametrize("bias", [True, False])
def test_eq_16_over_draws_is_the_mean_gradient_of_what_was_drawn(bias: bool) -> None:
    net, samples = a_net(bias).train(), some_samples()
    classes = torch.tensor([0, 2])
    found = class_gradients(net, samples, classes, 4, 3, np.random.default_rng(5))
    assert not net.training  # in eval mode
    assert found.shape == (2, C, D + bias)
    draw = np.random.default_rng(5)
    draw.integers(2**62)
    for i, c in enumerate(classes.tolist()):
        own = (samples.y == c).nonzero().flatten()
        batches = [own[torch.from_numpy(draw.choice(10, 4, replace=False))] for _ in range(3)]
        each = [by_autograd(net.head, net.features(samples.take(b)[0]).detach(), samples.y[b]) for b in batches]
        assert torch.allclose(found[i], torch.stack(each).mean(0), atol=1e-6)


def test_eq_16_a_class_with_few_samples_is_its_plain_mean() -> None:
    net, samples = a_net(), some_samples()
    (found,) = class_gradients(net, samples, torch.tensor([1]), 32, 10, np.random.default_rng(0))
    own = (samples.y == 1).nonzero().flatten()
    rows = net.features(samples.take(own)[0]).detach()
    assert torch.allclose(found, by_autograd(net.head, rows, samples.y[own]), atol=1e-6)


def test_draws_are_batches_without_repetition() -> None:
    positions = drawn(9, 4, 5, np.random.default_rng(0)).view(5, 4)
    assert all(len(set(row.tolist())) == 4 for row in positions)
    assert sorted(drawn(3, 4, 2, np.random.default_rng(0)).tolist()) == [0, 0, 1, 1, 2, 2]


def test_augmented_draws_are_other_images_of_the_same_class() -> None:
    net, samples, classes = a_net(), some_samples(), torch.tensor([0, 1])
    options = (net, samples, classes, 4, 3)
    plain = class_gradients(*options, np.random.default_rng(5))
    changed = class_gradients(*options, np.random.default_rng(5), augmenter("crop+flip"))
    again = class_gradients(*options, np.random.default_rng(5), augmenter("crop+flip"))
    identity = class_gradients(*options, np.random.default_rng(5), lambda x, generator: x)
    assert torch.allclose(identity, plain, atol=1e-6)
    assert not torch.allclose(changed, plain, atol=1e-3)
    assert torch.equal(changed, again)


def test_eq_17_the_mean_over_those_who_sent_a_class() -> None:
    def z(value: float) -> Tensor:
        return torch.full((1, 3, 2), value)

    sent = [
        (torch.tensor([2, 0]), torch.cat([z(1.0), z(5.0)])),
        (torch.tensor([2]), z(4.0)),
        (torch.tensor([1]), z(0.0)),  # fitted perfectly: no direction
        (torch.tensor([2, 7, -1]), torch.cat([z(1.0), z(9.0), z(9.0)])),  # 7 and -1 are no classes
    ]
    classes, means = class_means(sent)
    assert classes.tolist() == [0, 2]
    assert torch.equal(means, torch.cat([z(5.0), z(2.0)]))  # unweighted: (1 + 4 + 1) / 3
    assert len(class_means(sent[2:3])[0]) == 0


# ---- eq. 20


def cos(a: list[float], b: list[float]) -> float:
    return float(np.dot(a, b) / (np.linalg.norm(a) * np.linalg.norm(b)))


A = [[[1.0, 2.0, 3.0], [0.0, 1.0, -1.0]]]
B = [[[2.0, 1.0, 0.5], [1.0, 1.0, 4.0]]]


def gradient_distance(found: Tensor, goal: Tensor, bias: bool, flat: bool) -> Tensor:
    """Eq. 20 as a distance, summed over classes: 1 - cos of the whole gradient, or of each row and of the bias."""
    if flat:
        parts = [(found.flatten(1), goal.flatten(1))]
    elif bias:
        parts = [(found[..., :-1], goal[..., :-1]), (found[..., -1], goal[..., -1])]
    else:
        parts = [(found, goal)]
    return torch.stack([(1 - torch.cosine_similarity(a, b, dim=-1)).sum() for a, b in parts]).sum()


@pytest.mark.parametrize(
    ("bias", "flat", "expected"),
    [
        (True, True, 1 - cos([1, 2, 3, 0, 1, -1], [2, 1, 0.5, 1, 1, 4])),
        (False, True, 1 - cos([1, 2, 3, 0, 1, -1], [2, 1, 0.5, 1, 1, 4])),
        (True, False, 3 - cos([1, 2], [2, 1]) - cos([0, 1], [1, 1]) - cos([3, -1], [0.5, 4])),
        (False, False, 2 - cos([1, 2, 3], [2, 1, 0.5]) - cos([0, 1, -1], [1, 1, 4])),  # the last column is a weight
    ],
)
def test_eq_20_as_a_distance_by_hand(bias: bool, flat: bool, expected: float) -> None:
    found, goal = torch.tensor(A), torch.tensor(B)
    assert float(gradient_distance(found, goal, bias, flat)) == pytest.approx(expected, abs=1e-5)
    twice = gradient_distance(found.repeat(2, 1, 1), goal.repeat(2, 1, 1), bias, flat)
    assert float(twice) == pytest.approx(2 * expected, abs=1e-5)  # a sum over classes, not their mean
    assert float(gradient_distance(found, 3 * found, bias, flat)) == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("flat", [True, False])
def test_the_slope_of_eq_20_is_what_autograd_finds(bias: bool, flat: bool) -> None:
    found, goal = random(3, C, D).requires_grad_(True), random(3, C, D, seed=1)
    (expected,) = torch.autograd.grad(gradient_distance(found, goal, bias, flat), [found])
    assert torch.allclose(distance_slope(found.detach(), goal, bias, flat), expected, atol=1e-5)


def test_a_gradient_of_zero_has_a_finite_slope() -> None:
    found, goal = torch.zeros(1, C, D), random(1, C, D)
    for bias in (True, False):
        assert torch.allclose(distance_slope(found, goal, bias, flat=False), -goal / 1e-6)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("flat", [True, False])
def test_one_step_of_matching_is_a_double_backward(bias: bool, flat: bool) -> None:
    layer, h, classes = a_head(bias), random(2, 3, D), torch.tensor([1, 3])
    goals = torch.stack([by_autograd(layer, random(6, D, seed=9 + c), torch.full((6,), c)) for c in (1, 3)])
    moved = match_features(h, goals, classes, linear(layer), steps=1, lr=0.1, flat=flat)
    start = h.clone().requires_grad_(True)
    each = [by_autograd(layer, start[i], classes[i].expand(3), create_graph=True) for i in range(2)]
    (slope,) = torch.autograd.grad(gradient_distance(torch.stack(each), goals, bias, flat), [start])
    assert slope.abs().max() > 1e-3
    assert torch.allclose(moved, h - 0.1 * slope, atol=1e-6)
    assert torch.equal(h, random(2, 3, D))  # the given ones stay


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("flat", [True, False])
def test_matching_brings_the_gradients_together(bias: bool, flat: bool) -> None:
    layer, classes = a_head(bias), torch.arange(C)
    goals = torch.stack([by_autograd(layer, random(8, D, seed=20 + c), torch.full((8,), c)) for c in range(C)])
    h, y = random(C, 6, D, seed=3), classes[:, None].expand(C, 6)

    def distance(features: Tensor) -> float:
        return float(gradient_distance(head_gradients(features, y, linear(layer)), goals, bias, flat))

    steps = [h]
    for _ in range(4):
        steps.append(match_features(steps[-1], goals, classes, linear(layer), 100, 0.1, flat))
    distances = [distance(f) for f in steps]
    assert all(b < a for a, b in pairwise(distances))
    found = head_gradients(steps[-1], y, linear(layer))
    for c in range(C):
        assert torch.cosine_similarity(found[c, c, :D], goals[c, c, :D], dim=0) > 0.99  # the row of the class itself
        assert torch.cosine_similarity(found[c].flatten(), goals[c].flatten(), dim=0) > 0.95


def test_one_feature_is_enough_to_align_the_row_of_its_class() -> None:
    layer = a_head()
    goal = by_autograd(layer, random(8, D, seed=30), torch.full((8,), 2))[None]
    moved = match_features(random(1, 1, D, seed=4), goal, torch.tensor([2]), linear(layer), 500, 0.1, False)
    found = head_gradients(moved, torch.tensor([[2]]), linear(layer))
    assert torch.cosine_similarity(found[0, 2, :-1], goal[0, 2, :-1], dim=0) > 0.99


def test_features_as_rows_with_labels() -> None:
    rows = labelled(random(2, 3, D), torch.tensor([4, 1]), torch.device("cpu"))
    assert rows.cut == "head"
    assert rows.y.tolist() == [4, 4, 4, 1, 1, 1]
    assert torch.equal(rows.take(torch.arange(6))[0], random(2, 3, D).flatten(0, 1))
