"""The page's figures: valid for Plotly, with the chart's numbers under the pointer and in the drawing."""

import json
from pathlib import Path
from typing import Any

import pytest
from plotly import graph_objects

from polyfed.report.charts import BYTES, COUNT, PERCENT, Axis, Bars, Chart, Line, Panel, Strip
from polyfed.report.interactive import figure, tint, wide
from polyfed.report.kinds import KINDS, draw
from polyfed.report.page import THEMES
from polyfed.report.runs import Selection, select


@pytest.fixture(scope="module")
def selection(everything: Path) -> Selection:
    return select([everything])


def filled(value: Any, theme: str = "dark") -> Any:
    """What the page's script does: names of colours become colours."""
    match value:
        case str() if value.startswith("--"):
            name, *strength = value.removeprefix("--").split()
            hexed = THEMES[theme][name]
            parts = [int(hexed[at : at + 2], 16) for at in (1, 3, 5)]
            return f"rgba({','.join(map(str, [*parts, *strength]))})" if strength else hexed
        case dict():
            return {key: filled(one, theme) for key, one in value.items()}
        case list():
            return [filled(one, theme) for one in value]
    return value


def panels(selection: Selection, kind: str) -> list[dict[str, Any]]:
    return [figure(panel) for panel in draw(kind, selection).panels]


@pytest.mark.parametrize("kind", KINDS)
def test_plotly_takes_it(selection: Selection, kind: str) -> None:
    for made in panels(selection, kind):
        assert json.loads(json.dumps(made, allow_nan=False)) == made  # plain data
        for theme in THEMES:
            graph_objects.Figure(filled(made, theme))  # refuses what it does not know


@pytest.mark.parametrize("kind", KINDS)
def test_every_panel_says_numbers_under_the_pointer(selection: Selection, kind: str) -> None:
    for made in panels(selection, kind):
        said = [trace["customdata"] for trace in made["data"] if "customdata" in trace]
        assert said
        assert all(any(sign.isdigit() for sign in str(text)) for text in said)


def test_a_line_has_its_band_and_its_words(selection: Selection) -> None:
    band, line, *_ = panels(selection, "rounds")[0]["data"]
    (mark, *_) = draw("rounds", selection).panels[0].marks
    assert isinstance(mark, Line)
    assert line["y"] == pytest.approx([100 * y for y in mark.y])
    assert band["y"] == pytest.approx(
        [100 * (y + s) for y, s in zip(mark.y, mark.spread, strict=True)]
        + [100 * (y - s) for y, s in zip(reversed(mark.y), reversed(mark.spread), strict=True)]
    )
    assert line["customdata"][0] == "<b>fedavg</b><br>round 1<br>accuracy 32.5 % ± 3.5 %<br>2 seeds<br>before finish"
    assert (line["meta"], band["meta"], line["line"]["color"]) == ("fedavg", "fedavg", "--tint-0")


def test_whiskers_and_bands_end_at_100_percent() -> None:
    x, y = Axis("class", "class", names=["cat"]), Axis("recall", "recall", PERCENT)
    (bar,) = figure(Panel("", x, y, [Bars("a", 0, [0.0], [0.9], [0.3])]))["data"]
    assert (bar["error_y"]["array"], bar["error_y"]["arrayminus"]) == (pytest.approx([10]), pytest.approx([30]))
    rounds = Axis("round", "round", COUNT)
    band, line = figure(Panel("", rounds, y, [Line("a", 0, [1, 2], [0.9, 0.1], [0.3, 0.3], [2, 2])]))["data"]
    assert band["y"] == pytest.approx([100, 40, 0, 60])
    assert line["y"] == pytest.approx([90, 10])


def test_a_line_on_another_has_gaps_and_a_star_its_place() -> None:
    x, y = Axis("round", "round", COUNT, finish=3.0), Axis("accuracy", "accuracy", PERCENT)
    lines = [Line("b", 0, [1, 2], [0.5, 0.6], [0, 0], [1, 1], on="a"), Line("b", 0, [3.1], [0.7], [0], [1], "after")]
    made = figure(Panel("", x, y, lines))
    assert made["data"][0]["line"]["dash"] == "6px,9px"
    assert made["data"][1]["customdata"] == ["<b>b</b><br>round 3<br>accuracy 70.0 %<br>after finish"]
    assert made["layout"]["xaxis"]["ticktext"][-1] == "finish"


def test_what_comes_from_files_is_text(selection: Selection) -> None:
    made = [one for kind in KINDS for one in panels(selection, kind)]
    for trace in (trace for one in made for trace in one["data"]):
        trace.pop("meta")  # shown nowhere: a legend's button finds its lines by it
    texts = json.dumps(made)
    assert "<b>lab</b>" not in texts
    assert "&lt;b&gt;lab&lt;/b&gt;" in texts
    assert "</script>" not in texts


def test_units_of_axes() -> None:
    line = [Line("a", 0, [1, 30], [1, 2], [0, 0], [1, 1])]
    made = figure(Panel("", Axis("round", "round", COUNT), Axis("accuracy", "accuracy", PERCENT), line))["layout"]
    assert (made["xaxis"]["dtick"], made["yaxis"]["ticksuffix"]) == (5, " %")
    made = figure(Panel("", Axis("b", "bytes", BYTES), Axis("n", "n"), line))["layout"]
    assert (made["xaxis"]["tickformat"], made["xaxis"]["ticksuffix"]) == ("~s", "B")


def test_names_on_an_axis_are_thinned() -> None:
    names = Axis("class", "class", names=[f"c{i}" for i in range(100)])
    bars = Bars("a", 0, list(range(100)), [1.0] * 100, [0.0] * 100)
    panel = Panel("", names, Axis("n", "n"), [bars])
    assert figure(panel)["layout"]["xaxis"]["ticktext"][:3] == ["c0", "c3", "c6"]
    assert wide(panel)


def test_colours() -> None:
    assert [tint(0), tint(9), tint(-1), tint(1, 0.5)] == ["--tint-0", "--tint-1", "--faint", "--tint-1 0.5"]


def test_strips_write_the_worst_below_and_the_best_above() -> None:
    strip = Strip("a", 0, 0, [0.2, 0.6, 0.9], ["p", "q", "r"])
    made = figure(Panel("", Axis("accuracy", "accuracy", PERCENT), Axis("", "method", names=["a"]), [strip]))
    names = made["data"][-1]
    assert (names["text"], names["textposition"]) == (["p", "r"], ["bottom right", "top left"])
    assert names["x"] == pytest.approx([20, 90])


def test_charts_are_not_changed_by_drawing(selection: Selection) -> None:
    chart = draw("rounds", selection)
    before = chart.frame()
    for panel in chart.panels:
        figure(panel)
    assert isinstance(chart, Chart)
    assert chart.frame().equals(before)
