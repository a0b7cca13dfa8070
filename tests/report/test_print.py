"""Figures in print quality: each form is what it says, the data beside it are the chart's."""

from pathlib import Path
from xml.etree import ElementTree

import pandas
import pytest
from matplotlib import pyplot
from PIL import Image

from polyfed.errors import UsageError
from polyfed.report.charts import PERCENT, Axis, Bars, Chart, Dots, Line, Panel
from polyfed.report.kinds import KINDS, draw
from polyfed.report.print import drawing, save
from polyfed.report.runs import Selection, select


@pytest.fixture(scope="module")
def selection(everything: Path) -> Selection:
    return select([everything])


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_drawn_with_its_data_beside(selection: Selection, kind: str, tmp_path: Path) -> None:
    chart = draw(kind, selection)
    data = save(chart, tmp_path / "x.png")
    with Image.open(tmp_path / "x.png") as picture:
        extremes = picture.convert("L").getextrema()
        assert min(picture.size) > 300
    assert extremes[0] < 60 < 250 < extremes[1]  # something dark on something white
    assert data == tmp_path / "x.csv"
    table = chart.frame()
    pandas.testing.assert_frame_equal(pandas.read_csv(data, dtype=table.dtypes.to_dict()), table)


def test_forms(selection: Selection, tmp_path: Path) -> None:
    chart = draw("groups", selection)
    for form in ("pdf", "svg", "png", "PDF"):
        save(chart, tmp_path / f"x.{form}")
    assert (tmp_path / "x.pdf").read_bytes().startswith(b"%PDF-")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    assert ElementTree.parse(tmp_path / "x.svg").getroot().tag.endswith("svg")


@pytest.mark.parametrize("form", ["pdf", "svg"])
def test_the_same_chart_is_the_same_file(selection: Selection, form: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        save(draw("rounds", selection), tmp_path / f"{name}.{form}")
    assert (tmp_path / f"a.{form}").read_bytes() == (tmp_path / f"b.{form}").read_bytes()


def test_wrong_places(selection: Selection, tmp_path: Path) -> None:
    chart = draw("groups", selection)
    with pytest.raises(UsageError, match=r"written as pdf, svg, png, by its name: .*x\.gif"):
        save(chart, tmp_path / "x.gif")
    with pytest.raises(UsageError, match=r"cannot write to .* No such file"):
        save(chart, tmp_path / "nowhere" / "x.pdf")


def test_many_methods_and_names_fit(tmp_path: Path) -> None:
    """More series than colours, and more names than can be read, are still drawn."""
    names = Axis("client", "client", names=[f"a rather long name {i}" for i in range(50)])
    lines = [Line(f"method {i}", i, [0, 1], [0.1, 0.2], [0, 0], [1, 1]) for i in range(20)]
    bars = [Bars(f"method {i}", i, list(range(50)), [i] * 50, [0] * 50) for i in range(2)]
    y = Axis("number", "number")
    save(Chart("k", "t", "c", [Panel("p", y, y, lines), Panel("q", names, y, bars)]), tmp_path / "x.png")
    with Image.open(tmp_path / "x.png") as picture:
        assert picture.size[0] < 2400


def test_names_beside_points_hide_no_other_name_and_need_no_legend() -> None:
    """25 methods in a crowd: each name is there once, inside, and over no other; eight colours would not tell them."""
    dots = [
        Dots(name, tint, [0.8 + 0.01 * (tint % 5)], [0.8 + 0.007 * (tint // 5)], [name], beside=True)
        for tint, name in enumerate(f"method {number}" for number in range(25))
    ]
    figure = drawing(Chart("scatter", "", "", [Panel("", Axis("GA", "GA", PERCENT), Axis("PA", "PA", PERCENT), dots)]))
    (axes,) = figure.axes
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in axes.texts if text.get_text()]
    assert [text.get_text() for text in axes.texts] == [dot.series for dot in dots]
    assert not [1 for i, one in enumerate(boxes) for other in boxes[:i] if one.overlaps(other)]
    assert all(axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1 for box in boxes)
    assert not figure.legends
    pyplot.close(figure)
