"""The store: a finished cell is written once, found by what was run, and stale once its sources change."""

import json
import shutil
from pathlib import Path

import pytest

import polyfed
from polyfed.comparison.grid import Cell, make_grid
from polyfed.engine.run_folder import RunFolder
from polyfed.errors import DataError
from polyfed.papers import sources
from polyfed.papers.sources import sources_hash
from polyfed.papers.store import Kept, Store

KEYS = {
    "data": {"name": "digits", "limit": 12},
    "model": {"name": "mlp", "width": 0.05},
    "split": {"clients": 3, "alpha": 1.0},
    "rounds": 3,
    "engine": {"workers": 0},
    "eval": {"classes": False},
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Cell, RunFolder]:
    cell = make_grid({**KEYS, "rows": [{"name": "FedAvg", "method": "fedavg"}], "seeds": 1}).cells[0]
    path = tmp_path_factory.mktemp("runs") / "run"
    polyfed.run({**KEYS, "method": "fedavg", "seed": cell.seed}, out=path)
    return cell, RunFolder(path)


def test_a_kept_cell_is_small_holds_no_path_and_is_found_again(
    finished: tuple[Cell, RunFolder], tmp_path: Path
) -> None:
    cell, run = finished
    store = Store(tmp_path)
    assert store.found(cell) is None
    file = store.keep("paper/table", cell, run)
    assert file.relative_to(tmp_path) == Path("paper/table/FedAvg-s0.json")
    assert file.stat().st_size < 5000
    assert str(run.path) not in file.read_text()
    found = store.found(cell)
    summary = run.result()
    assert found is not None
    assert summary is not None
    assert found.summary["fingerprint"] == summary["fingerprint"]
    assert found.summary["global"]["accuracy"] == pytest.approx(summary["global"]["accuracy"], abs=1e-6)
    assert list(store.read(file).evaluations) == ["1", "2", "3", "4"]  # the fourth is after finish


def test_another_experiment_is_not_found_and_other_sources_are_stale(
    finished: tuple[Cell, RunFolder], tmp_path: Path
) -> None:
    cell, run = finished
    store = Store(tmp_path)
    store.keep("t", cell, run, sources="0123")
    assert store.found(cell) is None
    assert store.stale(cell.config)
    other = make_grid({**KEYS, "rounds": 4, "rows": [{"name": "FedAvg", "method": "fedavg"}], "seeds": 1}).cells[0]
    assert not store.stale(other.config)


def test_a_changed_statement_changes_the_hash_and_a_comment_does_not(
    finished: tuple[Cell, RunFolder], tmp_path: Path
) -> None:
    config = finished[0].config
    copy = tmp_path / "polyfed"
    shutil.copytree(sources.ROOT, copy)
    before = sources_hash(config)
    assert sources_hash(config, copy) == before
    fit = copy / "parts" / "fit.py"
    fit.write_text(fit.read_text() + "\n# a remark\n")
    assert sources_hash(config, copy) == before
    fit.write_text(fit.read_text() + "\nEXTRA = 1\n")
    assert sources_hash(config, copy) != before
    elsewhere = copy / "report" / "page.py"
    fit.write_text(fit.read_text().replace("\nEXTRA = 1\n", ""))
    elsewhere.write_text(elsewhere.read_text() + "\nEXTRA = 1\n")
    assert sources_hash(config, copy) == before


def test_the_last_third_is_a_mean_over_its_evaluations() -> None:
    evaluations = {str(r): {"global": r / 10} for r in (1, 2, 3, 4, 5, 6)}
    nothing = {"fingerprint": "", "summary": {}, "sources": "", "versions": {}, "cpu": "", "commit": None, "minutes": 0}
    kept = Kept(config={"rounds": 5}, evaluations=evaluations, **nothing)
    assert kept.last_third("global") == pytest.approx(0.45)
    assert kept.last_third("personal") is None


def test_a_file_that_is_no_cell_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(json.dumps({"config": {}}))
    with pytest.raises(DataError, match="is not a stored cell"):
        Store(tmp_path).read(tmp_path / "x.json")
