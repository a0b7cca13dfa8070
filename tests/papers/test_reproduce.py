"""Recipes: every cell once, resumable; verdicts that say no more than the seeds do."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polyfed.cli import call
from polyfed.comparison.grid import Cell
from polyfed.comparison.standing import State, States
from polyfed.errors import DataError, UsageError
from polyfed.measure.watch import Silent
from polyfed.papers import reproduce as room
from polyfed.papers.reproduce import (
    Claim,
    Recipe,
    Row,
    TableFound,
    Verdict,
    as_json_value,
    as_markdown,
    grid_of,
    recipes,
    reproduce,
)
from polyfed.papers.store import Store

Cli = Callable[..., Any]
TINY = """
table:
  title: "tiny"
  seeds: 2
  experiment:
    data: {name: digits, limit: 12}
    model: {name: mlp, width: 0.05}
    split: {clients: 3, alpha: 1.0}
    rounds: 1
    engine: {workers: 0}
    eval: {classes: false}
  columns: {GA: global.accuracy, PA: personal.accuracy}
  rows:
    FedAvg: {keys: {method: fedavg}}
    FedPer: {keys: {method: fedper}, reads: {GA: personal.accuracy}}
  claims:
    - {better: FedPer, than: FedAvg, column: PA, expected: F}
"""


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A room with one small recipe."""
    (tmp_path / "tiny.yaml").write_text(TINY)
    monkeypatch.setattr(room, "HERE", tmp_path)
    return tmp_path / "out"


