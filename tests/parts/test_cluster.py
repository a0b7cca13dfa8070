"""Grouping by hand: ACMU's similarities, silhouettes and updates (MuPFL eqs. 7-15), DistFL's divergences and threshold
(eq. 6, methods.md 5.3), and who has which model."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from polyfed.message import State
from polyfed.models.base import Net
from polyfed.params import Layout, Params
from polyfed.parts.cluster import (
    Clusters,
    Grouping,
    Partition,
    Threshold,
    automatic_threshold,
    cluster_update,
    cosines,
    divergences,
    embedding,
    group,
    group_adaptively,
    group_fixed,
    inner_products,
    link,
    partition,
    plane,
    proportionate,
    similarity,
)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def same(a: list[int], b: list[int]) -> bool:
    """Whether two lists of labels describe the same partition."""
    return len(set(zip(a, b, strict=True))) == len(set(a)) == len(set(b))


# ---- eq. 8


def test_eq_8_similarity_of_updates_and_maps() -> None:
    updates = torch.tensor([[3.0, 4.0], [4.0, 3.0], [0.0, -2.0]])  # cosines 24/25, -4/5, -3/5
    maps = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    found = similarity(updates, maps, 0.25)
    root = 1 / math.sqrt(2)
    assert found[0, 1] == pytest.approx(0.25 * 24 / 25)
    assert found[0, 2] == pytest.approx(0.25 * -4 / 5 + 0.75 * root)
    assert found[1, 2] == pytest.approx(0.25 * -3 / 5 + 0.75 * root)
    assert torch.allclose(found.diag(), torch.ones(3, dtype=torch.float64))
    assert torch.equal(similarity(updates, None, 0.25), cosines(updates))  # without maps alpha is 1


def test_a_zero_vector_is_like_nobody_and_has_its_true_self_similarity() -> None:
    updates, maps = random(3, 5), random(3, 4, seed=1)
    updates[0], maps[1] = 0, 0
    found = similarity(updates, maps, 0.3)
    assert found.diag().tolist() == pytest.approx([0.7, 0.3, 1])
    updates[1] = 0
    assert similarity(updates, maps, 0.3).diag().tolist() == pytest.approx([0.7, 0, 1])
    assert torch.isfinite(similarity(updates, maps, 0.3)).all()
    tiny = torch.full((2, 3), 1e-40)
    assert torch.allclose(cosines(tiny), torch.ones(2, 2, dtype=torch.float64))


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("zeros", [0, 2])
def test_the_embedding_has_the_distances_and_the_similarities_are_psd(alpha: float, zeros: int) -> None:
    updates, maps = random(9, 30), random(9, 6, seed=1).abs()
    updates[:zeros], maps[1 : 1 + zeros] = 0, 0
    gram = similarity(updates, maps, alpha)
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
    gram = similarity(updates, None, 1.0)
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
    found = group_adaptively(similarity(updates, None, 1.0), 2, 6, seed=3)
    assert same(found.labels, [0] * 4 + [1] * 4)


def test_where_nothing_separates_there_is_one_cluster() -> None:
    same_update = random(1, 10).expand(5, 10)
    assert group_adaptively(similarity(same_update, None, 1.0), 2, 4, 0).labels == [0] * 5  # all d are 0
    apart = torch.eye(5)  # all d are equal: every silhouette is 0
    found = group_adaptively(similarity(apart, None, 1.0), 2, 4, 0)
    assert found.labels == [0] * 5
    assert all(score <= 1e-12 for score in found.scores.values())
    assert group_adaptively(similarity(torch.zeros(4, 3), None, 1.0), 2, 3, 0).kappa == 1
    for few in (1, 2):
        assert group_adaptively(similarity(random(few, 4), None, 1.0), 2, 6, 0).labels == [0] * few


def test_a_tie_goes_to_fewer_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    by_k = {2: [0, 0, 1, 1, 1], 3: [1, 1, 0, 0, 0], 4: [0, 1, 1, 0, 0]}
    monkeypatch.setattr("polyfed.parts.cluster.k_means", lambda points, k, seed: by_k[k])
    updates = torch.eye(2)[[0, 0, 1, 1, 1]] + 0.1 * random(5, 2)
    found = group_adaptively(similarity(updates, None, 1.0), 2, 4, 0)
    assert found.scores[2] == found.scores[3] > found.scores[4]
    assert found.labels == by_k[2]


@pytest.mark.parametrize("adaptive", [True, False])
def test_the_partition_does_not_depend_on_the_order(adaptive: bool) -> None:
    centres = random(3, 30, seed=5)
    kinds = [0, 1, 2, 0, 1, 2, 2, 1, 0, 0]
    updates, maps = centres[kinds] + 0.5 * random(10, 30, seed=6), centres[kinds, :7] + 0.3 * random(10, 7, seed=7)
    order = np.random.default_rng(1).permutation(10)
    gram, turned = similarity(updates, maps, 0.5), similarity(updates[order], maps[order], 0.5)
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


# ---- eqs. 7, 14, 15


def test_eqs_7_14_and_15_by_hand() -> None:
    starts = torch.tensor([[0.0, 0.0], [1.0, 1.0], [2.0, 0.0]])
    trained = torch.tensor([[1.0, 2.0], [4.0, 1.0], [0.0, 6.0]])
    updates = trained - starts  # eq. 7: [1 2] [3 0] [-2 6]
    moved = cluster_update(starts, updates, Grouping([0, 0, 1]))  # eq. 14: the first two share [2 1]
    assert [row.tolist() for row in moved] == [[2, 1], [3, 2], [0, 6]]
    shares = torch.tensor([0.5, 0.25, 0.25])
    assert (shares @ torch.stack(moved)).tolist() == [1.75, 2.5]  # eq. 15


def test_a_cluster_moves_by_the_sum_of_its_updates() -> None:
    starts, updates, grouping = random(7, 50), random(7, 50, seed=1), Grouping([2, 0, 2, 1, 0, 2, 1])
    moved = torch.stack(cluster_update(starts, updates, grouping))
    for members in grouping.members():
        assert torch.allclose((moved - starts)[members].sum(0), updates[members].sum(0), atol=1e-5)
    assert torch.equal(starts, random(7, 50))  # not in place
    same_start = starts[:1].expand(7, -1)
    all_in_one = torch.stack(cluster_update(same_start, updates, Grouping([0] * 7)))
    assert torch.allclose(all_in_one.mean(0), (same_start + updates).mean(0), rtol=1e-5, atol=1e-6)  # FedAvg


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


# ---- the threshold


def matrix(pairs: dict[tuple[int, int], float], n: int) -> Tensor:
    sim = torch.zeros(n, n, dtype=torch.float64)
    for (i, j), value in pairs.items():
        sim[i, j] = sim[j, i] = value
    return sim


def grouped(
    labels: list[int], inside: float, outside: float, spread: float = 0.0, seed: int = 0, more: float | None = None
) -> Tensor:
    """Divergences of groups, log-normal around two levels; the log-sd inside the groups may be another."""
    draw, n, pairs = np.random.default_rng(seed), len(labels), {}
    for i in range(n):
        for j in range(i):
            together = labels[i] == labels[j]
            wide = more if together and more is not None else spread
            pairs[i, j] = (inside if together else outside) * math.exp(wide * draw.normal())
    return matrix(pairs, n)


def sequence(values: list[float], n: int) -> Tensor:
    """A matrix whose pairs have these values, in any order."""
    assert len(values) == n * (n - 1) // 2
    places = [(i, j) for i in range(n) for j in range(i)]
    return matrix(dict(zip(places, values, strict=True)), n)


def test_the_threshold_is_the_geometric_mean_of_the_two_sides_of_the_widest_gap() -> None:
    found = automatic_threshold(grouped([0, 0, 0, 1, 1, 1], 0.01, 1.0), 1.1)
    assert found.value == pytest.approx(0.1)
    assert found.gap == pytest.approx(math.log(100))
    assert found.second == pytest.approx(0)


@pytest.mark.parametrize("n", [4, 5, 6, 7])
def test_the_bounds_of_the_cut_are_exact(n: int) -> None:
    """At least ceil(N / 2) values below and at least N - 1 above: one place further there is no cut."""
    pairs, least = n * (n - 1) // 2, math.ceil(n / 2)
    for below in range(1, pairs):
        found = automatic_threshold(sequence([0.01] * below + [1.0] * (pairs - below), n), 1.1)
        allowed = below >= least and pairs - below >= n - 1
        assert (found.value == pytest.approx(0.1)) == allowed, (n, below)
        assert math.isinf(found.value) != allowed


@pytest.mark.parametrize("n", [1, 2, 3])
def test_up_to_three_clients_are_one_cluster(n: int) -> None:
    sim = sequence([0.001, 1.0, 5.0][: n * (n - 1) // 2], n)
    assert partition(sim, "auto", 1.1, "components").labels == [0] * n
    assert math.isinf(automatic_threshold(sim, 1.1).value)


def test_the_smallest_gap_that_separates() -> None:
    labels = [0, 0, 0, 1, 1, 1]
    assert partition(grouped(labels, 1.0, math.exp(1.11)), "auto", 1.1, "components").kappa == 2
    assert partition(grouped(labels, 1.0, math.exp(1.09)), "auto", 1.1, "components").kappa == 1
    assert partition(grouped(labels, 1.0, math.exp(1.09)), "auto", 1.0, "components").kappa == 2


def test_identical_models_are_one_cluster() -> None:
    same_answers = answers(1).expand(6, -1, -1)
    found = partition(divergences(same_answers), "auto", 1.1, "components")
    assert found.labels == [0] * 6
    assert len(found.lines()) == 1


def test_one_near_duplicate_pair_does_not_change_the_partition() -> None:
    labels = [0] * 4 + [1] * 4 + [2] * 4
    sim = grouped(labels, 0.02, 1.0, 0.1)
    before = partition(sim, "auto", 1.1, "components")
    sim[0, 1] = sim[1, 0] = 1e-9
    after = partition(sim, "auto", 1.1, "components")
    assert before.labels == after.labels == labels
    assert after.threshold.value == pytest.approx(before.threshold.value)


def naive(sim: Tensor) -> list[int]:
    """The widest gap anywhere, without the two bounds."""
    n = len(sim)
    pairs = sim[tuple(torch.triu_indices(n, n, 1))].log().sort().values
    at = int((pairs[1:] - pairs[:-1]).argmax()) + 1
    return link(sim, math.exp(float(pairs[at - 1] + pairs[at]) / 2), greedy=False)


def test_the_claim_of_the_spec_three_clusters_of_twenty_separated_by_e_3() -> None:
    """methods.md 5.3: with one near-duplicate pair recovery falls from 100 % to 0 %, the bounds restore 100 %."""
    labels = [0] * 7 + [1] * 7 + [2] * 6
    plain, spoilt, bounded = 0, 0, 0
    for seed in range(50):
        sim = grouped(labels, 1.0, math.exp(3), 0.2, seed)
        plain += same(naive(sim), labels)
        sim[0, 1] = sim[1, 0] = 1e-4
        spoilt += same(naive(sim), labels)
        bounded += same(partition(sim, "auto", 1.1, "components").labels, labels)
    assert (plain, spoilt, bounded) == (50, 0, 50)


def test_the_claim_of_the_spec_a_wide_spread_inside_the_groups_is_often_one_cluster() -> None:
    """methods.md 5.3: with log-sd 0.6 inside the groups one cluster in about 80 % of runs, which must not be silent."""
    labels = [0] * 7 + [1] * 7 + [2] * 6
    sims = (grouped(labels, 1.0, math.exp(3), 0.3, seed, more=0.6) for seed in range(100))
    found = [partition(sim, "auto", 1.1, "components") for sim in sims]
    single = [f for f in found if f.kappa == 1]
    assert 60 <= len(single) <= 90
    assert all("though divergences differ" in f.lines()[1] for f in single)
    assert all(same(f.labels, labels) for f in found if f.kappa > 1)


def test_what_is_said() -> None:
    two = partition(grouped([0, 0, 0, 1, 1, 1], 0.01, 1.0), "auto", 1.1, "components")
    assert two.lines() == ["2 clusters; threshold 0.1, log-gap 4.61, next 0.00"]
    given = partition(grouped([0, 0, 0, 1, 1, 1], 0.01, 1.0), 0.2, 1.1, "components")
    assert given.lines() == ["2 clusters; threshold 0.2, log-gap 4.61, next 0.00"]  # the gap is logged every time
    values = [math.exp(0.3 * i) for i in range(15)]
    smeared = partition(sequence(values, 6), "auto", 1.1, "components")
    assert smeared.kappa == 1
    assert "one cluster, though divergences differ 67-fold" in smeared.lines()[1]
    alone = partition(sequence(values, 6), 0.5, 1.1, "components")
    assert alone.kappa == 6
    assert "local training" in alone.lines()[1]
    assert len(Partition([0], Threshold(0.2)).lines()) == 1  # one client is no cluster of its own


# ---- linking

CHAIN = {(0, 1): 0.1, (1, 2): 0.1, (0, 2): 0.9, (0, 3): 0.9, (1, 3): 0.9, (2, 3): 0.9}


def test_components_follow_chains_and_greedy_does_not() -> None:
    sim = matrix(CHAIN, 4)
    assert link(sim, 0.2, greedy=False) == [0, 0, 0, 1]
    assert link(sim, 0.2, greedy=True) == [0, 0, 1, 2]
    assert partition(sim, 0.2, 1.1, "greedy").labels == [0, 0, 1, 2]
    transitive = grouped([0, 1, 0, 1, 2], 0.1, 1.0)
    assert link(transitive, 0.2, greedy=True) == link(transitive, 0.2, greedy=False) == [0, 1, 0, 1, 2]


def test_greedy_leaves_who_was_taken() -> None:
    sim = matrix({(0, 1): 0.1, (0, 2): 0.9, (1, 2): 0.1}, 3)
    assert link(sim, 0.2, greedy=True) == [0, 0, 1]


def test_a_pair_is_linked_by_the_mean_of_both_directions() -> None:
    """The released code links where either direction is near; here both count (methods.md 5.2)."""
    p, q = torch.tensor([[0.98, 0.02]]).double(), torch.tensor([[0.70, 0.30]]).double()
    there, back = (float((a * (a.log() - b.log())).sum()) for a, b in ((p, q), (q, p)))
    assert there < 0.3 < back
    limit = 0.4
    assert there < limit < (there + back) / 2
    assert link(divergences(torch.stack([p, q])), limit, greedy=False) == [0, 1]


def test_the_partition_by_divergence_does_not_depend_on_the_order() -> None:
    labels = [0, 1, 2, 0, 1, 2, 0, 0, 1]
    sim = grouped(labels, 0.05, 1.0, 0.3, seed=4)
    order = np.random.default_rng(2).permutation(9)
    found = partition(sim, "auto", 1.1, "components").labels
    turned = partition(sim[order][:, order], "auto", 1.1, "components").labels
    assert same(found, labels)
    assert same([found[i] for i in order], turned)


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


def test_a_partition_is_stable_only_for_the_same_clients() -> None:
    clusters = begun(4)
    assert clusters.state.stable == 0
    for clients, labels, stable in (
        ([0, 1, 2], [0, 0, 1], 0),
        ([0, 1, 2], [0, 0, 1], 1),
        ([0, 1, 3], [0, 0, 1], 0),
        ([1, 2, 3], [0, 0, 1], 0),  # the same labels, other clients
        ([1, 2, 3], [0, 0, 1], 1),
        ([1, 2, 3], [0, 1, 1], 0),
    ):
        clusters.settle(clients, Partition(labels, Threshold(0.5)))
        assert clusters.state.stable == stable
    assert clusters.state.partition.tolist() == [-1, 0, 1, 1]
    assert (clusters.state.clustered, clusters.state.threshold) == (1, 0.5)


@pytest.mark.parametrize(("spread", "stable"), [(9.0, 1), (11.0, 0)])
def test_together_for_want_of_a_gap_is_never_stable(spread: float, stable: int) -> None:
    clusters = begun(3)
    for _ in range(2):
        clusters.settle([0, 1, 2], Partition([0, 0, 0], Threshold(float("inf"), spread=spread)))
    assert clusters.state.stable == stable


def test_all_of_it_is_kept_by_a_checkpoint() -> None:
    clusters = begun(3)
    clusters.settle([0, 1, 2], Partition([0, 1, 0], Threshold(math.inf)))
    again = Clusters(State.decode(clusters.state.encode(), params(0.0).layout))
    assert [again.of(c) for c in range(3)] == [1, 2, 1]
    assert again.state.threshold == math.inf
    assert again.model(1).flat.tolist() == [0]


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
