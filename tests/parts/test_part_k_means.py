"""K-means and silhouettes, beside scikit-learn's and by hand."""

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.metrics import silhouette_score

from polyfed.parts import k_means as part
from polyfed.parts.k_means import k_means, silhouette


def points(seed: int, n: int = 40) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, 2))


def inertia(rows: np.ndarray, labels: list[int]) -> float:
    groups = [rows[np.array(labels) == label] for label in set(labels)]
    return float(sum(((mine - mine.mean(0)) ** 2).sum() for mine in groups))


@pytest.mark.parametrize("k", [2, 3, 6])
def test_its_groups_are_as_tight_as_those_of_scikit_learn(k: int) -> None:
    for seed in range(5):
        rows = points(seed)
        expected = KMeans(k, n_init=10, random_state=seed).fit(rows).inertia_
        assert inertia(rows, k_means(rows, k, seed)) <= 1.03 * expected


def test_everybody_is_nearest_to_the_mean_of_its_own_group() -> None:
    rows = points(3)
    labels = np.array(k_means(rows, 5, seed=1))
    means = np.stack([rows[labels == one].mean(0) for one in range(5)])
    assert (((rows[:, None] - means) ** 2).sum(2).argmin(1) == labels).all()


def test_families_that_lie_apart_are_found() -> None:
    kinds = np.array([0, 1, 2, 3] * 5)
    rows = 10 * np.eye(4)[kinds] + np.random.default_rng(0).normal(size=(20, 4))
    labels = np.array(k_means(rows, 4, seed=0))
    assert ((labels[:, None] == labels) == (kinds[:, None] == kinds)).all()


def test_the_best_of_all_searches_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, found = points(211), []
    for searches in range(1, 11):
        monkeypatch.setattr(part, "RESTARTS", searches)
        found.append(inertia(rows, k_means(rows, 7, seed=211)))
    assert found == sorted(found, reverse=True)
    assert found[-1] < found[0] - 1e-3, "the others had something to add"


def test_the_seed_decides() -> None:
    rows = points(5)
    assert k_means(rows, 6, seed=1) == k_means(rows, 6, seed=1)
    assert len({tuple(k_means(rows, 6, seed=s)) for s in range(8)}) > 1


@pytest.mark.parametrize(("rows", "groups"), [([0, 0, 0, 0], 1), ([0, 0, 1, 1], 2), ([0, 1, 2, 3], 3)])
def test_equal_points_cannot_fill_three_groups(rows: list[float], groups: int) -> None:
    labels = k_means(np.array(rows, dtype=float)[:, None], 3, seed=0)
    assert len(set(labels)) == groups
    assert all(labels[i] == labels[j] for i in range(4) for j in range(4) if rows[i] == rows[j])


def test_centres_are_drawn_by_their_squared_distance() -> None:
    x = torch.tensor([[0.0], [1.0], [3.0]], dtype=torch.double)
    draws = torch.tensor([[0.0, 0.05], [0.0, 0.15], [0.99, 0.5]], dtype=torch.double)
    # from 0 the squares are 0, 1, 9: the first tenth of the draws takes 1; from 3 they are 9, 4, 0
    assert part._scattered(x, draws)[..., 0].tolist() == [[0, 1], [0, 3], [3, 0]]


def test_empty_groups_start_again_at_the_farthest_points() -> None:
    x = torch.tensor([[0.0], [1.0], [5.0], [9.0]], dtype=torch.double)
    near = torch.tensor([[0.0, 1.0, 25.0, 81.0]], dtype=torch.double)
    centres = part._means(x, torch.tensor([[1, 1, 1, 1]]), near, 3)
    assert centres[0, :, 0].tolist() == [9.0, 3.75, 5.0]


def test_silhouettes_are_those_of_scikit_learn() -> None:
    rows = torch.from_numpy(points(1, 12))
    distances = torch.cdist(rows, rows).fill_diagonal_(0)
    for labels in ([0] * 6 + [1] * 6, [0, 1, 2] * 4, [0] * 10 + [1, 2], [5, 5, 2, 2] * 3):
        assert silhouette(distances, labels) == pytest.approx(
            silhouette_score(distances.numpy(), labels, metric="precomputed")
        )


def test_equal_points_in_two_groups_have_no_silhouette() -> None:
    assert silhouette(torch.zeros(4, 4, dtype=torch.double), [0, 0, 1, 1]) == 0