class Counting(Silent):
    """Remembers which cells were begun."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def cells(self, states: States, left: float | None) -> None:
        begun = [cell.name for cell, state in states.items() if state is State.RUNNING]
        self.said += [name for name in begun if name not in self.said]

    def round_of(self, cell: Cell, done: int, rounds: int, numbers: dict[str, Any]) -> None:
        """Not counted."""


@pytest.mark.parametrize("paper", ["mupfl", "fedcrc", "map", "ecl", "distfl"])
def test_every_recipe_is_valid_and_its_claims_name_its_rows(paper: str) -> None:
    for recipe in recipes(paper).values():
        cells = grid_of(recipe).cells
        assert len(cells) == recipe.seeds * len(recipe.rows)
        assert [cell.row for cell in cells[: len(recipe.rows)]] == list(recipe.rows)
        for claim in recipe.claims:
            assert {claim.better, claim.than} <= set(recipe.rows)
            assert claim.column in recipe.columns
        assert set(recipe.printed) <= set(recipe.rows)
        assert all(set(numbers) <= set(recipe.columns) for numbers in recipe.printed.values())


def test_a_second_call_runs_only_what_is_missing(tiny: Path) -> None:
    first, second, third = Counting(), Counting(), Counting()
    before = as_json_value(reproduce("tiny", tiny, first))
    assert len(first.said) == 4
    assert as_json_value(reproduce("tiny", tiny, second)) == before
    assert second.said == []
    (tiny / "table" / "FedPer-s1" / "summary.json").unlink()  # as if it had been stopped at its very end
    again = as_json_value(reproduce("tiny", tiny, third))
    assert third.said == ["FedPer-s1"]
    assert again["table"]["values"] == before["table"]["values"]


def test_a_row_may_read_another_number(tiny: Path) -> None:
    values = reproduce("tiny", tiny, Silent())["table"].values
    assert values["FedPer"]["GA"] == values["FedPer"]["PA"]
    assert values["FedAvg"]["GA"] != values["FedAvg"]["PA"]


def test_markdown_has_rows_claims_and_the_command(tiny: Path) -> None:
    text = as_markdown("tiny", reproduce("tiny", tiny, Silent()))
    assert "`polyfed reproduce tiny`, 2 seeds" in text
    assert "| FedAvg |" in text
    assert "FedPer > FedAvg in PA (F): **" in text


def test_cells_begun_with_another_config_are_refused(tiny: Path, tmp_path: Path) -> None:
    reproduce("tiny", tiny, Silent())
    for seed in (0, 1):
        for row in ("FedAvg", "FedPer"):
            (tiny / "table" / f"{row}-s{seed}" / "summary.json").unlink()
    (tmp_path / "tiny.yaml").write_text(TINY.replace("rounds: 1", "rounds: 2"))
    failures = reproduce("tiny", tiny, Silent())["table"].failures
    assert len(failures) == 4
    assert all(isinstance(error, DataError) and "another config" in str(error) for error in failures.values())


def test_a_recipe_may_grow(tiny: Path, tmp_path: Path) -> None:
    """A row more, and what was done before is not done again; directories without a grid file are taken too."""
    before = as_json_value(reproduce("tiny", tiny, Silent()))
    (tiny / "table" / "comparison.yaml").unlink()  # as an earlier version left it
    more = "    FedProx: {keys: {method: fedprox}}\n  claims:"
    (tmp_path / "tiny.yaml").write_text(TINY.replace("  claims:", more))
    watch = Counting()
    after = as_json_value(reproduce("tiny", tiny, watch))
    assert watch.said == ["FedProx-s0", "FedProx-s1"]
    assert {row: after["table"]["values"][row] for row in ("FedAvg", "FedPer")} == before["table"]["values"]


def test_a_failed_cell_is_listed_and_judged_without(tiny: Path, tmp_path: Path, cli: Cli) -> None:
    """FedPer's cells name a file that is not there; FedAvg's are run and shown."""
    wrong = "FedPer: {keys: {method: fedper, init: /nowhere}"
    (tmp_path / "tiny.yaml").write_text(TINY.replace("FedPer: {keys: {method: fedper}", wrong))
    said = cli("reproduce", "tiny", "--out", str(tiny), "--quiet")
    assert said.code == 4
    assert "| FedAvg |" in said.out
    assert "FedPer > FedAvg in PA (F): **not measured**" in said.out
    assert said.err.count("failed: init: cannot read a model from '/nowhere'") == 2
    assert said.err.splitlines()[-1].startswith("polyfed: 2 cells failed; try them again with: polyfed reproduce tiny")


@pytest.mark.parametrize(
    ("difference", "spread", "word"),
    [
        (float("nan"), 0.0, "not measured"),
        (0.05, 0.02, "holds"),
        (-0.05, 0.02, "does not hold"),
        (0.01, 0.02, "undecided"),
        (-0.01, 0.02, "undecided"),
    ],
)
def test_a_difference_under_its_seed_std_decides_nothing(difference: float, spread: float, word: str) -> None:
    assert Verdict(Claim(better="a", than="b", column="c"), difference, spread).word == word


def test_an_unknown_paper_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'mupfl'"):
        recipes("muplf")


def test_the_command_prints_one_json_value(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["reproduce", "tiny", "--out", str(tiny), "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["table"]["title"] == "tiny"
    assert (tiny / "results.md").exists()


def test_cells_of_the_store_are_not_run_again(tiny: Path, tmp_path: Path, cli: Cli) -> None:
    """Another folder for runs, the same store: nothing is begun, and the numbers are the same to six digits."""
    store = Store(tmp_path / "store")
    before = as_json_value(reproduce("tiny", tiny, Silent(), store=store))
    assert len(list(store.files())) == 4
    watch = Counting()
    after = as_json_value(reproduce("tiny.table", tmp_path / "elsewhere", watch, store=store))
    assert watch.said == []
    for row, columns in before["table"]["values"].items():
        for column, values in columns.items():
            assert after["table"]["values"][row][column] == pytest.approx(values, abs=1e-6)
    with pytest.raises(UsageError, match="did you mean 'table'"):
        reproduce("tiny.tabel", tiny, Silent())


def test_printed_numbers_stand_beside_ours() -> None:
    recipe = Recipe(
        title="t",
        experiment={},
        columns={"GA": "g"},
        rows={"a": Row(keys={}), "b": Row(keys={})},
        printed={"a": {"GA": 50.0}, "b": {"GA": 40.0}},
    )
    values = {"a": {"GA": [0.5, 0.53]}, "b": {"GA": [float("nan")] * 2}}
    lines = TableFound(recipe, [], {}, values, []).against_print().splitlines()
    assert lines[2:] == ["| a | GA | 51.5 | 50.0 | +1.5 |", "| b | GA | - | 40.0 | - |"]
