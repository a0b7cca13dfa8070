"""Minimum sizes by repair."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyfed.data.repair import repair
from polyfed.data.strata import parts_of
from polyfed.errors import UsageError


def plainly(parts: list[list[int]], labels: np.ndarray, least: int) -> int:
    """The rule of docs/data.md word by word, slowly."""
    moved = 0
    while min(map(len, parts)) < least:
        giver = max(range(len(parts)), key=lambda k: (len(parts[k]), -k))
        taker = min(range(len(parts)), key=lambda k: (len(parts[k]), k))
        counts = np.bincount(labels[parts[giver]])
        frequent = int(np.argmax(counts))
        sample = [row for row in parts[giver] if labels[row] == frequent][-1]
        parts[giver].remove(sample)
        parts[taker].append(sample)
        moved += 1
    return moved


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=5, max_size=60),
    st.integers(0, 6),
)
def test_it_does_what_the_plain_rule_does(rows: list[tuple[int, int]], wanted: int) -> None:
    owner, labels = (np.array(column) for column in zip(*rows, strict=True))
    least = min(wanted, len(rows) // 5)
    parts = parts_of(owner, 5)
    slow = [part.tolist() for part in parts]
    assert repair(parts, labels, least) == plainly(slow, labels, least)
    assert [part.tolist() for part in parts] == slow
    assert min(map(len, parts)) >= least


def test_it_moves_nothing_where_the_minimum_holds() -> None:
    parts = [np.arange(3), np.arange(3, 9)]
    before = [part.copy() for part in parts]
    assert repair(parts, np.zeros(9, int), 3) == 0
    assert all(np.array_equal(a, b) for a, b in zip(parts, before, strict=True))


def test_too_few_samples_is_an_error_that_says_what_is_possible() -> None:
    with pytest.raises(UsageError, match="need 12 samples, but there are 7; possible: at most 1 clients"):
        repair([np.arange(4), np.arange(4, 7)], np.zeros(7, int), 6)
