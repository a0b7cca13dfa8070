"""Choosing and dealing by class."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from polyfed.data.strata import deal, grouped, hold_out, parts_of, pick, shares
from polyfed.rng import generator

labels = st.lists(st.integers(0, 5), min_size=1, max_size=60).map(lambda values: np.array(values, np.int64))


def test_grouped_sorts_by_label_and_shuffles_within_it() -> None:
    y = np.array([2, 0, 1] * 8)
    orders = [grouped(y, generator(seed, "t")) for seed in range(5)]
    for order in orders:
        assert y[order].tolist() == [0] * 8 + [1] * 8 + [2] * 8
        assert sorted(order.tolist()) == list(range(24))
    for c in range(3):
        assert len({tuple(order[8 * c : 8 * c + 8].tolist()) for order in orders}) == 5


@given(labels, st.lists(st.integers(0, 9), min_size=6, max_size=6))
def test_pick_keeps_that_many_of_each_class(y: np.ndarray, keep: list[int]) -> None:
    chosen = pick(y, np.array(keep), generator(0, "t"))
    sizes = np.bincount(y, minlength=6)
    assert np.array_equal(np.bincount(y[chosen], minlength=6), np.minimum(sizes, keep))
    assert np.all(np.diff(chosen) > 0)


@given(st.lists(st.integers(0, 20), min_size=1, max_size=10), st.data())
def test_shares_add_up_and_stay_within_one_of_the_exact_share(weights: list[int], data: st.DataObject) -> None:
    if not sum(weights):
        return
    total = data.draw(st.integers(0, 50))
    given_ = shares(total, np.array(weights), np.full(len(weights), total))
    exact = total * np.array(weights) / sum(weights)
    assert given_.sum() == total
    assert np.all(np.abs(given_ - exact) < 1)


@given(labels, st.data())
def test_hold_out_takes_exactly_the_count_and_spares_last_samples(y: np.ndarray, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, len(y) - 1))
    kept, held = hold_out(y, count, generator(1, "t"))
    assert len(held) == count
    assert np.array_equal(np.sort(np.concatenate([kept, held])), np.arange(len(y)))
    sizes = np.bincount(y)
    if count <= np.maximum(sizes - 1, 0).sum():  # then no class need lose its last kept sample
        assert set(y[kept]) == set(y)


def test_hold_out_is_stratified() -> None:
    y = np.repeat([0, 1, 2], [50, 30, 20])
    _, held = hold_out(y, 20, generator(0, "t"))
    assert np.bincount(y[held]).tolist() == [10, 6, 4]


def test_hold_out_of_two_different_samples_takes_one() -> None:
    kept, held = hold_out(np.array([3, 7]), 1, generator(0, "t"))
    assert len(kept) == len(held) == 1


def test_parts_of_leaves_out_what_nobody_owns() -> None:
    parts = parts_of(np.array([1, -1, 0, 1, -1]), 3)
    assert [part.tolist() for part in parts] == [[2], [0, 3], []]


def test_deal_follows_the_clients_shares_of_each_class() -> None:
    counts = np.array([[30, 0, 1], [10, 0, 1], [0, 0, 2]])
    y = np.repeat([0, 1, 2], [8, 5, 4])
    parts = deal(y, counts, generator(0, "t"))
    assert [np.bincount(y[p], minlength=3).tolist() for p in parts] == [[6, 0, 1], [2, 0, 1], [0, 0, 2]]


def test_largest_remainders_go_first_and_no_share_beyond_its_room() -> None:
    assert shares(10, np.array([5, 3, 2]), np.full(3, 10)).tolist() == [5, 3, 2]
    assert shares(4, np.array([5, 3, 2]), np.full(3, 4)).tolist() == [2, 1, 1], "0.8 is a larger remainder than 0.2"
    assert shares(3, np.array([1, 1, 1, 1]), np.full(4, 3)).tolist() == [1, 1, 1, 0], "ties: the first"
    assert shares(6, np.array([8, 1, 1]), np.array([2, 3, 3])).tolist() == [2, 2, 2]
    assert shares(9, np.array([1, 1]), np.array([2, 3])).tolist() == [2, 3], "no more than there is room for"


def test_which_samples_are_picked_held_out_and_dealt_is_drawn() -> None:
    y = np.repeat([0, 1], 10)
    for draw in (
        lambda rng: pick(y, np.array([3, 3]), rng),
        lambda rng: hold_out(y, 4, rng)[1],
        lambda rng: deal(y, np.ones((2, 2), int), rng)[0],
    ):
        assert len({tuple(draw(generator(seed, "t")).tolist()) for seed in range(5)}) == 5
