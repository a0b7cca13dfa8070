"""The critical-difference diagram: methods by mean rank, each with half the difference to both sides."""

from pathlib import Path

import pytest

from polyfed.measure.ranks import ranking
from polyfed.report.charts import Dots
from polyfed.report.kinds import KINDS
from polyfed.report.kinds.ranks import MOST, rank_chart
from polyfed.report.print import save
from polyfed.report.runs import Selection, Shown

SCORES = {"good": [0.9, 0.8, 0.7], "fair": [0.5, 0.6, 0.75], "poor": [0.1, 0.2, 0.3]}


def selection(scores: dict[str, list[float]]) -> Selection:
    """Finished runs with these accuracies, a seed each."""
    return Selection(
        [
            Shown(Path(f"{row}-{seed}"), row, {}, {"seed": seed}, {"personal": {"accuracy": value}})
            for row, values in scores.items()
            for seed, value in enumerate(values)
        ]
    )


def test_rows_stand_by_rank_with_half_the_critical_difference() -> None:
    chart = KINDS["ranks"].draw(selection(SCORES))
    assert chart is not None
    (panel,) = chart.panels
    (mark,) = panel.marks
    assert isinstance(mark, Dots)
    assert list(panel.y.names or ()) == ["good", "fair", "poor"]
    assert list(mark.x) == pytest.approx([4 / 3, 5 / 3, 3.0])
    found = ranking({row: dict(enumerate(values)) for row, values in SCORES.items()})
    assert found is not None
    assert mark.spread is not None
    assert list(mark.spread[0]) == pytest.approx([found.critical / 2] * 3)
    assert panel.rule == pytest.approx(4 / 3 + found.critical / 2)
    assert "over 3 settings and seeds" in chart.caption


def test_a_row_that_lacks_a_seed_is_left_out() -> None:
    chart = KINDS["ranks"].draw(selection({**SCORES, "new": [0.95]}))
    assert chart is not None
    assert "new" not in (chart.panels[0].y.names or ())


def test_too_few_or_too_many_rows_give_none() -> None:
    assert KINDS["ranks"].draw(selection({"a": [0.1, 0.2], "b": [0.2, 0.3]})) is None
    assert rank_chart({str(row): {0: row, 1: row} for row in range(MOST + 1)}) is None


def test_it_is_printed_with_its_data(tmp_path: Path) -> None:
    chart = rank_chart({row: dict(enumerate(values)) for row, values in SCORES.items()})
    assert chart is not None
    data = save(chart, tmp_path / "ranks.svg")
    lines = data.read_text().splitlines()
    assert lines[0] == "rank,method,name,rank std,method std"
    assert [line.split(",")[1] for line in lines[1:]] == ["good", "fair", "poor"]
