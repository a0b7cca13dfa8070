"""From labels to index arrays."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyfed.data.partition import Dirichlet, Domains, Groups, Iid, Parted, Partition, Users
from polyfed.data.sources.base import Dataset
from polyfed.data.split import Split, split_dataset
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
