"""Runs on masks: the same bits for any number of workers, forked or spawned, and after a kill."""

import signal
from pathlib import Path
from typing import Any

import pytest

import masked
import polyfed
from killing import command

METHOD = {"name": "mupfl", "tau": 1.0, "match_steps": 5, "draws": 2}


def kept(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (run / "samples").iterdir()}


@pytest.mark.slow
def test_workers_forked_or_spawned_change_nothing(tmp_path: Path) -> None:
    engines: list[dict[str, Any]] = [{"workers": 0}, {"workers": 1}, {"workers": 2}, {"workers": 2, "start": "spawn"}]
    data = masked.source(background="class", augment="crop+flip")
    keys = {key: value for key, value in masked.settings(data=data, method=METHOD).items() if key != "engine.workers"}
    runs = [polyfed.run(**keys, engine=each, out=tmp_path / str(at)) for at, each in enumerate(engines)]
    assert len({run.fingerprint for run in runs}) == 1
    assert all(run.summary["personal"] == runs[0].summary["personal"] for run in runs)
    assert all(kept(run.path) == kept(runs[0].path) for run in runs)


@pytest.mark.slow
def test_kill_9_in_the_middle_and_resume(tmp_path: Path) -> None:
    root, out = masked.folders(tmp_path / "data", ("a", "b", "c")), tmp_path / "run"
    words = [f"method.{key}={value}" for key, value in METHOD.items()] + ["rounds=8", "train.batch=4"]
    words += ["data.name=folder", f"data.root={root}", "data.classes=3", "model=lraspp-small", "checkpoint.every=1"]
    process = command(out, ["run", *words, "engine.workers=2", "--out", str(out)])
    assert process.reaches(2)
    process.kill()
    assert process.end() == -signal.SIGKILL
    assert not (out / "summary.json").exists(), "killed before its end, or this test shows nothing"
    assert command(out, ["resume", str(out), "--workers", "0"]).end() == 0
    whole = command(tmp_path / "whole", ["run", *words, "engine.workers=0", "--out", str(tmp_path / "whole")])
    assert whole.end() == 0
    ours, theirs = polyfed.load(out), polyfed.load(tmp_path / "whole")
    assert ours.fingerprint == theirs.fingerprint
    assert kept(out) == kept(tmp_path / "whole")
