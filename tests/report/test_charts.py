"""Charts as data: their tables, their legends, and colours that everybody can tell apart."""

from itertools import combinations

import numpy as np
import pytest

from polyfed.report.charts import (
    BYTES,
    DARK,
    LIGHT,
    METHOD,
    PERCENT,
    POINTS,
    SECONDS,
    SHAPES,
    Axis,
    Bars,
    Chart,
    Dots,
    Histogram,
    Line,
    Panel,
    Strip,
    Tiles,
    drawn,
    in_unit,
    shared_places,
    told_apart,
)

X, Y = Axis("the round", "round"), Axis("accuracy", "accuracy", PERCENT)
NAMED = Axis("class", "class", names=["cat", "dog"])


def table(mark, x=X, y=Y):
    return Chart("kind", "title", "caption", [Panel("here", x, y, [mark])]).frame().to_dict("list")


def test_lines_say_before_and_after_finish() -> None:
    found = table(Line("a", 0, [1, 2], [0.5, 0.75], [0.1, 0.0], [3, 2], "before"))
    assert found == {
        "panel": ["here"] * 2,
        "series": ["a"] * 2,
        "round": [1, 2],
        "finish": ["before"] * 2,
        "accuracy": [0.5, 0.75],
        "accuracy std": [0.1, 0.0],
        "seeds": [3, 2],
    }


def test_whiskers_of_shares_end_at_0_and_100_percent() -> None:
    assert Y.ends(0.9, 0.3) == (pytest.approx(0.6), 1.0)
    assert Y.ends(0.1, 0.3) == (0.0, pytest.approx(0.4))
    assert X.ends(0.1, 0.3) == (pytest.approx(-0.2), pytest.approx(0.4))


@pytest.mark.parametrize(
    ("finish", "places"),
    [(3.0, [0, 1, 2]), (9.0, [0, 2, 4, 6]), (11.0, [0, 2, 4, 6, 8]), (101.0, [0, 20, 40, 60, 80])],
)
def test_finish_has_room_on_its_axis(finish: float, places: list[float]) -> None:
    axis = Axis("round", "round", finish=finish)
    assert axis.ticks(finish) == ([*places, finish], [*map(str, places), "finish"])
    assert X.ticks(finish) is None


def test_lines_hide_each_other_only_where_they_look_like_one() -> None:
    def line(series: str, x: list[float], y: list[float], finish: str = "before") -> Line:
        return Line(series, 0, x, y, [0.0] * len(x), [1] * len(x), finish)

    one = line("a", [0, 100], [0.5, 0.6])
    for other, hides in (
        (line("b", [0, 100], [0.5, 0.6]), True),
        (line("b", [0.4, 99.6], [0.502, 0.598]), True),
        (line("b", [0, 100], [0.5, 0.604]), False),
        (line("b", [0, 98], [0.5, 0.6]), False),
        (line("b", [0], [0.5]), False),
        (line("b", [0, 100], [0.5, 0.6], "after"), False),  # a star hides no line
    ):
        made, note = told_apart([one, other])
        assert [getattr(mark, "on", None) for mark in made] == ["", "a" if hides else ""]
        assert note == ("b (with gaps) lies on a" if hides else "")


def test_drawn_with_names_as_papers_write_them_while_the_data_hold_keys() -> None:
    rows = Axis("", METHOD, names=["fedavg", "map (unfinished)"])
    strips = [Strip("fedavg", 0, 0, [0.5], ["map"]), Strip("map (unfinished)", 1, 1, [0.7], ["local"])]
    dots = Dots("mupfl", 0, [0.1], [0.2], ["mupfl"])
    chart = Chart("kind", "title", "caption", [Panel("map − fedavg", Y, rows, strips), Panel("here", X, Y, [dots])])
    drawn_strips, drawn_dots = chart.written().panels
    assert drawn_strips.title == "MAP − FedAvg"
    assert drawn_strips.y.names == ["FedAvg", "MAP (unfinished)"]
    assert [(mark.series, mark.names) for mark in drawn_strips.marks] == [  # type: ignore[attr-defined]
        ("FedAvg", ["map"]),  # clients keep their names
        ("MAP (unfinished)", ["local"]),
    ]
    assert [(mark.series, mark.names) for mark in drawn_dots.marks] == [("MuPFL", ["MuPFL"])]  # type: ignore[attr-defined]
    assert chart.frame()["series"].tolist() == ["fedavg", "map (unfinished)", "mupfl"]


def test_bars_stand_at_names() -> None:
    found = table(Bars("a", 0, [1], [0.5], [0.25]), NAMED)
    assert (found["class"], found["accuracy"], found["accuracy std"]) == (["dog"], [0.5], [0.25])


def test_dots_have_names_sizes_and_spreads() -> None:
    sized = table(Dots("a", 0, [0, 1], [1, 0], ["p", "q"], sizes=[3, 4], size="samples"), NAMED, NAMED)
    assert (sized["samples"], sized["name"], sized["class"]) == ([3, 4], ["p", "q"], ["dog", "cat"])
    spread = table(Dots("a", 0, [0.1], [0.2], ["p"], spread=([0.01], [0.02])))
    assert (spread["round std"], spread["accuracy std"]) == ([0.01], [0.02])


