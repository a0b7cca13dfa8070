"""Resuming: records beyond the checkpoint are cut, another environment is said, a finished run gives its result."""

import json
import shutil

import pandas as pd
import pytest

import polyfed
from polyfed.engine import run_folder as folder_module
from polyfed.errors import DataError, Interrupted, UsageError
from polyfed.measure.seconds import PHASES
from trials import StopAfter

TABLES = ("rounds", "clients", "classes", "training")


@pytest.fixture(scope="module", params=[1, 2])
def changes(request):
    return {"method.name": "fedper", "rounds": 5, "checkpoint.every": request.param}


@pytest.fixture(scope="module")
def pristine(trial, changes):
    """Stopped after round 3 of 5; its last checkpoint is of round 2 or 3."""
    run = trial.run(changes, watch=StopAfter(3))
    checkpoint = run._checkpoint
    run._checkpoint = lambda: checkpoint() if run.progress.round % changes["checkpoint.every"] == 0 else None
    with pytest.raises(Interrupted):
        run.go()
    return run.folder.path


@pytest.fixture
def stopped(trial, pristine):
    """A copy of it, to be resumed."""
    return shutil.copytree(pristine, trial.path())


def test_records_beyond_the_checkpoint_are_cut(trial, changes, stopped):
    for table in TABLES:
        with (stopped / f"{table}.csv").open("a") as file:
            file.write("4,garbage,of,a,killed,ro")
    resumed, whole = polyfed.resume(stopped), trial.kept(changes)
    for table in ("rounds", "clients", "classes"):
        assert (stopped / f"{table}.csv").read_bytes() == (whole.path / f"{table}.csv").read_bytes(), table
    mine, theirs = (run.records("training").drop(columns="seconds") for run in (resumed, whole))
    pd.testing.assert_frame_equal(mine, theirs)
    same = [{k: v for k, v in r.summary.items() if k not in ("run", "seconds")} for r in (resumed, whole)]
    assert same[0] == same[1]
    mine, theirs = resumed.counts(), whole.counts()
    assert mine.keys() == theirs.keys()
    assert all((mine[k] == theirs[k]).all() for k in mine)


def test_without_a_checkpoint_all_records_are_cut(trial, changes, stopped):
    shutil.rmtree(stopped / "checkpoints")
    polyfed.resume(stopped)
    for table in ("rounds", "clients", "classes"):
        assert (stopped / f"{table}.csv").read_bytes() == (trial.kept(changes).path / f"{table}.csv").read_bytes()


def test_killed_between_the_last_records_and_the_summary(trial, changes):
    """The final rows are there but the run is not finished: they are written again, once."""
    finished = trial(changes)
    rounds = (finished.path / "rounds.csv").read_bytes()
    (finished.path / "summary.json").unlink()
    (finished.path / "counts.npz").unlink()
    polyfed.resume(finished.path)
    assert (finished.path / "rounds.csv").read_bytes() == rounds
    assert finished.fingerprint == trial.kept(changes).fingerprint


def test_what_a_killed_process_left_half_written_is_removed_and_nothing_else(stopped):
    for name in (".summary.json.123.tmp", ".report.html.123.tmp"):
        (stopped / name).write_text("{")
    polyfed.resume(stopped)
    assert not (stopped / ".summary.json.123.tmp").exists()
    assert (stopped / ".report.html.123.tmp").exists(), "another process may be writing it"


def test_killed_after_the_last_checkpoint_before_older_ones_were_deleted(trial, changes):
    finished = trial(changes)
    (finished.path / "summary.json").unlink()
    kept = sorted(p.name for p in (finished.path / "checkpoints").iterdir())
    shutil.copytree(finished.path / "checkpoints" / kept[0], finished.path / "checkpoints" / "at-000001")
    (finished.path / "memory" / "0-1.safetensors").write_bytes(b"old")
    polyfed.resume(finished.path)
    assert sorted(p.name for p in (finished.path / "checkpoints").iterdir()) == kept
    assert not (finished.path / "memory" / "0-1.safetensors").exists()


def test_another_environment_is_said(stopped):
    path = stopped / "environment.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"torch": "1.0", "cpu": "abacus"}))
    polyfed.resume(stopped)
    log = (stopped / "log.txt").read_text()
    assert "another environment (torch 1.0 -> " in log
    assert "cpu abacus -> " in log
    assert "bits may differ" in log


def test_the_same_environment_is_not(stopped):
    polyfed.resume(stopped)
    assert "environment" not in (stopped / "log.txt").read_text()


def test_an_unreadable_environment_is_said(stopped):
    (stopped / "environment.json").write_text("{")
    polyfed.resume(stopped)
    assert "environment.json cannot be read" in (stopped / "log.txt").read_text()


def test_a_finished_run_gives_its_result_and_is_not_touched(trial):
    done = trial({})
    before = {p: p.stat().st_mtime_ns for p in done.path.rglob("*")}
    assert polyfed.resume(done.path).summary == done.summary
    assert before == {p: p.stat().st_mtime_ns for p in done.path.rglob("*")}


def test_the_config_and_the_environment_are_there_before_anything_else(trial, monkeypatch):
    run = trial.run({})
    assert {p.name for p in run.folder.path.iterdir()} == {"config.yaml", "environment.json", "lock"}
    found = json.loads((run.folder.path / "environment.json").read_text())
    assert {"python", "torch", "numpy", "capability", "threads_per_process", "commit"} <= found.keys()


def test_with_a_config_there_is_always_an_environment(trial, monkeypatch):
    """Killed in between, a run would say at resume that it was begun elsewhere."""
    order = []
    monkeypatch.setattr(folder_module, "write_file", lambda path, content: order.append(path.name))
    trial.run({})
    assert order == ["environment.json", "config.yaml"]


def test_what_is_not_a_run_is_refused(tmp_path, trial):
    with pytest.raises(DataError, match="no run at"):
        polyfed.resume(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"no config\.yaml"):
        polyfed.resume(tmp_path)
    done = trial({})
    with pytest.raises(UsageError, match="never overwrites"):
        polyfed.run(trial.keys({}), out=done.path)
    (done.path / "summary.json").write_text("{")
    with pytest.raises(DataError, match=r"corrupt: summary\.json"):
        polyfed.resume(done.path)


def test_seconds_add_up_over_sittings(stopped):
    head = json.loads(next((stopped / "checkpoints").glob("at-*2/head.json")).read_text())["head"]
    before = json.loads(head)["progress"]["seconds"]
    after = polyfed.resume(stopped).summary["seconds"]
    assert all(after[phase] >= round(before[phase], 3) for phase in before)
    assert after["total"] > before["total"] > 0
    assert after["total"] == pytest.approx(sum(after[phase] for phase in PHASES), rel=0.02)
