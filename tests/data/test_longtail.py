"""The long tail of docs/data.md."""

import numpy as np
import pytest

from polyfed.data.longtail import limited, long_tail, tail_sizes
from polyfed.errors import UsageError
from polyfed.rng import generator


@pytest.mark.parametrize(
    ("classes", "per_class", "factor", "total", "last"),
    [
        (10, 6000, 10, 24516, 600),
        (10, 6000, 50, 16796, 120),
        (10, 6000, 100, 14886, 60),
        (10, 5000, 10, 20431, 500),
        (10, 5000, 50, 13996, 100),
        (10, 5000, 100, 12406, 50),
        (100, 500, 10, 19573, 50),
        (100, 500, 50, 12608, 10),
        (100, 500, 100, 10847, 5),
        (200, 500, 10, 39072, 50),
    ],
)
def test_totals_are_the_published_ones(classes: int, per_class: int, factor: int, total: int, last: int) -> None:
    y = np.repeat(np.arange(classes), per_class)
    kept = long_tail(y, classes, factor, generator(0, "longtail"))
    sizes = np.bincount(y[kept])
    assert len(kept) == len(np.unique(kept)) == total
    assert sizes[0] == per_class
    assert sizes[-1] == last


def test_factor_one_or_one_class_keeps_all() -> None:
    y = np.array([0, 0, 1, 2, 2])
    assert long_tail(y, 3, 1, generator(0, "t")).tolist() == [0, 1, 2, 3, 4]
    assert long_tail(np.zeros(4, int), 1, 2.5, generator(0, "t")).tolist() == [0, 1, 2, 3]


def test_an_uneven_class_never_gives_more_than_it_has() -> None:
    y = np.repeat([0, 1, 2], [100, 5, 90])
    kept = long_tail(y, 3, 4, generator(0, "t"))
    assert np.bincount(y[kept]).tolist() == [100, 5, 25]


def test_the_subset_is_random_and_keyed() -> None:
    y = np.repeat(np.arange(3), 50)
    first, again, other = (long_tail(y, 3, 5, generator(seed, "t")) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("largest", [7, 49, 93, 1000])
def test_the_largest_possible_factor_leaves_one_sample(largest: int) -> None:
    assert tail_sizes(largest, 5, largest)[-1] == 1
    y = np.repeat(np.arange(5), largest)
    assert np.bincount(y[long_tail(y, 5, largest, generator(0, "t"))])[[0, 4]].tolist() == [largest, 1]


def test_impossible_factors_say_what_is_possible() -> None:
    y = np.repeat(np.arange(3), 50)
    with pytest.raises(UsageError, match="must be at least 1"):
        long_tail(y, 3, 0.5, generator(0, "t"))
    with pytest.raises(UsageError, match="at most 50 is possible"):
        long_tail(y, 3, 51, generator(0, "t"))


def test_limit_keeps_so_many_per_class() -> None:
    y = np.repeat([0, 1, 2], [10, 3, 7])
    assert np.bincount(y[limited(y, 3, 5, generator(0, "limit"))]).tolist() == [5, 3, 5]
    assert len(limited(y, 3, None, generator(0, "limit"))) == 20
