"""Pages and pictures come from the store alone; the page of results in docs/ is what the command writes."""

import math
from pathlib import Path

import pytest
from tiny_paper import TINY, item, room, stored

from polyfed.errors import DataError, UsageError
from polyfed.papers import recipe as room_of_recipes
from polyfed.papers.cell import cells_of
from polyfed.papers.demos import Demo, Shown, demo_of
from polyfed.papers.drawings import DRAWINGS, chart_of, picture
from polyfed.papers.found import ItemFound
from polyfed.papers.image import Picture
from polyfed.papers.judge import FAILS
from polyfed.papers.listing import found_of
from polyfed.papers.page import results_page
from polyfed.papers.paper_page import html_page
from polyfed.papers.recipe import Item, find_items
from polyfed.papers.store import Store
from polyfed.report.charts import Dots, Histogram, Line

REPO = Path(__file__).parents[2]


def test_the_page_of_results_is_what_the_store_says() -> None:
    """After new cells or another source: polyfed reproduce --write-docs docs/results.md."""
    assert (REPO / "docs" / "results.md").read_text(encoding="utf-8") == results_page(Store.open(REPO / "results"))


def test_the_store_is_small() -> None:
    sizes = [file.stat().st_size for file in (REPO / "results").rglob("*.json")]
    assert sum(sizes) < 5e6
    assert max(sizes, default=0) < 20_000


def _filled(tmp_path: Path, figure: dict[str, object]) -> ItemFound:
    """Every cell with numbers that differ by row, and clients and classes beside."""
    given = item(room(tmp_path / "recipes"))
    drawn = Item.model_validate({**given.model_dump(), "figure": figure})
    store, cells = Store(tmp_path / "results"), cells_of(drawn, "cpu")
    for place, cell in enumerate(cells):
        value = 0.3 + 0.01 * place
        kept = {"clients": [value, 0.5, 0.9], "classes": [value, None, 0.4], "clusters": [0, None, 1]}
        finals = {"personal.accuracy": value, "global.accuracy": value / 2}
        store.put(cell, stored(cell, value, value, kept=kept, final=finals))
    return ItemFound.of(drawn, "cpu", cells, store)


def test_every_claim_that_does_not_hold_says_what_was_tried() -> None:
    """In two sentences or three, as a finding of the recipe; the claims that lack one are named here."""
    store = Store.open(REPO / "results")
    begun = sorted({cell.item for cell in store.found.values()})
    every = [found for one in find_items(begun) for found in found_of(one, store)]
    failing = [(found, verdict) for found in every for verdict in found.verdicts if verdict.word == FAILS]
    silent = [f"{one.item.id}, {one.scale}: {v.claim.says}" for one, v in failing if one.finding(v).count(". ") < 1]
    assert not silent


