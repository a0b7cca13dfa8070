"""Pictures with masks side by side: what stands where, what is said of it, and what is not there."""

from pathlib import Path

import numpy as np
import pytest
from hand_made import kept_pictures, write_run

from polyfed.errors import DataError
from polyfed.report.charts import Mosaic
from polyfed.report.interactive import figure, wide
from polyfed.report.kinds import draw
from polyfed.report.runs import select


def two(folder: Path) -> Path:
    write_run(folder / "a", "fedavg", samples=kept_pictures(right=3))
    write_run(folder / "b", "mupfl", samples=kept_pictures(right=7))
    return folder


def test_a_line_for_each_picture_and_a_column_for_each_method(tmp_path: Path) -> None:
    (panel,) = draw("pictures", select([two(tmp_path)])).panels
    (mark,) = panel.marks
    assert isinstance(mark, Mosaic)
    assert (panel.x.names, panel.y.names) == (["picture", "truth", "fedavg", "mupfl"], ["3", "7"])
    assert mark.pictures[1][0].max() == 70
    assert mark.pictures[0][1][1, 3].tolist() == [0, 0, 0], "no label is black"
    truth, right = mark.pictures[0][1], mark.pictures[0][3]
    assert np.array_equal(right[truth.any(2)], truth[truth.any(2)])
    assert mark.scores[0][0] == {"pixAcc": pytest.approx(3 / 7), "mIoU": pytest.approx((2 / 4 + 1 / 3 + 0) / 3)}
    assert mark.scores[0][1] == {"pixAcc": 1.0, "mIoU": 1.0}
    assert mark.whole().shape == (2 * (2 + 4), 4 * (4 + 4), 4)


def test_its_data_are_the_numbers_of_each_picture(tmp_path: Path) -> None:
    table = draw("pictures", select([two(tmp_path)])).frame()
    assert table["method"].tolist() == ["fedavg", "mupfl"] * 2
    assert table["pixAcc"].tolist() == pytest.approx([3 / 7, 1.0] * 2)


def test_on_the_page_they_are_one_picture_with_a_key(tmp_path: Path) -> None:
    (panel,) = draw("pictures", select([two(tmp_path)])).panels
    made = figure(panel)
    assert wide(panel)
    assert [trace["name"] for trace in made["data"] if "name" in trace] == ["cat", "dog", "owl"]
    (image,) = made["layout"]["images"]
    assert image["source"].startswith("data:image/png;base64,")
    assert (image["sizex"], image["sizey"]) == (4, 2)
    assert made["layout"]["yaxis"]["scaleratio"] == 0.5


def test_a_file_that_is_no_picture_is_named(tmp_path: Path) -> None:
    (two(tmp_path) / "a" / "samples" / "00003-truth.png").write_bytes(b"none")
    with pytest.raises(DataError, match=r"00003-truth\.png' cannot be read"):
        draw("pictures", select([tmp_path]))


def test_who_kept_other_pictures_has_empty_places(tmp_path: Path) -> None:
    run = two(tmp_path) / "b" / "samples"
    for file in run.glob("00007*"):
        file.unlink()
    (panel,) = draw("pictures", select([tmp_path])).panels
    (mark,) = panel.marks
    assert isinstance(mark, Mosaic)
    assert not mark.pictures[1][3].any()


def test_all_columns_are_of_the_seed_that_most_methods_have(tmp_path: Path) -> None:
    for method, seed in (("fedavg", 0), ("fedavg", 1), ("mupfl", 1), ("creff", 1), ("creff", 2)):
        write_run(tmp_path / f"{method}-{seed}", method, seed, samples=kept_pictures(right=3 + seed))
    (panel,) = draw("pictures", select([tmp_path])).panels
    assert panel.title == "seed 1 (one of 3)"
    assert sorted((panel.x.names or [])[2:]) == ["creff", "fedavg", "mupfl"]
    (mark,) = panel.marks
    assert isinstance(mark, Mosaic)
    assert [scores["pixAcc"] for scores in mark.scores[0]] == pytest.approx([4 / 7] * 3)
