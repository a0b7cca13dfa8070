"""A run that is killed, stopped or in use: it can always be resumed, alone, and gives the same bits."""

import os
import signal
import socket
import threading

import pytest

import polyfed
from killing import command, forked, wait_for
from polyfed import cli
from polyfed.errors import DataError


def checkpoints(out):
    return sorted(p.name for p in (out / "checkpoints").glob("at-*")) if out.exists() else []


@pytest.fixture
def long(own):
    """Rounds enough to be killed in."""
    return {"method.name": own("Counting"), "rounds": 12, "engine.workers": 2}


def test_kill_9_in_the_middle_and_resume_by_command_with_another_number_of_workers(trial, long):
    out = trial.path()
    process = command(out, ["run", *trial.words(long), "--out", str(out)])
    assert process.reaches(2)
    seen = process.kill()
    assert process.end() == -signal.SIGKILL
    assert len(seen.born) == 3, "the run and its two workers"
    assert not (out / "summary.json").exists(), "killed before its end, or this test shows nothing"
    assert wait_for(lambda: not seen.alive(), seconds=5)
    assert not seen.left_in_shared_memory()
    assert command(out, ["resume", str(out), "--workers", "1"]).end() == 0
    assert "resumed after round" in (out / "log.txt").read_text()
    assert polyfed.load(out).fingerprint == trial.kept(long | {"engine.workers": 0}).fingerprint


def test_kill_9_before_the_first_checkpoint(trial, long):
    out = trial.path()
    process = command(out, ["run", *trial.words(long), "--out", str(out)])
    assert wait_for((out / "config.yaml").exists)
    seen = process.kill()
    assert process.end() == -signal.SIGKILL
    assert not checkpoints(out), "killed before the first checkpoint, or this test shows nothing"
    assert wait_for(lambda: not seen.alive(), seconds=5)
    assert cli.call(["resume", str(out), "--workers", "0", "--quiet"]) == 0
    assert "another environment" not in (out / "log.txt").read_text()
    assert polyfed.load(out).fingerprint == trial.kept(long | {"engine.workers": 0}).fingerprint


def test_kill_9_of_the_resumed_run_too(trial, long):
    out = trial.path()
    words = ["run", *trial.words(long), "--out", str(out)]
    for round, again in ((2, ["resume", str(out), "--workers", "1"]), (5, ["resume", str(out)])):
        process = forked(out, words)
        assert process.reaches(round)
        seen = process.kill()
        process.end()
        assert wait_for(lambda seen=seen: not seen.alive(), seconds=5)
        words = again
    assert not (out / "summary.json").exists()
    assert forked(out, words).end() == 0
    assert polyfed.load(out).fingerprint == trial.kept(long | {"engine.workers": 0}).fingerprint


def test_a_worker_in_the_middle_of_long_work_ends_with_its_parent(trial, own, tmp_path):
    out, marker = trial.path(), tmp_path / "sleeps"
    sleeping = {"method.name": own("Failing"), "method.how": "sleep", "method.marker": marker, "participation": 1.0}
    process = forked(out, ["run", *trial.words(sleeping | {"engine.workers": 2}), "--out", str(out)])
    assert wait_for(marker.exists)
    seen = process.kill()
    assert process.end() == -signal.SIGKILL
    assert len(seen.born) == 3
    assert wait_for(lambda: not seen.alive(), seconds=5), "it sleeps for ten minutes"


@pytest.mark.parametrize(("number", "start"), [(signal.SIGINT, forked), (signal.SIGTERM, command)])
def test_a_stopped_run_says_130_is_refused_while_it_runs_and_resumes(trial, long, number, start, capfd):
    changes = long | {"rounds": 40, "checkpoint.every": 100}
    out = trial.path()
    process = start(out, ["run", *trial.words(changes), "--out", str(out)])
    assert process.reaches(2)
    assert cli.call(["resume", str(out)]) == 3
    assert "in use" in capfd.readouterr().err
    seen = process.kill(number)
    assert process.end() == 130
    assert "polyfed resume" in (out.parent / f"{out.name}.out").read_text()
    assert len(checkpoints(out)) == 1, "saved because it was stopped"
    assert wait_for(lambda: not seen.alive(), seconds=5)
    assert cli.call(["resume", str(out), "--quiet", "--workers", "1"]) == 0
    assert polyfed.load(out).fingerprint == trial.kept(changes | {"engine.workers": 0}).fingerprint