def test_strips_and_histograms_have_a_row_per_client() -> None:
    strip = table(Strip("a", 0, 1, [0.1, 0.9], ["p", "q"]), Y, NAMED)
    assert (strip["accuracy"], strip["name"], strip["class"]) == ([0.1, 0.9], ["p", "q"], ["dog", "dog"])
    bars = Histogram("a", 0, [-0.1, 0.0, 0.1], ["p", "q", "r"], [-0.15, -0.05, 0.05, 0.15])
    assert bars.counts == [1, 1, 1]
    assert table(bars)["round"] == [-0.1, 0.0, 0.1]


def test_tiles_leave_out_what_is_not_there() -> None:
    found = table(Tiles("", 0, np.array([[1.0, np.nan]]), "cluster", groups=True), NAMED, Axis("", "client"))
    assert (found["class"], found["client"], found["cluster"]) == (["cat"], [0], [1])


def test_equal_values_of_a_strip_lie_beside_each_other() -> None:
    offsets = Strip("a", 0, 0, [0.5, 0.5, 0.5, 0.9], ["p", "q", "r", "s"]).offsets
    assert len(set(offsets[:3])) == 3
    assert offsets[0] == offsets[3] == 0
    assert max(map(abs, Strip("a", 0, 0, [0.5] * 100, ["p"] * 100).offsets)) <= 0.3


def test_legend_names_what_is_not_named_where_it_is_drawn() -> None:
    line = Line("b", 1, [1], [1], [0], [1])
    panels = [Panel("", X, Y, [line, Line("a", 0, [1], [1], [0], [1]), line, Strip("c", 2, 0, [1], ["p"])])]
    assert list(Chart("k", "t", "c", panels).legend().items()) == [("a", 0), ("b", 1)]
    assert Chart("k", "t", "c", [Panel("", X, Y, [line])]).legend() == {}


def test_empty_panels_are_no_chart() -> None:
    full, empty = Panel("full", X, Y, [Line("a", 0, [1], [1], [0], [1])]), Panel("empty", X, Y, [])
    assert drawn("k", "t", "c", [empty]) is None
    made = drawn("k", "t", "c", [empty, full])
    assert made is not None
    assert made.panels == [full]


@pytest.mark.parametrize(("count", "columns"), [(1, 1), (2, 2), (3, 3), (4, 2), (5, 3), (6, 3), (8, 2)])
def test_columns(count: int, columns: int) -> None:
    assert Chart("k", "t", "c", [Panel("", X, Y, [])] * count).columns == columns


def test_bars_of_several_series_share_places_or_do_not() -> None:
    assert shared_places([Bars("a", 0, [0, 1], [1, 1], [0, 0]), Bars("b", 1, [1], [1], [0])])
    assert not shared_places([Bars("a", 0, [0], [1], [0]), Bars("b", 1, [1], [1], [0])])


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.1234, PERCENT, "12.3 %"),
        (-0.05, POINTS, "-5.0"),
        (2_500_000, BYTES, "2.5 MB"),
        (3.14159, SECONDS, "3.1 s"),
        (7.0, "count", "7"),
        (0.123456, "number", "0.1235"),
    ],
)
def test_numbers_in_their_units(value: float, unit: str, text: str) -> None:
    assert in_unit(value, unit) == text


# ---- colours: sRGB to what people of three kinds of colour blindness see (Machado et al. 2009, severity 1), to CIELAB

SEEN = {
    "all colours": np.eye(3),
    "no red": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "no green": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "no blue": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}


def linear(colour: str) -> np.ndarray:
    parts = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(light: np.ndarray) -> np.ndarray:
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(light, 0, 1) / [0.9505, 1, 1.089]
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("sight", SEEN)
@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
def test_colours_are_told_apart(palette: tuple[str, ...], sight: str) -> None:
    seen = [lab(np.asarray(SEEN[sight]) @ linear(colour)) for colour in palette]
    assert min(np.linalg.norm(one - other) for one, other in combinations(seen, 2)) > 10


@pytest.mark.parametrize(("palette", "behind"), [(LIGHT, "#ffffff"), (DARK, "#14171c")], ids=["light", "dark"])
def test_colours_stand_out(palette: tuple[str, ...], behind: str) -> None:
    """A contrast of 3 to 1 at least."""

    def luminance(colour: str) -> float:
        return float(linear(colour) @ [0.2126, 0.7152, 0.0722])

    for colour in palette:
        darker, lighter = sorted((luminance(colour), luminance(behind)))
        assert (lighter + 0.05) / (darker + 0.05) >= 3, colour


def test_every_colour_has_its_shape() -> None:
    assert len(LIGHT) == len(DARK) == len(SHAPES) == len(set(SHAPES))
