"""Grouping by hand: ACMU's similarities, silhouettes and updates (MuPFL eqs. 7-15), DistFL's divergences and threshold
(eq. 6), and who has which model."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from sklearn.cluster import KMeans
from torch import Tensor, nn

from polyfed.message import State
from polyfed.models.base import Net
from polyfed.params import Layout, Params
from polyfed.parts.cluster import (
    Clusters,
    Grouping,
    Partition,
    agree,
    automatic_threshold,
    cluster_update,
    cosines,
    cut,
    dendrogram,
    divergences,
    divergences_from,
    embedding,
    group,
    group_adaptively,
    group_fixed,
    height_ratios,
    inner_products,
    k_means,
    link,
    partition,
    plane,
    proportionate,
    similarity,
    spread,
)
from polyfed.parts.invert import probabilities

REAL = Path(__file__).resolve().parents[3] / "shared" / "data" / "distfl_responses.npz"


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
    assert torch.linalg.eigvalsh(gram).min() > -1e-9
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


@pytest.mark.parametrize(("apart", "clusters"), [(5e-13, 1), (2e-12, 2)])
def test_updates_that_differ_by_rounding_alone_are_one_cluster(apart: float, clusters: int) -> None:
    gram = torch.ones(4, 4, dtype=torch.float64)
    gram[:2, 2:] = gram[2:, :2] = 1 - apart
    assert group_adaptively(gram, 2, 2, seed=0).kappa == clusters


def test_k_means_takes_the_best_of_ten_restarts() -> None:
    """On these points the tenth is better than the nine before it, and an eleventh would be better still."""
    points = np.random.default_rng(211).normal(size=(40, 2))

    def spread(labels: list[int]) -> float:
        groups = [points[np.array(labels) == label] for label in set(labels)]
        return float(sum(((mine - mine.mean(0)) ** 2).sum() for mine in groups))

    ten = spread(k_means(points, 7, seed=211))
    restarts = {n: KMeans(7, n_init=n, random_state=211).fit(points).inertia_ for n in (9, 10, 11)}
    assert ten == pytest.approx(restarts[10])
    assert restarts[9] > ten + 1e-3 > ten > restarts[11] + 1e-3


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


# ---- DistFL, eq. 6


def answers(n: int, z: int = 6, classes: int = 4, seed: int = 0) -> Tensor:
    return random(n, z, classes, seed=seed).double().softmax(-1)


def test_eq_6_the_divergence_of_two_models_by_hand() -> None:
    p, q = [[0.5, 0.5], [0.9, 0.1]], [[0.25, 0.75], [0.5, 0.5]]
    there = (0.5 * math.log(2) + 0.5 * math.log(2 / 3) + 0.9 * math.log(1.8) + 0.1 * math.log(0.2)) / 2
    back = (0.25 * math.log(0.5) + 0.75 * math.log(1.5) + 0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(5)) / 2
    found = divergences(torch.tensor([p, q], dtype=torch.float64))
    assert found.diag().tolist() == [0, 0]
    assert found[0, 1] == found[1, 0] == pytest.approx((there + back) / 2)
    assert abs(there - back) > 0.01  # so that it matters that both directions count


def test_eq_6_equals_the_divergence_of_the_concatenated_and_renormalised_responses() -> None:
    given = answers(5)
    flat = given.flatten(1) / given.flatten(1).sum(1, keepdim=True)
    each = (flat[:, None] * (flat[:, None].log() - flat[None].log())).sum(-1)
    assert torch.allclose(divergences(given), (each + each.T) / 2, atol=1e-12)


def test_equal_models_have_no_divergence_and_none_is_negative() -> None:
    twice = torch.cat([answers(2), answers(2)])
    found = divergences(twice)
    assert found[0, 2] == pytest.approx(0, abs=1e-15)
    assert (found >= 0).all()


def test_the_divergences_from_one_model_are_its_row() -> None:
    made = answers(5)
    assert torch.allclose(divergences_from(made[2], made), divergences(made)[2], rtol=0, atol=1e-14)


# ---- the dendrogram and its threshold


def matrix(pairs: dict[tuple[int, int], float], n: int) -> Tensor:
    sim = torch.zeros(n, n, dtype=torch.float64)
    for (i, j), value in pairs.items():
        sim[i, j] = sim[j, i] = value
    return sim


def grouped(labels: list[int], inside: float, outside: float, spread: float = 0.0, seed: int = 0) -> Tensor:
    """Divergences of groups, log-normal around two levels."""
    draw, n, pairs = np.random.default_rng(seed), len(labels), {}
    for i in range(n):
        for j in range(i):
            level = inside if labels[i] == labels[j] else outside
            pairs[i, j] = level * math.exp(spread * draw.normal())
    return matrix(pairs, n)


def automatic(sim: Tensor, min_ratio: float = 2.5) -> Partition:
    return cut(sim, "auto", min_ratio, "average")


SIX = {(0, 1): 1.0, (2, 3): 2.0, (4, 5): 3.0}  # three pairs; whatever is not named is far
FAR = {(i, j): 30.0 for i in range(6) for j in range(i + 1, 6)}


def test_average_linkage_by_hand() -> None:
    """0 and 1 at 1, 2 joins at (3 + 5) / 2, 3 joins at (6 + 9 + 12) / 3."""
    sim = matrix({(0, 1): 1.0, (0, 2): 3.0, (1, 2): 5.0, (0, 3): 6.0, (1, 3): 9.0, (2, 3): 12.0}, 4)
    assert dendrogram(sim)[:, 2].tolist() == [1.0, 4.0, 9.0]
    assert dendrogram(sim[:1, :1]).shape == (0, 4)


def test_the_ratios_of_six_clients_by_hand() -> None:
    sim = matrix(FAR | SIX, 6)
    heights = dendrogram(sim)[:, 2].tolist()
    assert heights == [1, 2, 3, 30, 30]
    assert height_ratios(heights) == {2: 1.0, 3: 10.0}  # k goes to N / 2: 3 / 2 and 2 / 1 are no ratios
    found = automatic(sim)
    assert found.labels == [0, 0, 1, 1, 2, 2]
    assert found.threshold == pytest.approx(math.sqrt(3 * 30))
    assert found.lines() == ["3 clusters of 2, 2, 2 clients; best ratio 10.00 at k=3, next 1.00 at k=2; threshold 9.49"]


@pytest.mark.parametrize(
    ("heights", "ratios"),
    [
        ([], {}),
        ([9.0], {}),
        ([1.0, 9.0], {}),  # three clients: no k
        ([1.0, 2.0, 9.0], {2: 4.5}),
        ([1.0, 2.0, 3.0, 9.0], {2: 3.0}),  # five clients: 5 / 2 rounds down
        ([1.0, 2.0, 4.0, 6.0, 9.0], {2: 1.5, 3: 1.5}),
    ],
)
def test_which_ratios_there_are(heights: list[float], ratios: dict[int, float]) -> None:
    assert height_ratios(heights) == ratios


@pytest.mark.parametrize(("clients", "needed"), [(4, 3.0), (5, 3.0), (6, 2.5), (7, 2.5)])
def test_the_least_ratio_is_larger_for_up_to_five_clients(clients: int, needed: float) -> None:
    """A ratio of just that separates, one a hair smaller does not."""
    for ratio, separates in ((needed, True), (math.nextafter(needed, 0), False)):
        heights = [1.0] * (clients - 2) + [ratio]
        assert math.isfinite(automatic_threshold(heights, 2.5)) == separates
    assert automatic_threshold([1.0] * (clients - 2) + [4.0], 2.5) == 2.0  # the geometric mean of 1 and 4


def test_a_larger_least_ratio_holds_for_few_clients_too() -> None:
    assert math.isinf(automatic_threshold([1.0, 1.0, 4.9], 5.0))
    assert math.isfinite(automatic_threshold([1.0, 1.0, 5.0], 5.0))
    assert math.isfinite(automatic_threshold([1.0] * 4 + [1.5], 1.5))
    assert math.isinf(automatic_threshold([1.0] * 3 + [1.5], 1.5))  # five clients: 3 all the same


def test_of_two_equal_ratios_the_smaller_number_of_clusters_wins() -> None:
    heights = [1.0, 1.0, 1.0, 3.0, 9.0]
    assert height_ratios(heights) == {2: 3.0, 3: 3.0}
    assert automatic_threshold(heights, 2.5) == pytest.approx(math.sqrt(27))
    assert automatic_threshold([1.0, 1.0, 1.0, 3.1, 9.0], 2.5) == pytest.approx(math.sqrt(3.1))


@pytest.mark.parametrize("n", [1, 2, 3])
def test_up_to_three_clients_are_one_cluster(n: int) -> None:
    sim = matrix({(0, 1): 0.001, (0, 2): 1.0, (1, 2): 5.0}, 3)[:n, :n]
    found = automatic(sim)
    assert found.labels == [0] * n
    assert found.lines() == ["one cluster: this is FedAvg; too few different models for a ratio; threshold inf"]


def test_identical_models_are_one_cluster() -> None:
    for n in (2, 4, 7, 20):
        found, sim = partition(answers(1).expand(n, -1, -1), "auto", 2.5, "average")
        assert found.labels == [0] * n
        assert found.ratios == {}
        assert sim.max() < 1e-12


def test_a_height_of_nothing_makes_no_ratio() -> None:
    """1e-12 is rounding; half of the clients twice would else be as many clusters as there are pairs."""
    assert height_ratios([0.0, 0.0, 1.0]) == height_ratios([0.0, 1e-12, 1.0]) == {}
    assert height_ratios([0.0, 2e-12, 1.0]) == {2: pytest.approx(5e11)}
    assert height_ratios([0.0, 0.0, 0.0, 2.0, 3.0]) == {2: 1.5}  # the others count
    twice = answers(10, seed=3).repeat(2, 1, 1)
    found, _ = partition(twice, "auto", 2.5, "average")
    assert found.labels == [0] * 20
    assert 10 not in found.ratios


@given(
    some.lists(some.integers(2, 5), min_size=1, max_size=4).filter(lambda sizes: sum(sizes) >= 4),
    some.integers(0, 99),
    some.sampled_from([0.0, 1e-13, 1e-9, 1e-4]),
)
def test_one_near_duplicate_pair_does_not_change_the_partition(sizes: list[int], seed: int, near: float) -> None:
    labels = np.repeat(np.arange(len(sizes)), sizes).tolist()
    sim = grouped(labels, 0.02, 1.0, 0.1, seed)
    assert automatic(sim).labels == labels
    first = int(np.random.default_rng(seed).choice([i for i in range(1, len(labels)) if labels[i] == labels[i - 1]]))
    sim[first, first - 1] = sim[first - 1, first] = near
    assert automatic(sim).labels == labels


def of_counts(counts: list[list[int]]) -> Tensor:
    """Responses to one input: small counts make many divergences equal."""
    each = torch.tensor(counts, dtype=torch.float64)[:, None] + 1
    return each / each.sum(2, keepdim=True)


@given(
    some.lists(some.lists(some.integers(0, 2), min_size=3, max_size=3), min_size=1, max_size=9),
    some.randoms(use_true_random=False),
    some.sampled_from([("auto", 1.01), ("auto", 2.5), (0.02, 2.5), (0.1, 2.5)]),
    some.sampled_from(["average", "components", "greedy"]),
)
def test_the_partition_does_not_depend_on_the_order_even_where_divergences_are_equal(
    counts: list[list[int]], draw: Any, rule: Any, linkage: Any
) -> None:
    order = list(range(len(counts)))
    draw.shuffle(order)
    responses = of_counts(counts)
    found, sim = partition(responses, *rule, linkage)
    turned, again = partition(responses[order], *rule, linkage)
    assert same([found.labels[i] for i in order], turned.labels)
    assert list(dict.fromkeys(turned.labels)) == list(range(turned.kappa))  # numbered as they come
    assert found.threshold == turned.threshold
    assert found.ratios == turned.ratios
    assert np.allclose(sim[order][:, order], again, rtol=0, atol=1e-14)


def test_equal_divergences_that_could_go_either_way_go_the_same_way_for_every_order() -> None:
    """The middle one is as near to the left as to the right, and these two are far apart."""
    left, middle, right = [0.9, 0.1], [0.5, 0.5], [0.1, 0.9]
    responses = torch.tensor([left, middle, right, left, right], dtype=torch.float64)[:, None]
    sim = divergences(responses)
    assert sim[0, 1] == pytest.approx(float(sim[1, 2]), abs=1e-15)
    found = {}
    for order in ([0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 1, 4, 0, 3]):
        labels = partition(responses[order], 1.0, 2.5, "average")[0].labels
        found[tuple(order)] = {frozenset(order[i] for i in range(5) if labels[i] == one) for one in set(labels)}
    assert len(set(map(frozenset, found.values()))) == 1
    assert all(len(groups) == 2 for groups in found.values())


def test_what_is_said() -> None:
    two = automatic(grouped([0, 0, 0, 0, 1, 1], 0.01, 1.0))
    assert two.lines() == ["2 clusters of 4, 2 clients; best ratio 100.00 at k=2, next 1.00 at k=3; threshold 0.1"]
    fixed = cut(grouped([0, 0, 0, 0, 1, 1], 0.01, 1.0), 0.2, 2.5, "average")
    assert fixed.lines() == ["2 clusters of 4, 2 clients; best ratio 100.00 at k=2, next 1.00 at k=3; threshold 0.2"]
    one = automatic(matrix({(0, 1): 1.0, (0, 2): 1.0, (1, 2): 1.0, (0, 3): 2.0, (1, 3): 2.0, (2, 3): 2.0}, 4))
    assert one.lines() == ["one cluster: this is FedAvg; best ratio 2.00 at k=2; threshold inf"]
    alone = cut(grouped([0] * 6, 1.0, 1.0), 0.5, 2.5, "average")
    assert alone.kappa == 6
    assert alone.lines()[1:] == ["every client is a cluster of its own: this is local training"]
    assert len(Partition([0], 0.2).lines()) == 1  # one client is no cluster of its own


# ---- real responses

TYPES = [k // 4 for k in range(20)]
HONEST = [int(k >= 18) for k in range(20)]


@pytest.mark.parametrize(
    ("scenario", "truth", "ratios"),
    [
        ("category", TYPES, (5.3, 33.8)),
        ("flip", HONEST, (3.8, 4.3)),
        ("iid", [0] * 20, (1.1, 1.3)),
        ("har", [0] * 20, (1.1, 1.8)),
        ("pacs", [0] * 16, (1.1, 2.0)),
    ],
)
def test_the_rule_on_real_responses(scenario: str, truth: list[int], ratios: tuple[float, float]) -> None:
    if not REAL.is_file():
        pytest.skip("skipped: no data")
    with np.load(REAL, allow_pickle=False) as real:
        kept = {key: torch.from_numpy(real[key]) for key in real if key.startswith(f"{scenario}_")}
    assert kept
    for key, logits in kept.items():
        found, _ = partition(torch.stack([probabilities(each, 2.0) for each in logits]), "auto", 2.5, "average")
        assert found.labels == truth, key
        assert ratios[0] <= max(found.ratios.values()) <= ratios[1], key


# ---- linking

CHAIN = {(0, 1): 0.1, (1, 2): 0.1, (0, 2): 0.9, (0, 3): 0.9, (1, 3): 0.9, (2, 3): 0.9}


def test_components_follow_chains_and_the_others_do_not() -> None:
    sim = matrix(CHAIN, 4)
    assert link(sim, 0.2, "components") == [0, 0, 0, 1]
    assert link(sim, 0.2, "greedy") == [0, 0, 1, 2]
    assert link(sim, 0.2, "average") in ([0, 0, 1, 2], [0, 1, 1, 2])
    assert link(sim, 0.51, "average") == [0, 0, 0, 1]  # (0.1 + 0.9) / 2 is below
    for linkage, kappa in (("components", 2), ("greedy", 3), ("average", 3)):
        found = cut(sim, 0.2, 2.5, linkage)  # type: ignore[arg-type]
        assert (found.kappa, found.threshold) == (kappa, 0.2)
    transitive = grouped([0, 1, 0, 1, 2], 0.1, 1.0)
    for linkage in ("average", "components", "greedy"):
        assert link(transitive, 0.2, linkage) == [0, 1, 0, 1, 2]  # type: ignore[arg-type]


@pytest.mark.parametrize("linkage", ["average", "components", "greedy"])
def test_who_is_exactly_at_the_threshold_is_not_below_it(linkage: Any) -> None:
    sim = matrix({(0, 1): 0.5}, 2)
    assert link(sim, 0.5, linkage) == [0, 1]
    assert link(sim, math.nextafter(0.5, 1), linkage) == [0, 0]
    assert link(sim, math.inf, linkage) == [0, 0]
    assert link(sim[:1, :1], 0.5, linkage) == [0]


def test_the_automatic_threshold_serves_every_linkage() -> None:
    """A chain inside a group: its ends are farther apart than the threshold, but their group is not."""
    labels = [0] * 4 + [1] * 4
    sim = grouped(labels, 0.1, 9.0)
    sim[0, 3] = sim[3, 0] = 1.5
    heights = dendrogram(sim)[:, 2]
    assert heights[-2] < 0.7  # the mean of 0.1, 0.1 and 1.5
    for linkage in ("average", "components"):
        assert cut(sim, "auto", 2.5, linkage).labels == labels  # type: ignore[arg-type]


def test_greedy_leaves_who_was_taken() -> None:
    sim = matrix({(0, 1): 0.1, (0, 2): 0.9, (1, 2): 0.1}, 3)
    assert link(sim, 0.2, "greedy") == [0, 0, 1]


def test_a_pair_is_linked_by_the_mean_of_both_directions() -> None:
    """The released code links where either direction is near; here both count."""
    p, q = torch.tensor([[0.98, 0.02]]).double(), torch.tensor([[0.70, 0.30]]).double()
    there, back = (float((a * (a.log() - b.log())).sum()) for a, b in ((p, q), (q, p)))
    assert there < 0.3 < back
    limit = 0.4
    assert there < limit < (there + back) / 2
    assert link(divergences(torch.stack([p, q])), limit, "components") == [0, 1]


def test_out_of_proportion() -> None:
    assert proportionate([1.0, 2.0, 3.0, 31.0], 10) == [True, True, True, False]  # the (lower) median is 2
    assert proportionate([1.0, 2.0, 3.0, 20.0], 10) == [True] * 4
    assert proportionate([1.0, math.inf], 10) == [True, False]
    assert proportionate([0.0, 0.0], 10) == [True, True]


# ---- who has which model


def params(value: float) -> Params:
    net = Net(nn.Identity(), nn.Identity(), nn.Linear(1, 1, bias=False))
    return Params(Layout(net), torch.tensor([value]), torch.zeros(0, dtype=torch.int64))


def begun(clients: int) -> Clusters:
    state = State()
    Clusters.begin(state, params(0.0), clients)
    return Clusters(state)


def test_everybody_begins_in_one_cluster() -> None:
    clusters = begun(3)
    assert [clusters.of(c) for c in range(3)] == [0, 0, 0]
    assert clusters.model(2).flat.tolist() == [0]
    assert clusters.forget() == [0]


def test_groups_get_models_of_their_own_and_unused_ones_are_dropped() -> None:
    clusters = begun(4)
    clusters.regroup([[0, 2], [1, 3]])
    assert [clusters.of(c) for c in range(4)] == [1, 2, 1, 2]
    clusters[1], clusters[2] = params(1.0), params(2.0)
    assert [float(clusters.model(c).flat) for c in range(4)] == [1, 2, 1, 2]
    assert clusters.forget() == [1, 2]
    assert sorted(n for n in clusters.state if n.startswith("model_")) == ["model_1", "model_2"]


def test_a_group_that_alone_comes_from_a_cluster_goes_on_as_it() -> None:
    clusters = begun(4)
    clusters.regroup([[0, 1]])  # 2 and 3 were absent
    assert [clusters.of(c) for c in range(4)] == [0, 0, 0, 0]
    assert clusters.state.placed.tolist() == [1, 1, 0, 0]
    clusters.regroup([[0], [1]])
    assert [clusters.of(c) for c in range(4)] == [1, 2, 0, 0]
    clusters.regroup([[0, 1], [2]])
    assert [clusters.of(c) for c in range(4)] == [3, 3, 0, 0]
    assert clusters.known() == [0, 3]


def test_quarantine_is_alone_with_the_old_model_and_not_placed() -> None:
    clusters = begun(3)
    clusters.quarantine(1)
    assert [clusters.of(c) for c in range(3)] == [0, 1, 0]
    assert clusters.model(1) is clusters[0]
    assert clusters.state.placed.tolist() == [1, 0, 1]
    assert clusters.known() == [0]


def settled(clusters: Clusters, clients: list[int], labels: list[int], limit: float = 0.5) -> int:
    """Take up a partition; whether it is stable."""
    clusters.settle(clients, torch.ones(len(clients), 2, 3).double(), Partition(labels, limit))
    return clusters.state.stable


def test_the_same_partition_twice_is_stable() -> None:
    clusters = begun(4)
    assert clusters.state.stable == 0
    for labels, stable in (([0, 0, 1, 1], 0), ([0, 1, 1, 1], 0), ([0, 1, 1, 1], 1), ([0, 0, 1, 1], 0)):
        assert settled(clusters, [0, 1, 2, 3], labels) == stable
    assert clusters.state.partition.tolist() == [0, 0, 1, 1]
    assert (clusters.state.clustered, clusters.state.threshold) == (1, 0.5)


def test_stability_compares_the_clients_both_partitions_know() -> None:
    clusters = begun(6)
    for clients, labels, stable in (
        ([0, 1, 2], [0, 0, 1], 0),
        ([3, 4, 5], [0, 0, 1], 0),  # nobody in common
        ([0, 1, 5], [0, 0, 1], 0),  # one in common: no evidence
        ([1, 3, 5], [0, 1, 2], 1),  # 1 and 5 are apart again, under other numbers
        ([1, 2, 3], [0, 1, 1], 1),  # 1 and 3 are apart again
        ([1, 2, 3], [0, 0, 1], 0),  # 1 and 2 come together
    ):
        assert settled(clusters, clients, labels) == stable
    assert clusters.state.partition.tolist() == [-1, 0, 0, 1, -1, -1]


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ([0, 0, 1], [0, 0, 1], True),
        ([0, 0, 1], [1, 1, 0], True),  # numbers do not matter
        ([0, 0, 1], [0, 1, 1], False),
        ([0, 0, 1], [0, 1, 2], False),  # finer
        ([0, 1, 2], [0, 0, 1], False),  # coarser
        ([0, 0, -1], [1, 1, 0], True),
        ([0, -1, 1], [1, 1, -1], False),  # one client in common
        ([0, 0, -1], [-1, -1, 0], False),
        ([-1, -1, -1], [-1, -1, -1], False),
    ],
)
def test_when_two_partitions_agree(one: list[int], other: list[int], alike: bool) -> None:
    assert agree(torch.tensor(one), torch.tensor(other)) == alike


def test_one_cluster_is_believed_after_five_times_in_a_row() -> None:
    clusters = begun(4)
    everybody = [0, 1, 2, 3]
    assert [settled(clusters, everybody, [0] * 4, math.inf) for _ in range(4)] == [0] * 4
    assert settled(clusters, everybody, [0, 0, 1, 1]) == 0  # two clusters: the count begins anew
    assert [settled(clusters, everybody, [0] * 4, math.inf) for _ in range(5)] == [0, 0, 0, 0, 1]


def test_one_cluster_between_two_partitions_is_not_the_same_twice() -> None:
    clusters = begun(4)
    assert settled(clusters, [0, 1, 2, 3], [0, 0, 1, 1]) == 0
    assert settled(clusters, [0, 1], [0, 0], math.inf) == 0  # together as before, but nobody was told apart
    assert clusters.state.partition.tolist() == [-1] * 4
    assert settled(clusters, [0, 1, 2, 3], [0, 0, 1, 1]) == 0
    assert settled(clusters, [0, 1, 2, 3], [0, 0, 1, 1]) == 1


# ---- who comes late


def leaning(*shares: float) -> Tensor:
    """Responses to two inputs: how much each model leans to the first of two classes."""
    return torch.tensor([[[p, 1 - p]] * 2 for p in shares], dtype=torch.float64)


def test_a_late_client_is_compared_with_the_members_one_by_one() -> None:
    """0 and 1 lean to different sides: their mean is right at 0.5, they themselves are not."""
    clusters = begun(5)
    clusters.settle([0, 1, 2, 3], leaning(0.1, 0.9, 0.3, 0.3), Partition([0, 0, 1, 1], 1.0))
    late = leaning(0.5)[0]
    to_first = (0.4 * math.log(5) - 0.4 * math.log(5 / 9)) / 2  # (p - q)(log p - log q), both classes, over 2
    to_second = (0.2 * math.log(5 / 3) - 0.2 * math.log(5 / 7)) / 2
    assert divergences_from(late, leaning(0.1, 0.9, 0.3)).tolist() == pytest.approx([to_first, to_first, to_second])
    assert clusters.nearest(late) == clusters.of(2)
    exactly = float(divergences_from(late, leaning(0.3)))
    for limit, near in ((exactly, None), (math.nextafter(exactly, 1), clusters.of(2))):  # it must be below
        clusters.state.threshold = limit
        assert clusters.nearest(late) == near


def test_the_mean_over_a_clusters_members_decides() -> None:
    """One member is very near and one is far; in the other cluster both are at some distance."""
    clusters = begun(5)
    clusters.settle([0, 1, 2, 3], leaning(0.5, 0.99, 0.35, 0.65), Partition([0, 0, 1, 1], 9.0))
    assert clusters.nearest(leaning(0.5)[0]) == clusters.of(2)


def test_a_late_client_becomes_a_member() -> None:
    clusters = begun(6)
    clusters.settle([0, 1, 2, 3], leaning(0.1, 0.1, 0.9, 0.9), Partition([0, 0, 1, 1], 0.3))
    clusters.join(4, leaning(0.88)[0], params(4.0))
    assert clusters.of(4) == clusters.of(2)
    assert torch.equal(clusters.state.responses[4], leaning(0.88)[0])
    clusters.join(5, leaning(0.5)[0], params(5.0))  # near none
    assert clusters.of(5) not in {clusters.of(k) for k in range(5)}
    assert clusters.model(5).flat.tolist() == [5]
    assert clusters.state.placed.tolist() == [1] * 6
    assert clusters.nearest(leaning(0.5)[0]) == clusters.of(5)  # the next of its kind joins it


def test_who_is_not_placed_is_no_member() -> None:
    clusters = begun(4)
    clusters.settle([0, 1, 2], leaning(0.1, 0.1, 0.9), Partition([0, 0, 1], 0.5))
    clusters.quarantine(2)
    assert clusters.nearest(leaning(0.9)[0]) is None
    clusters.quarantine(0)
    clusters.quarantine(1)
    assert clusters.nearest(leaning(0.1)[0]) is None  # there is nobody to compare with


def test_all_of_it_is_kept_by_a_checkpoint() -> None:
    clusters = begun(4)
    clusters.settle([0, 1, 2], leaning(0.1, 0.9, 0.1), Partition([0, 1, 0], math.inf))
    again = Clusters(State.decode(clusters.state.encode(), params(0.0).layout))
    assert [again.of(c) for c in range(3)] == [1, 2, 1]
    assert again.state.threshold == math.inf
    assert again.state.undivided == 0
    assert again.model(1).flat.tolist() == [0]
    assert torch.equal(again.state.responses, clusters.state.responses)
    assert again.nearest(leaning(0.8)[0]) == clusters.nearest(leaning(0.8)[0]) == 2


@pytest.mark.parametrize("centred", [False, True])
def test_inner_products_are_those_of_the_whole_rows(centred: bool) -> None:
    """Blocks of columns and of pairs change nothing; the matrix is symmetric bit for bit."""
    rows = random(300, 40)
    whole = rows.double() - rows.double().mean(0) if centred else rows.double()
    found = inner_products(list(rows), centred, side=7)
    assert torch.allclose(found, whole @ whole.T, rtol=0, atol=1e-12)
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