def test_a_run_is_refused_to_a_second_user_in_the_same_process(trial):
    run = trial.run({})
    refusals = []

    class Meddler:
        def round(self, done, rounds, numbers):
            for resume in (self.here, self.in_a_thread):
                resume()

        def here(self):
            try:
                polyfed.resume(run.folder.path)
            except DataError as error:
                refusals.append(str(error))

        def in_a_thread(self):
            thread = threading.Thread(target=self.here)
            thread.start()
            thread.join()

        def say(self, text): ...

    run.watch = Meddler()
    summary = run.go()
    assert len(refusals) == 6
    assert all("in use" in said for said in refusals)
    assert polyfed.resume(run.folder.path).summary == summary, "a finished run just gives its result"


def test_a_worker_killed_in_the_middle_of_its_work_is_replaced_and_its_client_done_again(trial, own, tmp_path):
    changes = {"method.name": own("Failing"), "method.how": "once", "participation": 1.0, "engine.workers": 2}
    died = trial(changes | {"method.marker": str(tmp_path / "died")})
    assert (tmp_path / "died").read_text() == "xx"
    assert (died["lost"], died["failed"]) == ([], {})
    assert died.fingerprint == trial.kept({"method.name": own("Counting"), "participation": 1.0}).fingerprint


@pytest.mark.parametrize("who", [[0], [0, 1]])
def test_workers_killed_between_rounds(trial, workers, who, own):
    crew = workers(2)

    class Killer:
        def round(self, done, rounds, numbers):
            for worker in who:
                os.kill(crew.workers[worker].process.pid, signal.SIGKILL)

        def say(self, text): ...

    changes = {"method.name": own("Counting"), "participation": 1.0}
    killed = trial(changes, crew, Killer())
    assert (killed["lost"], killed["failed"]) == ([], {})
    assert killed.fingerprint == trial.kept(changes).fingerprint


def test_a_worker_that_dies_in_the_middle_of_its_answer(trial, workers, own):
    """Half a message is in the pipe when it ends: that is a dead worker, not the end of the run."""
    crew, (mine, theirs) = workers(1), socket.socketpair()

    class Cutter:
        def round(self, done, rounds, numbers):
            if done == 1:
                theirs.sendall((1000).to_bytes(4, "big") + b"the beginning")
                theirs.shutdown(socket.SHUT_WR)
                os.dup2(mine.fileno(), crew.workers[0].pipe.fileno())

        def say(self, text): ...

    changes = {"method.name": own("Counting"), "participation": 1.0}
    with mine, theirs:
        assert trial(changes, crew, Cutter()).fingerprint == trial.kept(changes).fingerprint


def test_a_crew_ends_its_processes_when_the_run_ends(trial, workers):
    crew = workers(2)
    trial({}, crew)
    pids = [w.process.pid for w in crew.workers]
    crew.close()
    assert len(pids) == 2
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


@pytest.mark.slow
def test_kill_9_on_text_with_adapters_of_each_client(tmp_path):
    """Tokens, and a personal slice in every memory."""
    rows = [f"{'fine great' if at % 2 else 'poor late'} w{at % 7},{at % 2},c{at % 4}" for at in range(80)]
    (tmp_path / "texts.csv").write_text("\n".join(["text,label,client", *rows]) + "\n")
    data = {"data.name": "text", "data.file": str(tmp_path / "texts.csv"), "data.length": 4, "data.ids": 32}
    model = {"model.name": "text-transformer", "model.width": 0.25, "model.lora.rank": 2, "method.name": "fedlora"}
    keys = {**data, **model, "rounds": 12, "train.batch": 10, "engine.workers": 2}
    out = tmp_path / "run"
    process = forked(out, ["run", *(f"{key}={value}" for key, value in keys.items()), "--out", str(out)])
    assert process.reaches(2)
    process.kill()
    assert process.end() == -signal.SIGKILL
    assert not (out / "summary.json").exists(), "killed before its end, or this test shows nothing"
    assert cli.call(["resume", str(out), "--workers", "0", "--quiet"]) == 0
    assert "resumed after round" in (out / "log.txt").read_text()
    assert polyfed.load(out).fingerprint == polyfed.run(keys, {"engine.workers": 0}, out=tmp_path / "whole").fingerprint
