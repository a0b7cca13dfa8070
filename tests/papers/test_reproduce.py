"""Recipes: every cell once, resumable; verdicts that say no more than the seeds do."""

import json
from pathlib import Path

import pytest

from polyfed.cli import call
from polyfed.errors import DataError, UsageError
from polyfed.papers import reproduce as room
from polyfed.papers.reproduce import Claim, Verdict, as_json_value, as_markdown, grid, recipes, reproduce
from polyfed.report.progress import Silent

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

    def say(self, text: str) -> None:
        if text.startswith("table:"):
            self.said.append(text)


@pytest.mark.parametrize("paper", ["mupfl", "fedcrc", "map", "ecl", "distfl"])
def test_every_recipe_is_valid_and_its_claims_name_its_rows(paper: str) -> None:
    for recipe in recipes(paper).values():
        cells = grid(recipe)
        assert len(cells) == recipe.seeds * len(recipe.rows)
        for claim in recipe.claims:
            assert {claim.better, claim.than} <= set(recipe.rows)
            assert claim.column in recipe.columns


def test_a_second_call_runs_only_what_is_missing(tiny: Path) -> None:
    first, second, third = Counting(), Counting(), Counting()
    before = as_json_value(reproduce("tiny", tiny, first))
    assert len(first.said) == 4
    assert as_json_value(reproduce("tiny", tiny, second)) == before
    assert second.said == []
    (tiny / "table" / "FedPer-s1" / "summary.json").unlink()  # as if it had been stopped at its very end
    again = as_json_value(reproduce("tiny", tiny, third))
    assert third.said == ["table: FedPer-s1"]
    assert again["table"]["values"] == before["table"]["values"]


def test_a_row_may_read_another_number(tiny: Path) -> None:
    values = reproduce("tiny", tiny, Silent())["table"]["values"]
    assert values["FedPer"]["GA"] == values["FedPer"]["PA"]
    assert values["FedAvg"]["GA"] != values["FedAvg"]["PA"]


def test_markdown_has_rows_claims_and_the_command(tiny: Path) -> None:
    text = as_markdown("tiny", reproduce("tiny", tiny, Silent()))
    assert "`polyfed reproduce tiny`, 2 seeds" in text
    assert "| FedAvg |" in text
    assert "FedPer > FedAvg in PA (F): **" in text


def test_cells_begun_with_another_config_are_refused(tiny: Path, tmp_path: Path) -> None:
    reproduce("tiny", tiny, Silent())
    (tiny / "table" / "FedAvg-s0" / "summary.json").unlink()
    (tmp_path / "tiny.yaml").write_text(TINY.replace("rounds: 1", "rounds: 2"))
    with pytest.raises(DataError, match="another config"):
        reproduce("tiny", tiny, Silent())


@pytest.mark.parametrize(
    ("difference", "spread", "word"),
    [(0.05, 0.02, "holds"), (-0.05, 0.02, "does not hold"), (0.01, 0.02, "undecided"), (-0.01, 0.02, "undecided")],
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
