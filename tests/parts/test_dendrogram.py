"""Grouping by divergence: the dendrogram, its threshold, and how models are linked."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from torch import Tensor

from polyfed.parts.dendrogram import (
    Partition,
    automatic_threshold,
    cut,
    dendrogram,
    divergences,
    divergences_from,
    gaussian_divergences,
    height_ratios,
    link,
    partition,
    proportionate,
)
from polyfed.parts.invert import probabilities

REAL = Path(__file__).resolve().parents[3] / "shared" / "data" / "distfl_responses.npz"


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def same(a: list[int], b: list[int]) -> bool:
    """Whether two lists of labels describe the same partition."""
    return len(set(zip(a, b, strict=True))) == len(set(a)) == len(set(b))


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


def test_the_divergence_of_normal_distributions_by_hand() -> None:
    """KL(N(0, 1) || N(1, 4)) = ln 2 + 2/8 - 1/2, and back -ln 2 + 5/2 - 1/2; the second channel is the same."""
    p, q = [[0.0, 5.0], [1.0, 2.0]], [[1.0, 5.0], [4.0, 2.0]]
    found = gaussian_divergences(torch.tensor([p, q], dtype=torch.float64))
    both = (math.log(2) + 2 / 8 - 1 / 2) + (-math.log(2) + 5 / 2 - 1 / 2)
    assert found.tolist() == [[0, pytest.approx(both / 2 / 2)], [pytest.approx(both / 2 / 2), 0]]


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
