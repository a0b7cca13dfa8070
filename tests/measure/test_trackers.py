"""Trackers copy what the records hold, change nothing of what is learnt, and may fail."""

import csv
import importlib.util
import sys

import pytest

import polyfed
from polyfed.config import identity, make_config
from polyfed.engine.run_folder import RunFolder
from polyfed.errors import Interrupted, UsageError

needs_tensorboard = pytest.mark.skipif(
    importlib.util.find_spec("tensorboard") is None, reason="tensorboard is not installed"
)
needs_mlflow = pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="mlflow-skinny is not installed")


def recorded(result) -> dict[tuple[str, int], float]:
    """Every number of rounds.csv by name and round."""
    with (result.path / "rounds.csv").open() as file:
        return {
            (f"{row['measure']}/{name}", int(row["round"])): float(value)
            for row in csv.DictReader(file)
            for name, value in row.items()
            if name not in ("round", "measure") and value
        }


def in_tensorboard(folder) -> dict[tuple[str, int], float]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder)).Reload()
    return {(name, at.step): at.value for name in found.Tags()["scalars"] for at in found.Scalars(name)}


def mlflow_run(folder, experiment="polyfed"):
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=folder.resolve().as_uri())
    runs = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    return client, runs


@needs_tensorboard
def test_tensorboard_shows_the_records_of_a_stopped_and_resumed_run(trial, crews):
    plain = trial.kept({"method": "fedper"})
    run = trial.run({"method": "fedper", "track": "tensorboard"}, crew=crews.stop_at(9))
    with pytest.raises(Interrupted):
        run.go()
    assert run.progress.round
    result = polyfed.resume(run.folder.path)
    assert result.fingerprint == plain.fingerprint
    shown = in_tensorboard(result.path / "tensorboard")
    assert shown == pytest.approx(recorded(result), rel=1e-6)
    assert ("personal_final/accuracy", 4) in shown


@needs_mlflow
def test_mlflow_has_one_run_with_the_records_the_config_and_the_fingerprint(trial, crews, tmp_path):
    keys = {"method": "fedper", "track.name": "mlflow", "track.dir": str(tmp_path / "store"), "tag": "first"}
    run = trial.run(keys, crew=crews.stop_at(9))
    with pytest.raises(Interrupted):
        run.go()
    assert run.progress.round
    result = polyfed.resume(run.folder.path)
    client, runs = mlflow_run(tmp_path / "store")
    assert [r.info.status for r in runs] == ["FINISHED"]
    data = runs[0].data
    assert data.tags["fingerprint"] == result.fingerprint == trial.kept({"method": "fedper"}).fingerprint
    assert (data.tags["tag"], data.params["train.batch"]) == ("first", "16")
    expected = recorded(result)
    for name in {name for name, _ in expected}:
        shown = {m.step: m.value for m in client.get_metric_history(runs[0].info.run_id, name)}
        assert shown == {at: value for (known, at), value in expected.items() if known == name}


@pytest.mark.parametrize(
    ("name", "package"), [("tensorboard", "torch.utils.tensorboard"), ("mlflow", "mlflow.tracking")]
)
def test_a_tracker_that_is_not_installed_is_one_sentence_and_the_run_goes_on(trial, monkeypatch, name, package):
    monkeypatch.setitem(sys.modules, package, None)
    result = trial({"track": name, "rounds": 1})
    log = (result.path / "log.txt").read_text()
    assert f"the tracker '{name}' is left out" in log
    assert "pip install 'polyfed[track]'" in log
    assert result.finished


@needs_tensorboard
def test_a_tracker_that_breaks_half_way_is_left_out_once(trial, monkeypatch):
    from polyfed.measure import trackers as track

    def broken(self, round, numbers):
        raise OSError("the disk is full")

    monkeypatch.setattr(track._Events, "write", broken)
    result = trial({"track": "tensorboard", "rounds": 2})
    assert (result.path / "log.txt").read_text().count("left out from here on: the disk is full") == 1
    assert result.finished


def test_track_and_tag_are_recorded_but_no_part_of_what_is_computed(tmp_path):
    plain, marked = make_config(), make_config({"track": "tensorboard", "tag": "trial 7"})
    assert identity(plain.dump()) == identity(marked.dump())
    assert plain.dump() != marked.dump()
    folder = RunFolder.create(marked, tmp_path / "run")
    assert (folder.tree()["tag"], folder.tree()["track"]["name"]) == ("trial 7", "tensorboard")


def test_a_run_from_before_these_keys_is_still_read(trial):
    result = trial({"rounds": 1})
    kept = [line for line in (result.path / "config.yaml").read_text().splitlines() if "tag:" not in line]
    (result.path / "config.yaml").write_text("\n".join(kept))
    assert result.config["rounds"] == 1


def test_an_unknown_tracker_is_refused_with_a_hint():
    with pytest.raises(UsageError, match="unknown track 'tensorbord'; did you mean 'tensorboard'"):
        make_config({"track": "tensorbord"})
