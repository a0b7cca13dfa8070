"""Spawned workers: the same bits as forked ones and as none, from the same data, and as hard to get rid of."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from torch import nn

import polyfed
from killing import command, wait_for
from polyfed.engine.local import Workers
from polyfed.errors import RunFailed
from polyfed.methods.base import Method


@pytest.fixture(scope="module")
def spawned():
    """One crew for all: its processes import torch once."""
    crew = Workers(2, "spawn")
    yield crew
    crew.close()


def in_turn(trial, changes, crew):
    """The fingerprints of one run with spawned workers, forked ones and none."""
    runs = [trial(changes, crew), trial(changes | {"engine.workers": 2}), trial(changes)]
    assert [run["lost"] for run in runs] == [[], [], []]
    return {run.fingerprint for run in runs}


def test_the_same_bits_as_forked_workers_and_none(trial, own, spawned):
    for changes in ({"method.name": "map"}, {"method.name": own("Counting"), "model.name": "lenet"}):
        assert len(in_turn(trial, changes, spawned)) == 1


def test_arrays_modules_and_methods_of_this_process_reach_them(trial, spawned):
    class Halved(Method):
        """FedAvg with a weaker gradient."""

        def correct(self, client, grad):
            grad.mul_(0.5)

    class Body(nn.Module):
        """A network that takes its head from outside."""

        def __init__(self, classes):
            super().__init__()
            self.layers = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU())
            self.out = nn.Linear(8, classes)

        def forward(self, x):
            return self.out(self.layers(x))

    draw = np.random.default_rng(0)
    data = draw.integers(0, 255, (120, 6, 6), dtype=np.uint8), np.arange(120) % 5
    keys = {"data": data, "model": Body, "method": Halved, "split.clients": 4, "rounds": 2, "eval.classes": False}
    runs = [polyfed.run(keys, out=trial.path(), crew=crew, **{"engine.workers": 0}) for crew in (spawned, None)]
    assert runs[0]["failed"] == {}
    assert len({run.fingerprint for run in runs}) == 1


def test_a_killed_one_is_replaced_and_its_client_done_again(trial, own, spawned, tmp_path):
    changes = {"method.name": own("Failing"), "method.how": "once", "participation": 1.0, "rounds": 2}
    died = trial(changes | {"method.marker": str(tmp_path / "died")}, spawned)
    assert (tmp_path / "died").read_text() == "xx"
    assert (died["lost"], died["failed"]) == ([], {})
    expected = trial.kept({"method.name": own("Counting"), "participation": 1.0, "rounds": 2})
    assert died.fingerprint == expected.fingerprint


@pytest.mark.slow
@pytest.mark.parametrize("method", ["mupfl", "fedper", "scaffold", "ecl", "distfl"])
def test_the_same_bits_for_more_methods(trial, spawned, method):
    assert len(in_turn(trial, {"method.name": method, "rounds": 2, "model.name": "cnn"}, spawned)) == 1


@pytest.mark.slow
def test_splits_and_data_may_change_from_run_to_run(trial, spawned):
    for changes in ({"seed": 1}, {"split.clients": 6}, {"model.name": "lenet"}, {"split.heldout": 1}, {}):
        assert trial(changes, spawned).fingerprint == trial.kept(changes).fingerprint


@pytest.mark.slow
def test_a_deadline_does_not_count_the_time_they_need_to_start(trial):
    crew = Workers(2, "spawn")
    try:
        assert trial({"engine.deadline": 1.0}, crew)["lost"] == []
    finally:
        crew.close()


@pytest.mark.slow
def test_whoever_is_late_is_lost_and_his_worker_is_new(trial, own, spawned):
    changes = {"method.name": own("Failing"), "method.how": "sleep", "method.when": 1, "participation": 1.0}
    late = trial(changes | {"engine.deadline": 3.0}, spawned)
    assert late["lost"] == [[1, 1, "deadline"]]
    assert late["failed"] == {"deadline": 1}


@pytest.mark.slow
def test_one_that_cannot_set_up_says_why(trial, own, spawned, tmp_path):
    file = tmp_path / "fleeting.py"
    file.write_text("from polyfed.methods.base import Method\nclass Fleeting(Method):\n    pass\n")
    run = trial.run({"method.name": f"{file}:Fleeting"}, spawned)
    file.unlink()
    with pytest.raises(RunFailed, match=r"a worker could not set up.*no file"):
        run.go()


@pytest.mark.slow
def test_they_end_with_their_parent_however_that_dies(trial, own):
    changes = {"method.name": own("Counting"), "rounds": 200, "engine.workers": 2, "engine.start": "spawn"}
    out = trial.path()
    process = command(out, ["run", *trial.words(changes), "--out", str(out)])
    assert process.reaches(2)
    seen = process.kill()
    assert process.end() == -signal.SIGKILL
    assert len(seen.born) >= 3, "the run and its two workers"
    assert not (out / "summary.json").exists()
    assert wait_for(lambda: not seen.alive(), seconds=10)
    assert not seen.left_in_shared_memory()


def test_a_ctrl_c_stays_blocked_while_the_first_of_them_is_spawned():
    script = (
        "import signal\n"
        "from multiprocessing import resource_tracker\n"
        "from polyfed.engine.local.worker import _spawning\n"
        "with _spawning():\n"
        "    resource_tracker.getfd()  # as the first spawn does: it starts the tracker where there is none\n"
        "    assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])\n"
        "assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_ctrl_c_while_they_start_leaves_no_traceback(trial):
    out = trial.path()
    words = trial.words({"rounds": 200, "engine.workers": 2, "engine.start": "spawn"})
    call = [sys.executable, "-m", "polyfed.cli", "run", *words, "--out", str(out), "--quiet"]
    process = subprocess.Popen(call, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert wait_for((out / "federation.json").exists)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in said


@pytest.mark.slow
def test_a_script_needs_no_guard_and_is_not_run_again(trial, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import polyfed\n"
        "from polyfed.methods.base import Method\n"
        "print('here')\n"
        "class Mine(Method):\n"
        "    pass\n"
        f"keys = {trial.keys({'engine.workers': 2, 'engine.start': 'spawn'})!r}\n"
        f"print(polyfed.run(keys, method=Mine, out={str(tmp_path / 'run')!r})['failed'])\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "here\n{}\n"), done.stderr
