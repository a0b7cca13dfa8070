"""Verdicts by numbers that were computed by hand: the t interval of paired differences."""

from pathlib import Path

import pytest
from tiny_paper import TINY, fill, item, room, stored

from polyfed.papers.cell import cells_of
from polyfed.papers.found import ItemFound
from polyfed.papers.judge import FAILS, HOLDS, UNDECIDED, UNMEASURED, Interval, together
from polyfed.papers.recipe import Claim, Item
from polyfed.papers.store import Store


def test_the_interval_is_students() -> None:
    """Mean 2, standard deviation 1, n = 3: the half width is 4.30265 / sqrt(3) = 2.48414."""
    found = Interval.of([1.0, 2.0, 3.0])
    assert (found.mean, found.seeds) == (2.0, 3)
    assert found.low == pytest.approx(2 - 2.48414, abs=1e-4)
    assert found.high == pytest.approx(2 + 2.48414, abs=1e-4)


@pytest.mark.parametrize(
    ("differences", "within", "word"),
    [
        ([1.0, 2.0, 3.0], 0.0, UNDECIDED),  # [-0.48, 4.48]
        ([1.0, 2.0, 3.0], 0.5, HOLDS),  # above -0.5
        ([2.0, 2.1, 2.2], 0.0, HOLDS),  # [1.85, 2.35]
        ([-2.0, -2.1, -2.2], 0.0, FAILS),
        ([-2.0, -2.1, -2.2], 2.4, HOLDS),
        ([-2.0, -2.1, -2.2], 2.0, UNDECIDED),
        ([5.0], 0.0, UNDECIDED),  # one seed decides nothing
        ([0.0, 0.0], 0.0, FAILS),  # equal is not better
        ([], 0.0, UNMEASURED),
    ],
)
def test_a_claim_holds_only_if_its_interval_does(differences: list[float], within: float, word: str) -> None:
    assert Interval.of(differences).word(within) == word


def test_one_seed_has_no_interval() -> None:
    assert Interval.of([5.0]).in_words() == "+5.00 with one seed"


@pytest.mark.parametrize(
    ("words", "word"),
    [
        ([HOLDS, HOLDS], HOLDS),
        ([HOLDS, FAILS], FAILS),
        ([HOLDS, UNDECIDED], UNDECIDED),
        ([HOLDS, UNMEASURED], UNDECIDED),
        ([FAILS, UNMEASURED], FAILS),
        ([UNMEASURED, UNMEASURED], UNMEASURED),
        ([], UNMEASURED),
    ],
)
def test_every_pair_must_hold(words: list[str], word: str) -> None:
    assert together(words) == word


def _found(
    tmp_path: Path,
    numbers: dict[tuple[str, str, int], tuple[float, float]],
    claims: list[Claim],
    findings: dict[str, object] | None = None,
) -> ItemFound:
    given = item(room(tmp_path / "recipes"))
    own = {"claims": [c.model_dump() for c in claims], "findings": findings or {}}
    judged = Item.model_validate({**given.model_dump(), **own})
    store, cells = Store(tmp_path / "results"), cells_of(judged, "cpu", seeds=3)
    fill(store, cells, numbers)
    return ItemFound.of(judged, "cpu", cells, store)


A, B = "alpha 1", "alpha 9"


def test_the_last_third_counts_and_the_end_stands_beside(tmp_path: Path) -> None:
    """Differences of the last third are 2.0, 2.1, 2.2 points, those of the end 1, 2, 3."""
    numbers = {(A, "FedAvg", seed): (0.5, 0.5) for seed in range(3)}
    numbers |= {(A, "FedPer", s): (0.52 + 0.001 * s, 0.51 + 0.01 * s) for s in range(3)}
    claim = Claim(says="better", better="FedPer", than=("FedAvg",), column="PA", panels=(A,))
    (verdict,) = _found(tmp_path, numbers, [claim]).verdicts
    assert (verdict.word, verdict.at_end) == (HOLDS, UNDECIDED)
    words = "**holds** (S), +2.10 [+1.85, +2.35] over 3 seeds, by the last round alone: undecided"
    assert verdict.in_words() == words
    assert verdict.pairs[0].end.in_words() == "+2.00 [-0.48, +4.48] over 3 seeds"


def test_what_has_a_number_only_at_the_end_is_compared_with_the_end(tmp_path: Path) -> None:
    """FedAvg rises from 50 in the last third to 60; the tuned model has 58 at the end, and before it was not tuned."""
    numbers = {(A, "FedAvg", seed): (0.50, 0.60 + 0.001 * seed) for seed in range(3)}
    found = _found(tmp_path, numbers, [Claim(says="better", better="FedAvg, tuned", than=("FedAvg",), column="PA")])
    for cell in found.cells:
        if cell.row == "FedAvg, tuned":
            curve = {"round": [2.0, 3.0], "personal.accuracy": [0.50, 0.52]}
            found.current[cell] = stored(cell, 0.58, 0.58, evaluations=curve)
    (verdict,) = found.verdicts
    assert verdict.word == FAILS
    assert verdict.pairs[0].third.mean == pytest.approx(-2.1)


