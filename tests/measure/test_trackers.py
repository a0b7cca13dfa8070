"""Trackers copy what the records hold, change nothing of what is learnt, and may fail."""

import csv
import importlib.util
import json
import os
import sys
import time
from types import ModuleType
from typing import Any

import pytest

import polyfed
from polyfed.config import identity, make_config, unflatten
from polyfed.engine.run_folder import RunFolder
from polyfed.errors import DataError, Interrupted, UsageError
from polyfed.measure import trackers as track


def needs(package):
    """Skip a test where a package is missing; the slow tier, which has it, runs the test too."""
    missing = pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=f"{package} is not installed")
    return lambda test: pytest.mark.extras(missing(test))


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


@needs("tensorboard")
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


@needs("mlflow")
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


class FakeWandb(ModuleType):
    """What polyfed uses of wandb 0.29, written down instead of kept."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.began: list[dict[str, Any]] = []
        self.logged: list[dict[str, float]] = []
        self.defined: list[tuple[str, str]] = []
        self.ended: list[int] = []
        self.summary: dict[str, str] = {}

    @staticmethod
    def Settings(**settings: Any) -> dict[str, Any]:
        return settings

    def init(self, **given: Any) -> "FakeWandb":
        self.began.append(given)
        return self

    def define_metric(self, name: str, step_metric: str) -> None:
        self.defined.append((name, step_metric))

    def log(self, numbers: dict[str, float]) -> None:
        self.logged.append(numbers)

    def finish(self, exit_code: int) -> None:
        self.ended.append(exit_code)

    def shown(self) -> dict[tuple[str, int], float]:
        """The last value of each number in each round."""
        each = [(row["round"], name, value) for row in self.logged for name, value in row.items()]
        return {(name, int(at)): value for at, name, value in each if name != "round"}


@pytest.fixture
def wandb(monkeypatch) -> FakeWandb:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    for key in ("WANDB_MODE", *track.QUIET):
        monkeypatch.delenv(key, raising=False)
    return fake


def test_wandb_has_one_run_with_the_records_the_config_and_the_fingerprint(trial, crews, wandb):
    run = trial.run({"method": "fedper", "track": "wandb", "tag": "first"}, crew=crews.stop_at(9))
    with pytest.raises(Interrupted):
        run.go()
    assert run.progress.round
    result = polyfed.resume(run.folder.path)
    assert result.fingerprint == trial.kept({"method": "fedper"}).fingerprint == wandb.summary["fingerprint"]
    first, second = wandb.began
    assert first["id"] == second["id"]
    assert (first["project"], first["mode"], first["tags"]) == ("polyfed", "offline", ["first"])
    assert first["dir"] == str(result.path.resolve())
    assert first["config"]["train"]["batch"] == 16
    assert first["settings"]["x_disable_stats"]
    assert first["settings"]["x_disable_machine_info"]
    assert (wandb.ended, wandb.defined) == ([1, 0], [("*", "round")] * 2)
    assert wandb.shown() == recorded(result)
    assert os.environ["WANDB_ERROR_REPORTING"] == "false"


@pytest.mark.parametrize(
    ("keys", "said", "mode"),
    [({}, None, "offline"), ({}, "online", "online"), ({"track.mode": "offline"}, "online", "offline")],
)
def test_wandb_sends_nothing_unless_it_is_asked_to(tmp_path, monkeypatch, wandb, keys, said, mode):
    if said:
        monkeypatch.setenv("WANDB_MODE", said)
    config = make_config(unflatten({"track.name": "wandb", "track.dir": str(tmp_path / "books"), **keys}))
    config.track.open(RunFolder.create(config, tmp_path / "run").place, config, 0)
    assert (wandb.began[0]["mode"], wandb.began[0]["dir"]) == (mode, str(tmp_path / "books"))


def test_wandb_refuses_a_mode_that_it_does_not_know(tmp_path, monkeypatch, wandb):
    monkeypatch.setenv("WANDB_MODE", "loud")
    config = make_config({"track": "wandb"})
    with pytest.raises(UsageError, match=r"\$WANDB_MODE must be one of online, offline.*got 'loud'"):
        config.track.open(RunFolder.create(config, tmp_path / "run").place, config, 0)


def test_a_run_that_sends_reaches_beyond_its_directory():
    made = {
        mode: make_config({"track": {"name": "wandb", "mode": mode}}).track.reaches() for mode in ("offline", "online")
    }
    assert made == {"offline": None, "online": "the server of Weights & Biases"}


def test_wandb_writes_through_no_link(tmp_path, wandb):
    config = make_config({"track": "wandb"})
    run = RunFolder.create(config, tmp_path / "run").place
    inner = run.path / "wandb" / "offline-run-1" / "logs"
    inner.mkdir(parents=True)
    (inner / "debug-core.log").symlink_to(tmp_path / "elsewhere")  # wandb's own, which nobody follows
    config.track.open(run, config, 0)
    (run.path / "wandb" / "offline-run-2").symlink_to(tmp_path)
    with pytest.raises(DataError, match="offline-run-2' is a link"):
        config.track.open(run, config, 0)


@pytest.mark.slow
@needs("wandb")
def test_wandb_itself_writes_the_records_offline(trial, crews, monkeypatch):
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    monkeypatch.setenv("WANDB_MODE", "offline")
    run = trial.run({"method": "fedper", "track": "wandb"}, crew=crews.stop_at(9))
    with pytest.raises(Interrupted):
        run.go()
    result = polyfed.resume(run.folder.path)
    assert "left out" not in (result.path / "log.txt").read_text()
    files = sorted((result.path / "wandb").glob("offline-run-*/run-*.wandb"))

    def written() -> dict[tuple[str, int], float]:
        shown: dict[tuple[str, int], float] = {}
        for file in files:
            store = DataStore()
            store.open_for_scan(str(file))
            while data := store.scan_data():
                items = Record.FromString(data).history.item
                row = {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}
                shown |= {(name, int(row["round"])): value for name, value in row.items() if "/" in name}
        return shown

    for _ in range(100):  # its own process writes the last block a moment after `finish`
        if written() == recorded(result):
            break
        time.sleep(0.1)
    assert written() == recorded(result)
    assert len(files) == 2
    assert len({file.name for file in files}) == 1  # one run, in two parts


@pytest.mark.parametrize(
    ("name", "package"),
    [("tensorboard", "torch.utils.tensorboard"), ("mlflow", "mlflow.tracking"), ("wandb", "wandb")],
)
def test_a_tracker_that_is_not_installed_is_one_sentence_and_the_run_goes_on(trial, monkeypatch, name, package):
    monkeypatch.setitem(sys.modules, package, None)
    result = trial({"track": name, "rounds": 1})
    log = (result.path / "log.txt").read_text()
    assert f"the tracker '{name}' is left out" in log
    assert "pip install 'polyfed[track]'" in log
    assert result.finished


@needs("tensorboard")
def test_a_tracker_that_breaks_half_way_is_left_out_once(trial, monkeypatch):
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
