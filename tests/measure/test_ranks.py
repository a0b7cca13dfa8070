"""Ranks by hand, and the critical difference of the tables."""

import pytest

from polyfed.measure.ranks import Ranking, ranking


def test_ranks_are_means_over_blocks_and_ties_share() -> None:
    """Block 0: a 1, b 2, c 3. Block 1: b 1, a and c tie at 2.5."""
    found = ranking({"a": {0: 0.9, 1: 0.5}, "b": {0: 0.8, 1: 0.6}, "c": {0: 0.7, 1: 0.5}})
    assert found is not None
    assert found.ranks == {"b": 1.5, "a": 1.75, "c": 2.75}
    assert list(found.ranks) == ["b", "a", "c"]
    assert found.blocks == 2


def test_the_critical_difference_is_demsars() -> None:
    """Demsar 2006, table 5: q for 4 rows at 0.05 is 2.569; over 14 data sets the difference is 1.25."""
    scores = {name: {block: place + 0.1 * block for block in range(14)} for place, name in enumerate("dcba")}
    found = ranking(scores)
    assert found is not None
    assert found.critical == pytest.approx(2.569 * (4 * 5 / (6 * 14)) ** 0.5, abs=1e-3)
    assert found.critical == pytest.approx(1.25, abs=0.01)
    assert list(found.ranks) == ["a", "b", "c", "d"]
    assert found.p < 1e-6


def test_friedman_sees_nothing_where_rows_take_turns() -> None:
    turns = {name: {block: float((block + place) % 3) for block in range(6)} for place, name in enumerate("abc")}
    found = ranking(turns)
    assert found is not None
    assert found.p == pytest.approx(1.0)
    assert set(found.ranks.values()) == {2.0}


def test_a_block_that_somebody_lacks_does_not_count() -> None:
    found = ranking({"a": {0: 3.0, 1: 3.0, 2: 0.0}, "b": {0: 2.0, 1: 2.0}, "c": {0: 1.0, 1: 1.0, 2: 9.0}})
    assert found is not None
    assert (found.blocks, found.ranks) == (2, {"a": 1.0, "b": 2.0, "c": 3.0})


@pytest.mark.parametrize("scores", [{"a": {0: 1.0, 1: 1.0}, "b": {0: 1.0, 1: 0.0}}, {n: {0: 1.0} for n in "abc"}, {}])
def test_too_little_gives_no_ranking(scores: dict[str, dict[int, float]]) -> None:
    assert ranking(scores) is None


def test_groups_are_the_largest_sets_that_do_not_differ() -> None:
    found = Ranking({"a": 1.0, "b": 2.0, "c": 2.5, "d": 4.0, "e": 9.0}, 6, 0.01, 1.6)
    assert found.groups() == [["a", "b", "c"], ["c", "d"]]


def test_rows_that_tie_everywhere_differ_in_nothing() -> None:
    found = ranking({name: {0: 0.5, 1: 0.7} for name in "abc"})
    assert found is not None
    assert (found.ranks, found.p) == ({"a": 2.0, "b": 2.0, "c": 2.0}, 1.0)
