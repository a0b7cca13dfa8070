"""What MAP's demos are made of, by hand: distances, rows of a head, a learner of some classes, a plane of features."""

import pytest
import torch

from polyfed.papers.demos import Shown, demo_of
from polyfed.papers.demos.lone import lone_learner, mean_distance, mean_norm, proxies, rows_of, some_features
from polyfed.papers.demos.planar import WITH_RELU, WITHOUT
from polyfed.papers.demos.proxy_training import _statistics
from polyfed.parts.losses import cross_entropy

DIGITS = {"data": {"name": "digits", "limit": 20}, "train": {"lr": 0.05, "batch": 16}}


def test_a_distance_is_the_mean_over_all_pairs_with_oneself() -> None:
    rows = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    assert mean_distance(rows, rows) == pytest.approx(10 / 4)
    assert mean_norm(rows) == pytest.approx(2.5)


def test_statistics_tell_observed_and_missing_proxies_apart() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.0, 5.0], [1.0, 0.0]])
    found = _statistics(rows, 2 * rows, observed=2)
    assert (found["observed"], found["missing"]) == (5.0, 1.0)
    assert (found["observed gradient"], found["missing gradient"]) == (10.0, 2.0)
    assert found["M-M"] == 0.0
    assert found["O-M"] == pytest.approx((20**0.5 + 26**0.5) / 2)


def test_a_lone_learner_sees_some_classes_and_a_missing_row_without_gradient_stays() -> None:
    _, client = lone_learner(0, {**DIGITS, "model": {"name": "mlp", "width": 0.05}}, classes=3)
    assert set(client.data.y.tolist()) == {0, 1, 2}
    before, total = proxies(client), torch.zeros_like(proxies(client))
    assert torch.equal(before, client.model.head.weight)
    assert client.fit(cross_entropy, epochs=1, correct=lambda grad: total.add_(rows_of(client, grad))) > 0
    # plain gradient descent moves the rows by the sum of their gradients
    assert torch.allclose(proxies(client), before - 0.05 * total, atol=1e-5)


@pytest.mark.parametrize(("model", "negative"), [(WITH_RELU, False), (WITHOUT, True)])
def test_features_lie_in_a_plane(model: str, negative: bool) -> None:
    world, client = lone_learner(0, {"data": {"name": "digits", "limit": 20, "size": 32}, "model": {"name": model}}, 10)
    features, labels = some_features(client.model, world.federation.global_test, each=4)
    assert features.shape == (40, 2)
    assert sorted(labels.tolist()) == sorted(4 * list(range(10)))
    assert bool((features < 0).any()) == negative


def test_every_demo_of_map_has_a_picture_of_its_own() -> None:
    for name in ("proxies", "proxy-training", "targets", "two-clients"):
        assert demo_of(name).draw is not None, name


def test_the_plane_of_a_seed_whose_features_died_is_not_drawn() -> None:
    from polyfed.papers.demos import Demo
    from polyfed.papers.demos.map_pictures import _alive

    dead, alive = (Demo({}, {"features": scale * torch.ones(2, 2).numpy()}) for scale in (0.0, 1.0))
    assert _alive([Shown("a", 1, alive), Shown("a", 0, dead)]).seed == 1
    assert _alive([Shown("a", 1, dead), Shown("a", 0, dead)]).seed == 0
