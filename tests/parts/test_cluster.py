"""Grouping by updates: cosines, the adaptive number of clusters, and the update of a cluster."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from polyfed.parts.cluster import (
    Grouping,
    cluster_update,
    cosines,
    embedding,
    group,
    group_adaptively,
    group_fixed,
    inner_products,
    plane,
    similarity,
    spread,
)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def alike(updates: Tensor, maps: Tensor | None, alpha: float) -> Tensor:
    """Eq. 8 of updates and maps."""
    return similarity(cosines(updates), None if maps is None else cosines(maps), alpha)


def same(a: list[int], b: list[int]) -> bool:
    """Whether two lists of labels describe the same partition."""
    return len(set(zip(a, b, strict=True))) == len(set(a)) == len(set(b))


# ---- eq. 8


def test_eq_8_similarity_of_updates_and_maps() -> None:
    updates = torch.tensor([[3.0, 4.0], [4.0, 3.0], [0.0, -2.0]])  # cosines 24/25, -4/5, -3/5
    maps = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    found = alike(updates, maps, 0.25)
    root = 1 / math.sqrt(2)
    assert found[0, 1] == pytest.approx(0.25 * 24 / 25)
    assert found[0, 2] == pytest.approx(0.25 * -4 / 5 + 0.75 * root)
    assert found[1, 2] == pytest.approx(0.25 * -3 / 5 + 0.75 * root)
    assert torch.allclose(found.diag(), torch.ones(3, dtype=torch.float64))
    assert torch.equal(alike(updates, None, 0.25), cosines(updates))  # without maps alpha is 1


def test_a_zero_vector_is_like_nobody_and_has_its_true_self_similarity() -> None:
    updates, maps = random(3, 5), random(3, 4, seed=1)
    updates[0], maps[1] = 0, 0
    found = alike(updates, maps, 0.3)
    assert found.diag().tolist() == pytest.approx([0.7, 0.3, 1])
    updates[1] = 0
    assert alike(updates, maps, 0.3).diag().tolist() == pytest.approx([0.7, 0, 1])
    assert torch.isfinite(alike(updates, maps, 0.3)).all()
    tiny = torch.full((2, 3), 1e-40)
    assert torch.allclose(cosines(tiny), torch.ones(2, 2, dtype=torch.float64))


def test_the_spread_is_that_of_different_clients() -> None:
    found = torch.tensor([[1, 0.2, 0.8], [0.2, 1, 0.5], [0.8, 0.5, 1]], dtype=torch.float64)
    assert spread(found) == pytest.approx([0.2, 0.5, 0.8, math.sqrt(0.06)])  # deviations .3, 0 and .3
    assert spread(found[:2, :2]) == pytest.approx([0.2, 0.2, 0.2, 0])
    assert spread(found[:1, :1]) == []


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("zeros", [0, 2])
def test_the_embedding_has_the_distances_and_the_similarities_are_psd(alpha: float, zeros: int) -> None:
    updates, maps = random(9, 30), random(9, 6, seed=1).abs()
    updates[:zeros], maps[1 : 1 + zeros] = 0, 0
    gram = alike(updates, maps, alpha)
    assert torch.linalg.eigvalsh(gram).min() > -1e-6
    points = embedding(gram)
    squares = ((points[:, None] - points[None]) ** 2).sum(-1)
    own = gram.diag().numpy()
    assert np.allclose(squares, own[:, None] + own[None] - 2 * gram.numpy(), atol=1e-6)
    if not zeros:
        assert np.allclose(squares, 2 * (1 - gram.numpy()), atol=1e-6)


# ---- eqs. 9-13


def silhouette_by_hand(d: np.ndarray, labels: list[int]) -> float:
    values = []
    for i, label in enumerate(labels):
        mates = [j for j, other in enumerate(labels) if other == label and j != i]
        if not mates:
            values.append(0.0)  # eq. 11, singletons
            continue
        a = float(np.mean([d[i, j] for j in mates]))  # eq. 9
        others = {other for other in labels if other != label}
        b = min(float(np.mean([d[i, j] for j, x in enumerate(labels) if x == other])) for other in others)  # eq. 10
        values.append((b - a) / max(a, b) if max(a, b) else 0.0)  # eq. 11
    return float(np.mean(values))  # eq. 12


@pytest.mark.parametrize("seed", range(4))
def test_eqs_9_to_13_the_number_of_clusters_with_the_best_silhouette(seed: int) -> None:
    centres = random(3, 12, seed=seed)
    updates = centres[[0, 0, 0, 1, 1, 1, 2, 2]] + 0.4 * random(8, 12, seed=seed + 10)
    gram = cosines(updates)
    found = group_adaptively(gram, 2, 6, seed=1)
    d = (1 - gram).numpy()
    for k, score in found.scores.items():
        assert score == pytest.approx(silhouette_by_hand(d, group_fixed(embedding(gram), k, 1).labels))
    assert list(found.scores) == [2, 3, 4, 5, 6]
    assert found.kappa == max(found.scores, key=lambda k: found.scores[k])  # eq. 13
    assert group_fixed(embedding(gram), found.kappa, 1).labels == found.labels


def test_the_silhouette_of_four_points_by_hand() -> None:
    gram = torch.tensor([[1, 0.8, 0.1, 0], [0.8, 1, 0, 0.1], [0.1, 0, 1, 0.6], [0, 0.1, 0.6, 1]], dtype=torch.float64)
    found = group_adaptively(gram, 2, 2, seed=0)
    near, far = (0.95 - 0.2) / 0.95, (0.95 - 0.4) / 0.95  # a = 0.2 or 0.4, b = (0.9 + 1.0) / 2
    assert found.members() == [[0, 1], [2, 3]] or found.members() == [[2, 3], [0, 1]]
    assert found.scores[2] == pytest.approx((2 * near + 2 * far) / 4)


def test_two_orthogonal_families_are_two_clusters() -> None:
    updates = torch.zeros(8, 40)
    updates[:4, :20], updates[4:, 20:] = 1, 1
    updates += 0.1 * random(8, 40)
    found = group_adaptively(cosines(updates), 2, 6, seed=3)
    assert same(found.labels, [0] * 4 + [1] * 4)


def test_no_number_of_clusters_below_the_least_is_tried() -> None:
    updates = torch.eye(2)[[0, 0, 0, 0, 1, 1, 1, 1]].repeat(1, 20) + 0.1 * random(8, 40)
    found = group_adaptively(cosines(updates), 3, 5, seed=3)
    assert list(found.scores) == [3, 4, 5]
    assert found.kappa >= 3, "although there are two families"


def test_where_nothing_separates_there_is_one_cluster() -> None:
    same_update = random(1, 10).expand(5, 10)
    assert group_adaptively(cosines(same_update), 2, 4, 0).labels == [0] * 5  # all d are 0
    apart = torch.eye(5)  # all d are equal: every silhouette is 0
    found = group_adaptively(cosines(apart), 2, 4, 0)
    assert found.labels == [0] * 5
    assert all(score <= 1e-12 for score in found.scores.values())
    assert group_adaptively(cosines(torch.zeros(4, 3)), 2, 3, 0).kappa == 1
    for few in (1, 2):
        assert group_adaptively(cosines(random(few, 4)), 2, 6, 0).labels == [0] * few


def test_a_tie_goes_to_fewer_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    by_k = {2: [0, 0, 1, 1, 1], 3: [1, 1, 0, 0, 0], 4: [0, 1, 1, 0, 0]}
    monkeypatch.setattr("polyfed.parts.cluster.k_means", lambda points, k, seed: by_k[k])
    updates = torch.eye(2)[[0, 0, 1, 1, 1]] + 0.1 * random(5, 2)
    found = group_adaptively(cosines(updates), 2, 4, 0)
    assert found.scores[2] == found.scores[3] > found.scores[4]
    assert found.labels == by_k[2]


@pytest.mark.parametrize("adaptive", [True, False])
def test_the_partition_does_not_depend_on_the_order(adaptive: bool) -> None:
    centres = random(3, 30, seed=5)
    kinds = [0, 1, 2, 0, 1, 2, 2, 1, 0, 0]
    updates, maps = centres[kinds] + 0.5 * random(10, 30, seed=6), centres[kinds, :7] + 0.3 * random(10, 7, seed=7)
    order = np.random.default_rng(1).permutation(10)
    gram, turned = alike(updates, maps, 0.5), alike(updates[order], maps[order], 0.5)
    kappa: Any = "adaptive" if adaptive else 3
    one = group(gram, embedding(gram), kappa, 2, 6, seed=9)
    other = group(turned, embedding(turned), kappa, 2, 6, seed=9)
    assert same([one.labels[i] for i in order], other.labels)
    assert same(one.labels, kinds)


def test_a_fixed_number_of_clusters_is_kept_down_by_few_points() -> None:
    points = random(6, 3).numpy()
    assert group_fixed(points, 4, 0).kappa == 4
    assert group_fixed(points[:4], 4, 0).kappa == 3
    assert group_fixed(points[:2], 4, 0).kappa == 1
    assert group_fixed(points[:1], 4, 0).kappa == 1
    assert group_fixed(points, 1, 0).labels == [0] * 6


def test_three_clients_are_enough_for_two_clusters() -> None:
    gram = torch.tensor([[1, 0.9, 0.1], [0.9, 1, 0.1], [0.1, 0.1, 1]], dtype=torch.float64)
    assert same(group_adaptively(gram, 2, 6, seed=0).labels, [0, 0, 1])


@pytest.mark.parametrize(("apart", "clusters"), [(5e-7, 1), (2e-6, 2)])
def test_updates_that_differ_by_rounding_alone_are_one_cluster(apart: float, clusters: int) -> None:
    gram = torch.ones(4, 4, dtype=torch.float64)
    gram[:2, 2:] = gram[2:, :2] = 1 - apart
    assert group_adaptively(gram, 2, 2, seed=0).kappa == clusters


# ---- eqs. 7, 14, 15


def test_eqs_7_14_and_15_by_hand() -> None:
    starts = torch.tensor([[0.0, 0.0], [1.0, 1.0], [2.0, 0.0]])
    trained = torch.tensor([[1.0, 2.0], [4.0, 1.0], [0.0, 6.0]])
    # eq. 7: [1 2] [3 0] [-2 6]; eq. 14: the first two share [2 1]
    moved = cluster_update(starts, trained, Grouping([0, 0, 1]))
    assert [row.tolist() for row in moved] == [[2, 1], [3, 2], [0, 6]]
    shares = torch.tensor([0.5, 0.25, 0.25])
    assert (shares @ torch.stack(moved)).tolist() == [1.75, 2.5]  # eq. 15


def test_a_cluster_moves_by_the_sum_of_its_updates() -> None:
    starts, updates, grouping = random(7, 50), random(7, 50, seed=1), Grouping([2, 0, 2, 1, 0, 2, 1])
    moved = torch.stack(cluster_update(starts, starts + updates, grouping))
    for members in grouping.members():
        assert torch.allclose((moved - starts)[members].sum(0), updates[members].sum(0), atol=1e-5)
    assert torch.equal(starts, random(7, 50))  # not in place
    same_start = starts[:1].expand(7, -1)
    all_in_one = torch.stack(cluster_update(same_start, same_start + updates, Grouping([0] * 7)))
    assert torch.allclose(all_in_one.mean(0), (same_start + updates).mean(0), rtol=1e-5, atol=1e-6)  # FedAvg


def test_who_started_together_and_is_in_one_cluster_shares_its_memory() -> None:
    start, trained = random(50), random(4, 50, seed=1)
    moved = cluster_update([start] * 4, list(trained), Grouping([0, 1, 0, 1]))
    assert [moved[0] is moved[2], moved[1] is moved[3], moved[0] is moved[1]] == [True, True, False]
    torch.testing.assert_close(moved[0], trained[::2].mean(0))


def test_cosines_of_differences_are_those_of_the_updates() -> None:
    starts, trained = random(5, 40), random(5, 40, seed=1)
    assert torch.equal(cosines(list(trained), list(starts)), cosines(trained - starts))


@pytest.mark.parametrize("centred", [False, True])
def test_inner_products_are_those_of_the_whole_rows(centred: bool) -> None:
    """Blocks of columns and of pairs change nothing; the matrix is symmetric bit for bit."""
    rows = random(300, 40)
    whole = rows.double() - rows.double().mean(0) if centred else rows.double()
    found = inner_products(list(rows), centred, side=7)
    assert torch.allclose(found, whole @ whole.T, rtol=1e-5, atol=1e-5)
    assert torch.equal(found, found.T)


def test_plane_is_the_two_principal_components() -> None:
    """Against the SVD of the centred rows."""
    rows = torch.randn(6, 40, generator=torch.Generator().manual_seed(1))
    places, shares = plane(list(rows))
    centred = (rows - rows.mean(0)).double()
    u, s, _ = torch.linalg.svd(centred, full_matrices=False)
    assert torch.allclose(places.abs(), (u * s)[:, :2].abs(), atol=1e-6)
    assert torch.allclose(shares, (s**2)[:2] / (s**2).sum())
    assert (places.gather(0, places.abs().argmax(0, keepdim=True)) > 0).all()


def test_plane_of_equal_rows_is_one_point() -> None:
    places, shares = plane([torch.ones(5)] * 3)
    assert places.abs().max() == 0
    assert shares.tolist() == [0, 0]
