"""Rows of the papers that are settings: each makes a checked experiment, runs, and has the number it names."""

from pathlib import Path
from typing import Any

import pytest

import polyfed
from polyfed.comparison.grid import make_grid
from polyfed.comparison.rows import PaperRow, named_rows
from polyfed.errors import UsageError
from polyfed.methods.base import methods

ROWS = list(named_rows().values())
SHORT: dict[str, dict[str, Any]] = {"ecl": {"phase2_epochs": 1}, "fedavg-ft": {"epochs": 1}}


def number(summary: dict[str, Any], path: str) -> Any:
    value: Any = summary
    for key in path.split("."):
        value = value[key]
    return value


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_row_runs_and_has_its_number(row: PaperRow, tiny: dict[str, Any], tmp_path: Path) -> None:
    keys = {"rounds": 2, "split.heldout": 1, "split.clients": 7, "eval.classes": True, "seeds": 1}
    own = {row.name: SHORT.get(row.method, {})}
    made = polyfed.compare(tiny, keys, own, methods=[row.name], out=tmp_path / "c", jobs=1)
    (result,) = made.results
    assert made.finished
    assert result.config["method"]["name"] == row.method
    assert 0 <= number(result.summary, row.reads) <= 1


def test_a_row_is_its_keys() -> None:
    grid = make_grid({"methods": ["fedavg", "k-means"], "seeds": 1, "k-means": {"kappa": 3}})
    assert grid.rows == ["fedavg", "k-means"]
    method = grid.cells[1].config.method
    assert (method.name, method.metric, method.kappa, method.bavd, method.pkcf) == ("mupfl", "weights", 3, False, False)
    assert grid.cells[1].name == "k-means-s0"


def test_lists_for_a_row_make_rows_of_their_own() -> None:
    grid = make_grid({"methods": ["fedavg+clustering"], "seeds": 1, "fedavg+clustering": {"kappa": [2, 4]}})
    assert grid.rows == ["fedavg+clustering, kappa=2", "fedavg+clustering, kappa=4"]
    assert [cell.config.method.kappa for cell in grid.cells] == [2, 4]
    again = make_grid(grid.tree)
    assert again.same_as(grid)


def test_a_row_hides_no_method() -> None:
    assert not set(named_rows()) & set(methods.names())


def test_a_row_refuses_what_its_method_does_not_take() -> None:
    with pytest.raises(UsageError, match=r"unknown key 'k-means\.kapa' for method 'mupfl'"):
        make_grid({"methods": ["k-means"], "seeds": 1, "k-means": {"kapa": 3}})
