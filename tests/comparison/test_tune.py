"""Values chosen on validation data: candidates on the first seed, the best of each row for all seeds."""

from pathlib import Path
from typing import Any

import pytest

import polyfed
from polyfed.comparison.tune import Tuning, read_tuning
from polyfed.config import unflatten
from polyfed.errors import UsageError

Keys = dict[str, Any]
RATES = [0.0001, 0.2]


@pytest.fixture(scope="module")
def made(tiny: Keys, tmp_path_factory: pytest.TempPathFactory) -> polyfed.Comparison:
    return polyfed.compare(
        tiny,
        {"split.val": 0.2, "tune.train.lr": RATES, "fedprox": {"mu": 0.1}},
        methods=["fedavg", "fedprox"],
        seeds=[3, 4],
        out=tmp_path_factory.mktemp("tune") / "c",
        jobs=1,
    )


def tuning_of(tiny: Keys, **keys: Any) -> Tuning:
    """Candidates that nobody runs."""
    return read_tuning(unflatten({**tiny, "split.val": 0.2, "tune": {"train.lr": RATES}, "seeds": 2, **keys}))


def validation(made: polyfed.Comparison, row: str) -> dict[float, float]:
    tuning = polyfed.load(made.path / "tuning")
    assert isinstance(tuning, polyfed.Comparison)
    found = [one for one in tuning.folder.found() if one.row == row]
    assert {one.seed for one in found} == {3}
    return {one.setting["train.lr"]: one.summary["validation"]["accuracy"] for one in found}


@pytest.mark.parametrize("row", ["fedavg", "fedprox"])
def test_every_row_has_the_value_that_validates_best(made: polyfed.Comparison, row: str) -> None:
    scores = validation(made, row)
    assert set(scores) == set(RATES)
    best = max(scores, key=lambda rate: scores[rate])
    cells = [cell for cell in made.folder.grid.cells if cell.row == row]
    assert [(cell.seed, cell.config.train.lr) for cell in cells] == [(3, best), (4, best)]
    assert best == 0.2, "hardly any step is worse than a good one"


def test_keys_of_a_row_stay_with_it(made: polyfed.Comparison) -> None:
    mu = {cell.row: getattr(cell.config.method, "mu", None) for cell in made.folder.grid.cells}
    assert mu == {"fedavg": None, "fedprox": 0.1}


def test_the_table_says_what_was_chosen(made: polyfed.Comparison) -> None:
    said = "train.lr of 0.0001, 0.2, chosen on the validation data of seed 3: fedavg 0.2; fedprox 0.2"
    assert said in made.table()
    assert said in polyfed.load(made.path).table()  # type: ignore[union-attr]


def test_the_same_call_goes_on(made: polyfed.Comparison, tiny: Keys) -> None:
    before = {result.path: (result.path / "summary.json").stat().st_mtime_ns for result in made.results}
    again = polyfed.compare(
        tiny,
        {"split.val": 0.2, "tune.train.lr": RATES, "fedprox": {"mu": 0.1}},
        methods=["fedavg", "fedprox"],
        seeds=[3, 4],
        out=made.path,
        jobs=1,
    )
    assert again.finished
    assert {result.path: (result.path / "summary.json").stat().st_mtime_ns for result in again.results} == before


def test_test_data_have_no_say(tiny: Keys) -> None:
    """A candidate that is better on test data and worse on validation data is not chosen."""
    tuning = tuning_of(tiny, methods=["fedavg"])

    class Folder:
        def results(self) -> dict[Any, Any]:
            first, second = tuning.grid.cells
            return {
                first: {"validation": {"accuracy": 0.6}, "personal": {"accuracy": 0.1}},
                second: {"validation": {"accuracy": 0.5}, "personal": {"accuracy": 0.9}},
            }

    tree = tuning.chosen(Folder())  # type: ignore[arg-type]
    assert tree["rows"] == [{"name": "fedavg", "method": {"name": "fedavg"}, "train": {"lr": RATES[0]}}]
    assert "tune" not in tree


def test_candidates_that_fail_are_named_and_not_taken(tiny: Keys) -> None:
    tuning = tuning_of(tiny, methods=["fedavg", "local"], tune={"train.lr": [0.1, 0.2]})

    class Folder:
        def results(self) -> dict[Any, Any]:
            done = [cell for cell in tuning.grid.cells if cell.row == "fedavg" and cell.setting["train.lr"] == 0.2]
            return {cell: {"validation": {"accuracy": 0.1}} for cell in done}

    tree = tuning.chosen(Folder())  # type: ignore[arg-type]
    assert [row["train"]["lr"] for row in tree["rows"]] == [0.2, 0.1]
    assert tree["note"].endswith("these did not finish: fedavg train.lr=0.1; local train.lr=0.1; local train.lr=0.2")


def test_other_axes_are_averaged_over(tiny: Keys) -> None:
    tuning = tuning_of(tiny, methods=["fedavg"], **{"split.alpha": [0.1, 1.0]})
    numbers = {(0.1, RATES[0]): 0.9, (1.0, RATES[0]): 0.1, (0.1, RATES[1]): 0.6, (1.0, RATES[1]): 0.6}

    class Folder:
        def results(self) -> dict[Any, Any]:
            at = {cell: numbers[cell.setting["split.alpha"], cell.setting["train.lr"]] for cell in tuning.grid.cells}
            return {cell: {"validation": {"accuracy": value}} for cell, value in at.items()}

    (row,) = tuning.chosen(Folder())["rows"]  # type: ignore[arg-type]
    assert row["train"] == {"lr": RATES[1]}


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"tune": {"train.lr": [0.1, 0.2]}}, "set split.val"),
        ({"tune": 3}, "tune holds keys with the values to choose from"),
        ({"tune": {}}, "tune holds keys with the values to choose from"),
        ({"tune": {"train.lr": 0.1}, "split.val": 0.2}, r"'tune\.train\.lr' must be a key .* with a list of values"),
        ({"tune": {"seed": [1, 2]}, "split.val": 0.2}, r"'tune\.seed' must be a key"),
        ({"tune": {"fedavg.x": [1, 2]}, "split.val": 0.2}, r"'tune\.fedavg\.x' must be a key"),
        ({"tune": {"train.lrr": [1, 2]}, "split.val": 0.2}, r"unknown key 'train\.lrr'"),
        ({"tune": {"train.schedule": [0.5, 2]}, "split.val": 0.2}, r"'tune\.train\.schedule' takes a list itself"),
    ],
)
def test_what_cannot_be_tuned_is_said(tiny: Keys, keys: Keys, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=sentence):
        polyfed.compare(tiny, keys, methods=["fedavg"], seeds=1, out=tmp_path / "c")
    assert not (tmp_path / "c").exists()
