"""Which client has which model: groups from round to round, late clients, and what a checkpoint keeps."""

import math

import pytest
import torch
from torch import Tensor, nn

from polyfed.message import State
from polyfed.models.base import Net
from polyfed.params import Layout, Params
from polyfed.parts.dendrogram import Partition, divergences_from
from polyfed.parts.membership import Clusters, agree

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