def test_a_claim_of_several_pairs_says_how_many_speak_for_it_and_which_is_the_weakest(tmp_path: Path) -> None:
    numbers = {(panel, "FedAvg", s): (0.50, 0.50) for panel in (A, B) for s in range(3)}
    numbers |= {(A, "FedPer", s): (0.55 + 0.001 * s,) * 2 for s in range(3)}
    numbers |= {(B, "FedPer", s): (0.45 + 0.001 * s,) * 2 for s in range(3)}
    both = Claim(says="better", better="FedPer", than=("FedAvg",), column="PA")
    worse = Claim(says="worse", row=("FedPer",), above=40.0, column="PA")
    said = [verdict.in_words() for verdict in _found(tmp_path, numbers, [both, worse]).verdicts]
    against = (
        "of 2 pairs 1 for it, 1 against it; the weakest, FedPer against FedAvg (alpha 9, PA), -4.90 [-5.15, -4.65]"
    )
    assert said[0] == f"**does not hold** (S), {against} over 3 seeds"
    weakest = "the weakest, alpha 9 / FedPer / PA against 40, +5.10 [+4.85, +5.35] over 3 seeds"
    assert said[1] == f"**holds** (S), both pairs for it; {weakest}"


@pytest.mark.parametrize(
    ("finding", "numbers", "told"),
    [
        ("Tried.", (0.4, 0.41, 0.42), "Tried."),
        ({"cpu": "Tried small.", "paper": "Tried long."}, (0.4, 0.41, 0.42), "Tried small."),
        ({"paper": "Tried long."}, (0.4, 0.41, 0.42), ""),
        ("Tried.", (0.4, 0.5, 0.6), "Tried."),  # undecided
        ("Tried.", (0.7, 0.71, 0.72), ""),  # it holds
        ("Tried.", (), ""),
    ],
)
def test_a_finding_stands_beside_what_does_not_hold_at_its_scale(
    tmp_path: Path, finding: object, numbers: tuple[float, ...], told: str
) -> None:
    measured = {(A, "FedPer", seed): (value, value) for seed, value in enumerate(numbers)}
    claim = Claim(says="above", row=("FedPer",), above=50.0, column="PA", panels=(A,))
    found = _found(tmp_path, measured, [claim], {"above": finding})
    assert found.finding(found.verdicts[0]) == told


def test_only_seeds_that_both_have_are_paired(tmp_path: Path) -> None:
    numbers = {(A, "FedAvg", 0): (0.5, 0.5), (A, "FedAvg", 1): (0.9, 0.9), (A, "FedPer", 0): (0.6, 0.6)}
    claim = Claim(says="better", better="FedPer", than=("FedAvg",), column="PA", panels=(A,))
    (verdict,) = _found(tmp_path, numbers, [claim]).verdicts
    assert verdict.word == UNDECIDED
    assert verdict.pairs[0].third.seeds == 1
    assert verdict.pairs[0].third.mean == pytest.approx(10.0)


def test_panels_values_and_lower_numbers(tmp_path: Path) -> None:
    numbers = {(A, "FedAvg", s): (0.40 + 0.001 * s, 0.4) for s in range(3)}
    numbers |= {(B, "FedAvg", s): (0.50, 0.5) for s in range(3)}
    claims = [
        Claim(says="panels", row=("FedAvg",), better_panel=B, than_panel=(A,), column="PA"),
        Claim(says="lower", row=("FedAvg",), better_panel=B, than_panel=(A,), column="PA", lower=True),
        Claim(says="above", row=("FedAvg",), above=39.0, column="PA"),
        Claim(says="below", row=("FedAvg",), below=45.0, column="PA"),
    ]
    words = [verdict.word for verdict in _found(tmp_path, numbers, claims).verdicts]
    assert words == [HOLDS, FAILS, HOLDS, FAILS]  # below 45 in one panel, above it in the other


def test_an_average_is_over_seeds_that_all_panels_have(tmp_path: Path) -> None:
    text = TINY.replace("  columns: {GA", "  averages: {both: []}\n  columns: {GA", 1)
    text = text.replace("column: PA, expected: F}", "column: PA, expected: F, panels: both}")
    text = text.replace('{"alpha 1": {FedAvg: [30.5, null]}}', "{both: {FedAvg: [null, 30.0]}}")
    given = item(room(tmp_path / "recipes", text))
    store, cells = Store(tmp_path / "store"), cells_of(given, "cpu")
    fill(store, cells, {("alpha 1", "FedAvg", s): (0.2, 0.2) for s in (0, 1)})
    fill(store, cells, {("alpha 9", "FedAvg", 0): (0.4, 0.6)})
    found = ItemFound.of(given, "cpu", cells, store)
    spot = ("both", "FedAvg", "PA")
    assert found.numbers(spot) == {0: pytest.approx(30.0)}
    assert found.numbers(spot, end=True) == {0: pytest.approx(40.0)}
    (line,) = [line for line in found.lines if (line.panel, line.row, line.column) == spot]
    assert line.difference == pytest.approx(10.0)
    assert "FedAvg, tuned" not in {line.row for line in found.lines if line.panel == "both"}
    assert found.verdicts[0].word == UNMEASURED
