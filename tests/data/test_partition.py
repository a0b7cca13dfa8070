"""Every partition: disjoint, complete but for what is counted, nobody empty, the same bits twice."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyfed.data import dirichlet
from polyfed.data.partition import (
    Dirichlet,
    Domains,
    Groups,
    Incomplete,
    Parted,
    Partition,
    Shards,
    Users,
    partitions,
)
from polyfed.errors import UsageError
from polyfed.rng import generator

CLASSES = 5
VARIANTS = ("class", "class_capped", "feddf", "client")


@st.composite
def problems(draw: st.DrawFn) -> tuple[Partition, np.ndarray, int, int]:
    """A partition, labels of at most five classes, a feasible number of clients, a seed."""
    labels = np.array(draw(st.lists(st.integers(0, CLASSES - 1), min_size=12, max_size=200)), np.int64)
    clients = draw(st.integers(1, len(labels) // 2))
    least = draw(st.sampled_from([None, 0, len(labels) // clients]))
    alpha = draw(st.sampled_from([1e-3, 0.05, 0.5, 10.0]))
    variant = draw(st.sampled_from(VARIANTS))
    if variant == "class_capped" and least is None:
        least = min(10, len(labels) // clients)
    drawn: list[Partition] = [
        partitions.build("iid", "split"),
        Dirichlet(alpha=alpha, variant=variant, min=least),
        Shards(shards=draw(st.integers(1, len(labels) // clients))),
        Incomplete(classes=draw(st.sampled_from(["uniform", 1, 2, CLASSES]))),
    ]
    return draw(st.sampled_from(drawn)), labels, clients, draw(st.integers(0, 3))


def cut(problem: tuple[Partition, np.ndarray, int, int]) -> Parted:
    partition, labels, clients, seed = problem
    return partition.split(labels, clients, CLASSES, generator(seed, "partition"))


@settings(max_examples=300, deadline=None)
@given(problems())
def test_partitions_are_disjoint_complete_and_deterministic(
    problem: tuple[Partition, np.ndarray, int, int],
) -> None:
    partition, labels, clients, _ = problem
    parted = cut(problem)
    everything = np.concatenate(parted.parts)
    assert len(parted.parts) == clients
    assert len(np.unique(everything)) == len(everything)
    assert len(everything) + parted.notes.get("dropped", 0) == len(labels)
    assert min(map(len, parted.parts)) >= max(1, getattr(partition, "min", 0) or 0)
    again = cut(problem)
    assert all(np.array_equal(a, b) for a, b in zip(parted.parts, again.parts, strict=True))
    assert parted.notes == again.notes
    assert all(parted.notes.values())


def test_iid_and_shards_are_equal_parts() -> None:
    labels = np.repeat(np.arange(10), 20)
    iid = partitions.build("iid", "split").split(labels, 8, 10, generator(0, "t"))
    assert {len(part) for part in iid.parts} == {25}
    shards = Shards(shards=2).split(labels, 10, 10, generator(0, "t"))
    assert {len(part) for part in shards.parts} == {20}
    assert max(len(np.unique(labels[part])) for part in shards.parts) <= 2


@pytest.mark.parametrize("variant", VARIANTS)
def test_five_hundred_clients_at_alpha_005_with_a_hundred_classes(variant: str) -> None:
    labels = np.repeat(np.arange(100), 500)
    parted = Dirichlet(alpha=0.05, variant=variant).split(labels, 500, 100, generator(0, "t"))
    assert sum(map(len, parted.parts)) == 50_000
    assert min(map(len, parted.parts)) >= (10 if variant == "class_capped" else 1)


@pytest.mark.parametrize(("variant", "draws"), [("class", 100), ("class_capped", 100), ("client", 500)])
def test_a_dirichlet_is_drawn_once_and_never_again(variant: str, draws: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = dirichlet._shares
    monkeypatch.setattr(dirichlet, "_shares", lambda *a: calls.append(a) or real(*a))
    labels = np.repeat(np.arange(100), 10)
    parted = Dirichlet(alpha=0.05, variant=variant, min=2).split(labels, 500, 100, generator(0, "t"))
    assert len(calls) == draws
    assert parted.notes["moved"] > 0
    assert {len(part) for part in parted.parts} == {2}


def test_the_repair_is_silent_where_it_is_not_needed() -> None:
    labels = np.repeat(np.arange(10), 100)
    free = Dirichlet(alpha=5.0).split(labels, 5, 10, generator(0, "t"))
    bound = Dirichlet(alpha=5.0, min=10).split(labels, 5, 10, generator(0, "t"))
    assert bound.notes == {}
    assert all(np.array_equal(a, b) for a, b in zip(free.parts, bound.parts, strict=True))


def test_alpha_governs_the_skew() -> None:
    labels = np.repeat(np.arange(10), 200)

    def mean_classes(alpha: float, variant: str) -> float:
        parted = Dirichlet(alpha=alpha, variant=variant, min=0).split(labels, 20, 10, generator(0, "t"))
        return float(np.mean([len(np.unique(labels[part])) for part in parted.parts]))

    for variant in VARIANTS:
        assert mean_classes(0.05, variant) < 5 < mean_classes(100.0, variant)


def test_capped_clients_stop_near_their_fair_share() -> None:
    labels = np.repeat(np.arange(10), 200)
    free, capped = (
        Dirichlet(alpha=0.1, variant=v, min=0).split(labels, 20, 10, generator(0, "t"))
        for v in ("class", "class_capped")
    )
    assert max(map(len, capped.parts)) <= 100 + 200  # a full client gets nothing more, the last class may overshoot
    assert np.std([len(p) for p in capped.parts]) < np.std([len(p) for p in free.parts])


def test_feddf_parts_are_equal() -> None:
    labels = np.repeat(np.arange(10), 53)
    parted = Dirichlet(alpha=0.1, variant="feddf").split(labels, 23, 10, generator(0, "t"))
    assert {len(part) for part in parted.parts} == {23, 24}


@given(st.integers(1, 40), st.integers(0, 5), st.integers(1, 12))
def test_incomplete_covers_every_class(clients: int, seed: int, classes: int) -> None:
    labels = np.repeat(np.arange(classes), 50)
    parted = Incomplete().split(labels, clients, classes, generator(seed, "t"))
    assert set(labels[np.concatenate(parted.parts)]) == set(range(classes))
    assert parted.notes.get("dropped", 0) < clients * classes


def test_incomplete_clients_have_their_number_of_classes_and_equal_shares() -> None:
    labels = np.repeat(np.arange(10), 601)
    parted = Incomplete(classes=3).split(labels, 30, 10, generator(1, "t"))
    added = parted.notes.get("classes_added", 0)
    held = [np.bincount(labels[part], minlength=10) for part in parted.parts]
    assert sum(int((h > 0).sum()) for h in held) == 30 * 3 + added
    for c in range(10):
        assert len({int(h[c]) for h in held if h[c]}) == 1


def test_incomplete_reports_the_class_nobody_drew() -> None:
    parted = Incomplete(classes=1).split(np.repeat(np.arange(4), 5), 2, 4, generator(0, "t"))
    assert parted.notes["classes_added"] >= 2
    assert sum(map(len, parted.parts)) == 20


def test_incomplete_keeps_a_class_rarer_than_its_owners() -> None:
    labels = np.repeat([0, 1], [100, 2])
    parted = Incomplete(classes=2).split(labels, 10, 2, generator(0, "t"))
    assert (labels[np.concatenate(parted.parts)] == 1).sum() == 2


def test_groups_are_the_types_of_distfl() -> None:
    labels = np.tile(np.arange(10), 400)
    parted = Groups().split(labels, 100, 10, generator(0, "t"))
    for client, part in enumerate(parted.parts):
        kind = client // 20
        assert np.bincount(labels[part], minlength=10).tolist() == [
            20 if c in (2 * kind, 2 * kind + 1) else 0 for c in range(10)
        ]
    tests = Groups().mirror(np.zeros((100, 10), int), np.repeat(np.arange(10), 1000), generator(0, "t"))
    assert {len(test) for test in tests} == {2000}
    assert tests[0][0] == 0
    assert tests[20][0] == 2000


def test_users_are_the_clients_and_those_left_out_are_counted() -> None:
    user = np.array([4, 4, 2, 9, 2, 2])
    parted = Users().split(np.zeros(6, int), None, 1, generator(0, "t"), user)
    assert [part.tolist() for part in parted.parts] == [[2, 4, 5], [0, 1], [3]]
    assert parted.origins == [2, 4, 9]
    fewer = Users().split(np.zeros(6, int), 2, 1, generator(0, "t"), user)
    assert fewer.notes == {"users_left_out": 1, "dropped": 1}
    assert fewer.origins == [2, 4]


@pytest.mark.parametrize(
    ("n", "fraction", "up"), [(347, 0.25, 87), (30, 0.1, 3), (100, 0.07, 7), (4, 0.25, 1), (1, 0.2, 1), (9, 0.2, 2)]
)
def test_users_round_up(n: int, fraction: float, up: int) -> None:
    assert Users().test_count(n, fraction) == up
    assert Users(rounding="down").test_count(n, fraction) == max(int(n * fraction), 1)


def test_domains_are_cut_into_equal_clients() -> None:
    domain = np.repeat([0, 1, 2], [40, 20, 60])
    parted = Domains().split(np.zeros(120, int), 6, 1, generator(0, "t"), domain)
    assert [len(part) for part in parted.parts] == [20, 20, 10, 10, 30, 30]
    assert [set(domain[part]) for part in parted.parts] == [{0}, {0}, {1}, {1}, {2}, {2}]
    assert parted.origins == [0, 0, 1, 1, 2, 2]


# ---- every random step is drawn from the seed


def over_seeds(partition: Partition, labels: np.ndarray, clients: int, classes: int, many: int = 10) -> list[Parted]:
    """The same partition under several seeds."""
    return [partition.split(labels, clients, classes, generator(seed, "t")) for seed in range(many)]


def own_classes(parted: Parted, labels: np.ndarray) -> list[set[int]]:
    return [set(labels[part].tolist()) for part in parted.parts]


def test_iid_parts_are_drawn() -> None:
    labels = np.zeros(20, int)
    drawn = over_seeds(partitions.build("iid", "split"), labels, 4, 1)
    assert len({tuple(parted.parts[0].tolist()) for parted in drawn}) == 10


def test_which_samples_make_a_shard_and_whose_it_is_are_drawn_apart() -> None:
    labels = np.repeat(np.arange(4), 10)
    drawn = over_seeds(Shards(shards=1), labels, 8, 4)
    piles = {frozenset(frozenset(part.tolist()) for part in parted.parts) for parted in drawn}
    assert len(piles) == 10, "samples are shuffled within their class before they are cut"
    hands = {tuple(int(labels[part[0]]) for part in parted.parts) for parted in drawn}
    assert len(hands) == 10, "shards are dealt at random"
    assert all(sorted(hand) == [0, 0, 1, 1, 2, 2, 3, 3] for hand in hands)


def test_how_many_classes_a_client_has_and_which_are_drawn() -> None:
    labels = np.repeat(np.arange(4), 60)
    numbers = [len(own) for parted in over_seeds(Incomplete(), labels, 20, 4) for own in own_classes(parted, labels)]
    assert set(numbers) == {2, 3, 4}, "from two to all of them"
    sets = {tuple(map(frozenset, own_classes(p, labels))) for p in over_seeds(Incomplete(classes=2), labels, 6, 4)}
    assert len(sets) == 10


def test_which_samples_an_owner_gets_is_drawn() -> None:
    labels = np.repeat(np.arange(2), 10)
    drawn = over_seeds(Incomplete(classes=2), labels, 2, 2)  # everybody owns everything
    assert len({frozenset(tuple(part.tolist()) for part in parted.parts) for parted in drawn}) == 10


def test_who_of_the_owners_of_a_rare_class_gets_it_is_drawn() -> None:
    labels = np.repeat([0, 1], [100, 2])
    drawn = over_seeds(Incomplete(classes=2), labels, 10, 2)
    lucky = {k for parted in drawn for k, own in enumerate(own_classes(parted, labels)) if 1 in own}
    assert len(lucky) > 5, "not always the first two"


def test_who_gets_a_class_that_nobody_drew_is_drawn() -> None:
    labels = np.repeat(np.arange(10), 6)
    drawn = over_seeds(Incomplete(classes=1), labels, 3, 10)
    assert all(parted.notes["classes_added"] >= 7 for parted in drawn)
    given = [[k for k, own in enumerate(own_classes(parted, labels)) if len(own) > 1] for parted in drawn]
    assert {k for clients in given for k in clients} == {0, 1, 2}
    assert len({tuple(map(frozenset, own_classes(parted, labels))) for parted in drawn}) == 10


def test_who_of_a_group_or_a_domain_gets_which_samples_is_drawn() -> None:
    labels = np.zeros(20, int)
    groups = over_seeds(Groups(groups=1), labels, 2, 1)
    assert len({tuple(parted.parts[0].tolist()) for parted in groups}) == 10
    domain = np.repeat([0, 1], 10)
    cuts = [Domains().split(labels, 4, 1, generator(seed, "t"), domain).parts[0] for seed in range(10)]
    assert len({tuple(part.tolist()) for part in cuts}) > 8


TEN = np.repeat(np.arange(5), 2)


@pytest.mark.parametrize(
    ("partition", "clients", "origin", "says"),
    [
        (partitions.build("iid", "split"), 11, None, "at most 10 clients are possible"),
        (partitions.build("iid", "split"), None, None, "split.clients must be given"),
        (Dirichlet(min=3), 4, None, "split.min=3: 4 clients with at least 3 samples each need 12 samples"),
        (Dirichlet(variant="class_capped"), 4, None, "a minimum of 2"),
        (Dirichlet(variant="feddf", min=3), 4, None, "possible: at most 3 clients"),
        (Shards(shards=3), 4, None, "at most 2 shards per client"),
        (Shards(shards=2), 5, None, None),
        (partitions.build("iid", "split"), 10, None, None),
        (Dirichlet(min=2), 5, None, None),
        (Incomplete(classes=6), 4, None, "split.classes=6 is more than the 5 classes"),
        (Groups(), 4, None, "at most 4 groups are possible"),
        (Groups(groups=6), 8, None, "at most 5 groups are possible"),
        (Groups(groups=1), 11, None, "at most 10 clients"),
        (Groups(groups=5), 10, None, None),
        (Users(), 2, None, "needs data whose samples have users"),
        (Users(), 3, TEN // 3, "split.clients=3 is more than the 2 users"),
        (Domains(), 2, None, "needs data whose samples have domains"),
        (Domains(), 3, TEN // 3, "cannot be shared equally by 2 domains; 4 would do"),
        (Domains(), 10, TEN // 4, "a domain has 2 samples for 5 clients"),
    ],
)
def test_infeasible_requests_say_what_would_do(
    partition: Partition, clients: int | None, origin: np.ndarray | None, says: str | None
) -> None:
    if says is None:
        assert len(partition.split(TEN, clients, 5, generator(0, "t"), origin).parts) == clients
        return
    with pytest.raises(UsageError, match=says):
        partition.split(TEN, clients, 5, generator(0, "t"), origin)


def test_a_group_with_too_few_samples_is_named() -> None:
    with pytest.raises(UsageError, match="classes 1 to 1 has 1 samples for 3 clients"):
        Groups(groups=2).split(np.repeat([0, 1], [30, 1]), 6, 2, generator(0, "t"))


def test_parameters_are_checked() -> None:
    with pytest.raises(UsageError, match=r"'split.alpha'.*greater than 0"):
        partitions.build({"name": "dirichlet", "alpha": 0}, "split")
    with pytest.raises(UsageError, match=r"'split.classes': expected a whole number from 1 on or 'uniform'"):
        partitions.build({"name": "incomplete", "classes": "some"}, "split")
    with pytest.raises(UsageError, match=r"unknown key 'split.alpah'"):
        partitions.build({"name": "dirichlet", "alpah": 1}, "split")
