"""Figures in print quality: each form is what it says, the data beside it are the chart's."""

from pathlib import Path
from xml.etree import ElementTree

import pandas
import pytest
from PIL import Image

from polyfed.errors import UsageError
from polyfed.report.charts import Axis, Bars, Chart, Line, Panel
from polyfed.report.kinds import KINDS, draw
from polyfed.report.print import save
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
