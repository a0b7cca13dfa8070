"""What demos compute beside their runs: first rounds, crowds, chosen pictures, gaps by class."""

from pathlib import Path

import numpy as np
import pandas
import pytest

from polyfed.errors import DataError
from polyfed.papers.demos.attention import _some_of_each_class
from polyfed.papers.demos.gaps import _by_class, _of_client
from polyfed.papers.demos.pace import _crowd, _first_rounds

CLIENTS = pandas.DataFrame(
    {
        "round": [2, 4, 2, 4, 2, 4],
        "client": [0, 0, 1, 1, 2, 2],
        "accuracy": [0.8, 0.6, 0.5, 0.7, 0.1, 0.2],
    }
)


def test_a_client_that_was_there_once_counts_from_then_on_and_never_is_none() -> None:
    firsts = _first_rounds(CLIENTS, 0.7)
    assert firsts == [2, 4, None]
    assert _crowd(firsts, 0.3) == 2
    assert _crowd(firsts, 0.5) == 4
    assert _crowd(firsts, 0.9) is None


def test_pictures_are_taken_from_every_class_in_turn(tmp_path: Path) -> None:
    for name, files in {"n01": ("b.JPEG", "a.JPEG"), "n02": ("c.JPEG",), "n99": ("z.JPEG",)}.items():
        (tmp_path / name).mkdir()
        for file in files:
            (tmp_path / name / file).write_bytes(b"")
    found = _some_of_each_class(tmp_path, ["n01", "n02", "n03"], 3)
    assert [(path.name, c) for path, c in found.items()] == [("a.JPEG", 0), ("c.JPEG", 1), ("b.JPEG", 0)]
    assert len(_some_of_each_class(tmp_path, ["n01", "n02"], 2)) == 2
    with pytest.raises(DataError, match="holds no pictures of the classes"):
        _some_of_each_class(tmp_path, ["n03"], 3)


def test_gaps_are_over_the_clients_that_hold_a_class_from_frequent_to_rare() -> None:
    counts = np.array([[1, 9, 0], [3, 0, 2]])
    ours, theirs = np.array([[0.5, 1.0, 0.0], [0.7, 0.0, 0.9]]), np.array([[0.5, 0.9, 1.0], [0.5, 1.0, 0.4]])
    found = {
        name: dict.fromkeys(("among all classes", "among own classes"), table)
        for name, table in (("ECL", ours), ("FedAvg-FT", theirs))
    }
    made = _by_class(found, counts)
    assert made.arrays["order"].tolist() == [1, 0, 2]
    assert made.arrays["among all classes"].tolist() == pytest.approx([0.1, 0.1, 0.5])
    assert made.numbers["among all classes"]["gap in rare classes"] == pytest.approx(50.0)


def test_the_client_that_is_shown_has_three_classes_and_the_largest_majority() -> None:
    counts = np.array([[5, 5, 5], [0, 99, 1], [1, 8, 1]])
    table = np.array([[0.1] * 3, [0.2] * 3, [0.3, 0.9, 0.5]])
    found = {"ECL": dict.fromkeys(("among all classes", "among own classes"), table)}
    made = _of_client(found, counts)
    assert made.arrays["samples"].tolist() == [1, 8, 1]
    assert made.numbers["ECL, among own classes"] == pytest.approx({"minority classes": 40.0, "majority class": 90.0})