@pytest.mark.parametrize(
    ("figure", "rows", "columns"),
    [
        ({"kind": "curves", "y": "PA"}, 10, {"panel", "series", "round", "PA", "seeds"}),
        ({"kind": "bars", "y": "PA"}, 5, {"series", "panel", "PA", "PA std"}),
        ({"kind": "scatter", "x": "GA", "y": "PA"}, 3, {"series", "GA", "PA", "name"}),
        (
            {"kind": "lines", "y": "PA", "x": "alpha", "options": {"at": {"alpha 1": 1, "alpha 9": 9}}},
            5,
            {"alpha", "PA"},
        ),
        (
            {
                "kind": "lines-of",
                "y": "PA",
                "options": {"of": {"alpha": {"alpha 1": 1, "alpha 9": 9}, "a": {"alpha 1": 1}}},
            },
            8,
            {"alpha", "a", "PA"},
        ),
        (
            {"kind": "histogram", "options": {"better": "FedPer", "than": "FedAvg", "keeps": ["clients"]}},
            12,
            {"change", "name"},
        ),
        (
            {"kind": "lines-of", "y": "PA", "options": {"of": {"mu": {"FedAvg": 0, "FedPer": 1}}}},
            4,
            {"mu", "PA"},
        ),
        ({"kind": "class-recalls", "options": {"keeps": ["classes"]}}, 10, {"class", "recall", "series"}),
        ({"kind": "last-clusters", "options": {"keeps": ["clusters"]}}, 10, {"method", "client", "cluster"}),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else "",
)
def test_every_kind_is_drawn_with_its_data(
    tmp_path: Path, figure: dict[str, object], rows: int, columns: set[str]
) -> None:
    found = _filled(tmp_path, figure)
    frame = chart_of(found).frame()
    assert columns <= set(frame.columns) | {"panel"}
    assert len(frame) == rows
    made = picture(found)
    assert made is not None
    data = made.save(tmp_path / "x.png")
    made.close()
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    assert len(data.read_text().splitlines()) == rows + 1


def test_all_kinds_are_tried_above() -> None:
    tried = {"curves", "bars", "scatter", "lines", "lines-of", "histogram", "class-recalls", "last-clusters"}
    assert set(DRAWINGS) == tried


def test_places_can_stand_side_by_side_whatever_their_numbers(tmp_path: Path) -> None:
    figure = {"kind": "lines", "y": "PA", "x": "a", "options": {"even": True, "at": {"alpha 1": 0.5, "alpha 9": 90}}}
    (panel,) = chart_of(_filled(tmp_path, figure)).panels
    assert panel.x.names == ["0.5", "90"]
    assert sorted({x for mark in panel.marks if isinstance(mark, Line) for x in mark.x}) == [0.0, 1.0]


def test_rows_of_a_series_share_its_look_and_have_their_own_names(tmp_path: Path) -> None:
    figure = {"kind": "scatter", "x": "GA", "y": "PA", "panels": ["alpha 1"], "options": {"split": ", "}}
    chart = chart_of(_filled(tmp_path, figure))
    marks = [mark for mark in chart.panels[0].marks if isinstance(mark, Dots)]
    assert [(mark.series, list(mark.names)) for mark in marks] == [
        ("FedAvg", ["FedAvg"]),
        ("tuned", ["FedAvg"]),
        ("FedPer", ["FedPer"]),
    ]
    assert [mark.tint for mark in marks] == [0, 1, 2]
    assert not marks[1].named  # so the legend names its series


def test_panels_stand_in_the_order_of_the_figure_and_no_bin_lies_on_both_sides_of_zero(tmp_path: Path) -> None:
    options = {"better": "FedPer", "than": "FedAvg", "keeps": ["clients"]}
    found = _filled(tmp_path, {"kind": "histogram", "panels": ["alpha 9", "alpha 1"], "options": options})
    panels = chart_of(found).panels
    assert [panel.title for panel in panels] == ["alpha 9", "alpha 1"]
    assert panels[0].note == "0 of 6 clients of 2 seeds are worse off"
    (mark,) = panels[0].marks
    assert isinstance(mark, Histogram)
    assert 0.0 in mark.edges
    assert sum(mark.counts) == 6


def test_what_was_never_reached_is_an_outline() -> None:
    def found(method: str, seed: int, rounds: float, seconds: float) -> Shown:
        numbers = {"rounds": rounds, "rounds, at least": 31.0 if math.isnan(rounds) else rounds}
        return Shown(
            f"CIFAR-10: {method}", seed, Demo({"all": {**numbers, "seconds until 50% of the clients": seconds}})
        )

    drawn = demo_of("pace").draw
    assert drawn is not None
    shown = [found("MuPFL", 0, 10.0, 5.0), found("FedAvg", 0, math.nan, math.nan), found("FedAvg", 1, 20.0, 9.0)]
    made = drawn(shown)
    Picture(made.figure, "").close()
    rows = {row["series"]: row for row in made.rows if row["panel"] == "all clients"}
    assert (rows["MuPFL"]["rounds"], rows["MuPFL"]["outlined"]) == (10.0, pytest.approx(math.nan, nan_ok=True))
    assert (rows["FedAvg"]["rounds"], rows["FedAvg"]["outlined"]) == (25.5, True)
    assert "FedAvg" not in {row["series"] for row in made.rows if row["panel"] == "CIFAR-10"}


def test_a_kind_of_runs_needs_them_and_an_unknown_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="drawn from its runs, and they are not here"):
        chart_of(_filled(tmp_path, {"kind": "holdings"}))
    with pytest.raises(UsageError, match="did you mean 'curves'"):
        chart_of(_filled(tmp_path, {"kind": "curvs"}))


def test_pages_say_what_holds_what_is_printed_and_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room_of_recipes, "HERE", tmp_path / "recipes")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    _filled(tmp_path, {"kind": "curves", "y": "PA"})
    store = Store.open(tmp_path / "results")
    text = results_page(store)
    assert "| [tiny, Table 1](#tiny-table1-cpu) | cpu | 10 of 10 | 2 |  |  |  |" in text
    assert "| tiny, 2 not done |  | 0 of 7 |  |  |  |  |" in text
    assert text.index("## Summary") < text.index("## tiny") < text.index('<a id="tiny-table1-cpu"></a>')
    assert "| Figure 1 | cpu | 2 | a minute | `polyfed reproduce tiny.figure1 --scale cpu` |" in text
    page = html_page("tiny", store, tmp_path / "out")
    assert '<td class="number">30.50</td>' in page
    assert "<li>A digit is wrong.</li>" in page
    assert '<li class="holds">FedPer is best: <b>holds</b> (F), both pairs for it; the weakest, ' in page
    assert '<summary class="caption">All 2 pairs</summary>' in page
    assert "Nothing was tried." not in page  # a finding stands beside what does not hold
    assert "data:text/csv;base64," in page
    assert "<script" not in page
    assert "a minute: <code>polyfed reproduce tiny.figure1 --scale cpu</code>" in page


def test_runs_that_stand_in_an_earlier_table_are_counted_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    same = TINY.replace("    rounds: 3\n", "    rounds: 3\n    split.alpha: 1.0\n")
    monkeypatch.setattr(room_of_recipes, "HERE", room(tmp_path / "recipes", same))
    text = results_page(Store(tmp_path / "results"))
    assert "| Table 1 | cpu | 10 | – | `polyfed reproduce tiny.table1 --scale cpu` |" in text
    assert "| Table 2 | cpu | 2 of Table 1 | nothing more | `polyfed reproduce tiny.table2 --scale cpu` |" in text
