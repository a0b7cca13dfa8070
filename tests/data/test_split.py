"""From labels to index arrays."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyfed.data.partition import Dirichlet, Domains, Groups, Iid, Parted, Partition, Users
from polyfed.data.sources.base import Dataset
from polyfed.data.split import Split, split_alone, split_dataset
from polyfed.errors import UsageError

Make = Callable[..., Dataset]
TENS = np.repeat(np.arange(10), 100)


def rows_of(split: Split) -> np.ndarray:
    return np.sort(np.concatenate([split.held(k) for k in range(len(split))]))


@settings(max_examples=60, deadline=None)
@given(
    y=st.lists(st.integers(0, 4), min_size=6, max_size=80),
    clients=st.integers(1, 6),
    test=st.sampled_from([0.2, 0.5, 0.9, "none"]),
    val=st.sampled_from([0.0, 0.1, 0.4]),
    seed=st.integers(0, 3),
)
def test_local_splits_are_disjoint_and_complete(
    labelled: Make, wish: Any, y: list[int], clients: int, test: Any, val: float, seed: int
) -> None:
    split = split_dataset(labelled(y), wish(Dirichlet(), clients, test=test, val=val), seed)
    assert rows_of(split).tolist() == list(range(len(y)))
    for train, valid, held in zip(split.train, split.val, split.test, strict=True):
        n = len(train) + len(valid) + len(held)
        assert len(train) >= 1
        if test != "none":
            assert len(held) == (max(int(test * n), 1) if n > 1 else 0)
        rest = n - len(held)
        assert len(valid) == (min(max(int(val * rest), 1), rest - 1) if val else 0)


def test_mirror_follows_shares_of_the_official_test_rows(labelled: Make, wish: Any) -> None:
    data = labelled(TENS, np.repeat(np.arange(10), 50))
    split = split_dataset(data, wish(Dirichlet(alpha=0.3), 8, test="mirror"), 0)
    tests = np.concatenate(split.test)
    assert np.array_equal(np.sort(tests), np.arange(1000, 1500))
    assert rows_of(split).tolist() == list(range(1000))
    for train, test in zip(split.train, split.test, strict=True):
        expected = np.bincount(data.y[train], minlength=10) / 2
        assert np.all(np.abs(np.bincount(data.y[test], minlength=10) - expected) < 1)
    assert split.mirrored
    assert split.notes == {}


def test_mirror_has_the_same_long_tail(labelled: Make, wish: Any) -> None:
    data = labelled(TENS, np.repeat(np.arange(10), 50))
    split = split_dataset(data, wish(Iid(), 4, longtail=10, test="mirror"), 0)
    counts = np.bincount(data.y[np.concatenate(split.test)], minlength=10)
    assert counts[0] == 50
    assert counts[9] == 5
    assert split.notes["mirror_left_out"] == 500 - counts.sum()
    assert len(split.global_test) == 500


def test_distfl_types_share_their_official_test_rows(labelled: Make, wish: Any) -> None:
    data = labelled(np.repeat(np.arange(10), 500), np.repeat(np.arange(10), 1000))
    split = split_dataset(data, wish(Groups(), 100, test="mirror"), 0, limit=400)
    assert {len(rows) for rows in split.train} == {40}
    assert {len(rows) for rows in split.test} == {2000}
    for client in (0, 19, 20, 99):
        kind = client // 20
        for rows in (split.train[client], split.test[client]):
            assert set(data.y[rows]) == {2 * kind, 2 * kind + 1}
    assert split.notes == {"limit_left_out": 1000}


def test_mirror_without_official_test_rows_is_refused(labelled: Make, wish: Any) -> None:
    with pytest.raises(UsageError, match="mirror needs official test samples"):
        split_dataset(labelled(TENS), wish(test="mirror"), 0)


def test_without_official_test_rows_the_global_test_is_the_union_of_the_local_ones(labelled: Make, wish: Any) -> None:
    split = split_dataset(labelled(TENS), wish(), 0)
    assert np.array_equal(split.global_test, np.sort(np.concatenate(split.test)))
    assert len(split.global_test) == 200


def test_limit_comes_before_the_long_tail_before_the_partition(labelled: Make, wish: Any) -> None:
    data = labelled(TENS, [0] * 30)
    split = split_dataset(data, wish(Iid(), 3, longtail=10, test="none"), 0, limit=50)
    counts = np.bincount(data.y[rows_of(split)], minlength=10)
    assert counts[0] == 50
    assert counts[9] == 5
    assert split.notes == {"limit_left_out": 500, "longtail_left_out": 500 - counts.sum()}
    assert split.global_test.tolist() == list(range(1000, 1030))
    assert all(not len(test) for test in split.test)


def test_pooled_users_take_rows_of_both_parts(labelled: Make, wish: Any) -> None:
    users = np.repeat([0, 1, 2], 10)
    names = ("ann", "bob", "cyd")
    data = labelled([0, 1] * 10, [0, 1] * 5, users=users, user_names=names, pooled_users=True)
    split = split_dataset(data, wish(Users(), None, test=0.25), 0)
    assert split.names == names
    assert [len(test) for test in split.test] == [3, 3, 3]  # rounded up
    assert rows_of(split).tolist() == list(range(30))
    assert np.array_equal(split.global_test, np.sort(np.concatenate(split.test)))
    iid = split_dataset(data, wish(Iid(), 2), 0)
    assert rows_of(iid).tolist() == list(range(20))
    assert iid.global_test.tolist() == list(range(20, 30))


def test_users_that_are_not_pooled_are_those_of_the_training_rows(labelled: Make, wish: Any) -> None:
    users = np.repeat([0, 1, 2], 10)
    data = labelled([0, 1] * 10, [0, 1] * 5, users=users, user_names=("a", "b", "c"))
    split = split_dataset(data, wish(Users(), None), 0)
    assert split.names == ("a", "b")
    assert split.global_test.tolist() == list(range(20, 30))


def test_a_user_with_one_sample_trains_on_it_and_is_counted(labelled: Make, wish: Any) -> None:
    data = labelled([0, 1, 0, 1], users=np.array([0, 0, 0, 1]), user_names=("a", "b"))
    split = split_dataset(data, wish(Users(), None), 0)
    assert [len(test) for test in split.test] == [1, 0]
    assert split.train[1].tolist() == [3]
    assert split.notes == {"without_test": 1}


def test_a_long_tail_may_leave_fewer_users(labelled: Make, wish: Any) -> None:
    y = np.repeat(np.arange(4), 40)
    data = labelled(y, users=np.arange(160) // 2, user_names=tuple(map(str, range(80))))
    split = split_dataset(data, wish(Users(), None, longtail=40), 0)
    assert len(split) < 80
    assert all(len(train) for train in split.train)


def test_domain_clients_are_named_after_their_domain(labelled: Make, wish: Any) -> None:
    data = labelled([0, 1] * 20, domains=np.repeat([0, 1], 20), domain_names=("photo", "sketch"))
    split = split_dataset(data, wish(Domains(), 4), 0)
    assert split.names == ("photo-0", "photo-1", "sketch-2", "sketch-3")


def test_clients_are_numbered_so_that_names_sort_like_ids(labelled: Make, wish: Any) -> None:
    ten, eleven = (split_dataset(labelled(TENS), wish(Iid(), count), 0).names for count in (10, 11))
    assert (ten[0], ten[9]) == ("client-0", "client-9")
    assert (eleven[0], eleven[9], eleven[10]) == ("client-00", "client-09", "client-10")
    assert sorted(eleven) == list(eleven)


def test_held_out_clients_are_a_seeded_choice(labelled: Make, wish: Any) -> None:
    first, again, other = (split_dataset(labelled(TENS), wish(Iid(), 20, heldout=8), seed) for seed in (0, 0, 1))
    assert len(first.heldout) == len(set(first.heldout)) == 8
    assert first.heldout == again.heldout != other.heldout
    with pytest.raises(UsageError, match="at most 3"):
        split_dataset(labelled(TENS), wish(Iid(), 4, heldout=4), 0)


def test_same_seed_same_digest_and_split_seed_wins(labelled: Make, wish: Any) -> None:
    data = labelled(TENS, TENS)
    digest = {
        (seed, own): split_dataset(data, wish(Dirichlet(), 5, longtail=5, seed=own), seed, limit=90).digest()
        for seed in (0, 1)
        for own in (None, 7)
    }
    assert digest[0, None] != digest[1, None]
    assert digest[0, 7] == digest[1, 7]
    assert digest[0, None] == split_dataset(data, wish(Dirichlet(), 5, longtail=5), 0, limit=90).digest()


def test_a_foreign_partition_is_checked(labelled: Make, wish: Any) -> None:
    class Greedy(Partition):
        def split(self, labels: Any, clients: Any, classes: Any, rng: Any, origin: Any = None) -> Parted:
            return Parted([np.arange(3), np.arange(2, 5)])

    class Empty(Partition):
        def split(self, labels: Any, clients: Any, classes: Any, rng: Any, origin: Any = None) -> Parted:
            return Parted([np.arange(3), np.arange(0)])

    with pytest.raises(UsageError, match="two clients"):
        split_dataset(labelled(TENS), wish(Greedy()), 0)
    with pytest.raises(UsageError, match="without a sample"):
        split_dataset(labelled(TENS), wish(Empty()), 0)


@pytest.mark.parametrize(
    ("rows", "fits"), [([3, 4, 5], True), ([4, 5, 6], False), ([-1, 3, 4], False), ([2, 3], False)]
)
def test_a_partition_may_give_every_row_once_and_none_that_does_not_exist(
    labelled: Make, wish: Any, rows: list[int], fits: bool
) -> None:
    class Given(Partition):
        def split(self, labels: Any, clients: Any, classes: Any, rng: Any, origin: Any = None) -> Parted:
            return Parted([np.arange(3), np.array(rows)])

    data, options = labelled([0, 1] * 3), wish(Given(), test="none")
    if fits:
        assert [train.tolist() for train in split_dataset(data, options, 0).train] == [[0, 1, 2], rows]
        return
    with pytest.raises(UsageError, match="two clients, or one that does not exist"):
        split_dataset(data, options, 0)


def test_which_rows_the_limit_and_the_long_tail_leave_is_drawn_from_the_seed(labelled: Make, wish: Any) -> None:
    data = labelled(TENS)
    for options in ({"limit": 50}, {"longtail": 10.0}):
        wanted = wish(Iid(), 3, test="none", longtail=options.get("longtail", 1.0))
        left = [tuple(rows_of(split_dataset(data, wanted, seed, options.get("limit"))).tolist()) for seed in range(4)]
        assert len(set(left)) == 4
        for rows in left:
            counts = np.bincount(data.y[list(rows)], minlength=10)
            assert counts.tolist() == sorted(counts.tolist(), reverse=True)


def test_the_long_tail_is_taken_of_the_rows_that_the_limit_left(labelled: Make, wish: Any) -> None:
    y = np.tile(np.arange(4), 30)  # classes take turns, so that positions and labels never agree by chance
    split = split_dataset(labelled(y), wish(Iid(), 2, longtail=8, test="none"), 0, limit=16)
    assert np.bincount(y[rows_of(split)], minlength=4).tolist() == [16, 8, 4, 2]


def test_local_tests_are_drawn_client_by_client(labelled: Make, wish: Any) -> None:
    class Halves(Partition):
        def split(self, labels: Any, clients: Any, classes: Any, rng: Any, origin: Any = None) -> Parted:
            return Parted([np.arange(40), np.arange(40, 80)])

    data = labelled(np.zeros(80, int))
    both = [split_dataset(data, wish(Halves(), test=0.25, val=0.25), seed) for seed in (0, 1)]
    tests = [split.test[k] - 40 * k for split in both for k in (0, 1)]
    assert len({tuple(rows.tolist()) for rows in tests}) == 4, "each client and each seed its own"
    for split in both:
        assert [len(part[k]) for part in (split.train, split.val, split.test) for k in (0, 1)] == [23, 23, 7, 7, 10, 10]


# ---- public samples


@pytest.mark.parametrize("count", [1, 30, 47, 499])
def test_public_samples_are_balanced_as_far_as_there_are_any(labelled: Make, wish: Any, count: int) -> None:
    data = labelled(TENS, np.repeat(np.arange(10), 50)[: 500 - 48])  # two samples of the last class
    make = lambda seed, n: split_dataset(data, wish(Iid(), 4, public=n), seed)  # noqa: E731
    if count >= 452:
        with pytest.raises(UsageError, match=f"split.public={count} leaves no test: .* 452 samples"):
            make(0, count)
        return
    split, whole = make(0, count), make(0, 0)
    assert sorted([*split.public, *split.global_test]) == whole.global_test.tolist()
    held = np.bincount(data.y[split.public], minlength=10)
    assert held.sum() == count
    assert held[:9].max() - held[:9].min() <= 1
    assert held[9] <= 2
    assert split.notes == whole.notes | {"public": count}
    assert make(0, count).digest() == split.digest() != make(1, count).digest()
    assert split.digest() != whole.digest()
    assert all(np.array_equal(a, b) for a, b in zip(split.train + split.test, whole.train + whole.test, strict=True))


@pytest.mark.parametrize("official", [True, False])
def test_public_samples_are_in_nobodys_local_test(labelled: Make, wish: Any, official: bool) -> None:
    data = labelled(TENS, np.repeat(np.arange(10), 50) if official else ())
    split = split_dataset(data, wish(Dirichlet(), 5, test="mirror" if official else 0.2, public=20), 0)
    tests = np.concatenate(split.test)
    assert len(split.public) == 20
    assert not np.isin(split.public, tests).any()
    assert not np.isin(split.public, np.concatenate(split.train)).any()
    assert np.array_equal(np.sort(tests), split.global_test)


def test_a_site_alone_has_no_public_samples(labelled: Make, wish: Any) -> None:
    with pytest.raises(UsageError, match=r"split\.public needs a global test set"):
        split_alone(labelled(TENS), wish(Users(), 2, public=3), 0, 0, ("a", "b"))
