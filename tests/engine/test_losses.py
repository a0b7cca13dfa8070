"""Clients that die, raise, are late or stay away: counted by reason, named, and never the end of a good run."""

import time
from types import SimpleNamespace

import pytest

from polyfed import cli
from polyfed.engine.local import Serial
from polyfed.engine.local.worker import Begin
from polyfed.engine.memory import MemoryStore
from polyfed.engine.work import Job, Outcome
from polyfed.errors import RunFailed
from polyfed.message import Memory


@pytest.fixture
def failing(own):
    """Client 1 of 4 misbehaves in round 2."""
    return {"method.name": own("Failing"), "participation": 1.0}


def times(run, client):
    """How often a client remembers to have taken part."""
    blob = run.store.get(client, run.store.table[client])
    return Memory.decode(blob, run.world.resident.layout).times


def rows(run, round, client):
    table = [line.split(",") for line in (run.folder.path / "training.csv").read_text().splitlines()]
    at = {name: i for i, name in enumerate(table[0])}
    return [(r[at["status"]], r[at["reason"]]) for r in table[1:] if (int(r[0]), int(r[2])) == (round, client)]


def test_a_client_whose_worker_dies_twice_is_lost_to_the_round(trial, failing, workers, tmp_path):
    marker = tmp_path / "deaths"
    run = trial.run(failing | {"method.how": "exit", "method.marker": str(marker)}, workers(2))
    summary = run.go()
    assert marker.read_text() == "xx", "done again once, no more"
    assert summary["failed"] == {"worker died": 1}
    assert summary["lost"] == [[2, 1, "worker died"]]
    assert rows(run, 2, 1) == [("failed", "worker died")]
    assert "round 2: client 1 failed: worker died" in run.folder.log.read_text()
    assert [times(run, k) for k in range(4)] == [3, 2, 3, 3], "its memory of before the round counts on"
    assert run.progress.round == 3


def test_who_was_to_come_next_after_a_client_whose_worker_dies_is_not_lost(trial, failing, workers, tmp_path):
    marker = tmp_path / "deaths"
    changes = {"method.how": "exit", "method.marker": str(marker), "split.clients": 8}
    summary = trial.run(failing | changes, workers(2)).go()
    assert marker.read_text() == "xx"
    assert summary["lost"] == [[2, 1, "worker died"]]


def test_below_the_quorum_the_round_is_drawn_again_and_in_the_end_the_run_fails(trial, failing, workers):
    run = trial.run(failing | {"method.how": "raise", "method.who": -1})
    with pytest.raises(RunFailed, match=r"round 2 fell below the quorum.*this client cannot count.*log\.txt"):
        run.go()
    log = run.folder.log.read_text()
    assert log.count("round 2: 0 of 4 uploads, below the quorum; drawn again") == 5
    assert rows(run, 2, 0) == [("failed", "ArithmeticError: this client cannot count")] * 5
    assert not run.folder.summary.exists()
    assert run.store.table == dict.fromkeys(range(4), 1)


def test_the_command_line_says_why_a_run_failed(trial, failing, capsys):
    changes = failing | {"method.how": "exit", "engine.quorum": 1.0, "engine.workers": 2, "split.clients": 3}
    assert cli.call(["run", *trial.words(changes), "--out", str(trial.path()), "--quiet"]) == 4
    said = capsys.readouterr().err.strip()
    assert said.startswith("polyfed: round 2 fell below the quorum (1 of the selected clients) 5 times")
    assert "client 1: worker died" in said
    assert "\n" not in said


def test_nobody_there_is_said_too(trial):
    run = trial.run({"faults.dropout": 0.99, "engine.quorum": 0.0})
    with pytest.raises(RunFailed, match="dropped out"):
        run.go()


def test_a_round_drawn_again_selects_by_the_next_attempts_key(trial):
    run = trial.run({"split.clients": 8, "participation": 0.25})
    run.prepare()
    drawn = [tuple(run.roster.select(1, attempt)) for attempt in range(5)]
    assert len(set(drawn)) > 1
    assert drawn == [tuple(run.roster.select(1, attempt)) for attempt in range(5)]
    assert {len(d) for d in drawn} == {2}


@pytest.mark.parametrize("count", [0, 2])
def test_a_method_that_raises_on_one_client(trial, failing, workers, count):
    run = trial.run(failing | {"method.how": "raise"}, workers(2) if count else None)
    summary = run.go()
    assert summary["failed"] == {"exception": 1}
    assert summary["lost"] == [], "it would fail again: the bits are those of any other run"
    assert rows(run, 2, 1) == [("failed", "ArithmeticError: this client cannot count")]
    log = run.folder.log.read_text()
    assert "Traceback" in log
    assert "own_methods.py" in log
    assert [times(run, k) for k in range(4)] == [3, 2, 3, 3]


def test_raising_gives_the_same_bits_for_any_number_of_workers(trial, failing):
    changes = failing | {"method.how": "raise"}
    assert trial(changes).fingerprint == trial(changes | {"engine.workers": 2}).fingerprint


@pytest.mark.parametrize("count", [0, 1])
def test_an_upload_that_cannot_be_sent_is_a_failure_of_that_client(trial, failing, workers, count):
    run = trial.run(failing | {"method.how": "tangle"}, workers(1) if count else None)
    summary = run.go()
    assert summary["failed"] == {"exception": 1}
    assert "neither a tensor nor a number" in run.folder.log.read_text()
    assert [times(run, k) for k in range(4)] == [3, 2, 3, 3]


def test_whoever_is_not_back_by_the_deadline_is_lost(trial, failing, workers):
    run = trial.run(failing | {"method.how": "sleep", "engine.deadline": 4.0}, workers(2))
    started = time.monotonic()
    summary = run.go()
    assert time.monotonic() - started < 30, "it sleeps for ten minutes"
    assert summary["lost"] == [[2, 1, "deadline"]]
    assert summary["failed"] == {"deadline": 1}
    assert [times(run, k) for k in range(4)] == [3, 2, 3, 3]


def test_nobody_is_late_because_he_waited_behind_another(trial, failing, workers):
    changes = {"method.how": "sleep", "engine.deadline": 4.0, "split.clients": 8}
    assert trial.run(failing | changes, workers(2)).go()["lost"] == [[2, 1, "deadline"]]


def test_deadlines_do_not_wait_for_ever_even_if_all_are_late(trial, failing, workers):
    changes = {"method.how": "sleep", "method.who": -1, "method.when": 1, "engine.deadline": 0.3}
    run = trial.run(failing | changes, workers(2))
    started = time.monotonic()
    with pytest.raises(RunFailed, match="deadline"):
        run.go()
    assert time.monotonic() - started < 30
    assert len(run.progress.lost) == 5 * 4


def test_without_workers_a_late_answer_does_not_count_either(tmp_path):
    crew = Serial()
    crew.store = MemoryStore(tmp_path)

    def do(job, blob):
        time.sleep(0.3 if job.client == 1 else 0)
        return Outcome(job.client)

    crew.world = SimpleNamespace(do=do)
    jobs = [Job("train", k, 1) for k in range(3)]
    assert [o.error for o in crew.run(jobs, 0.2, None)] == ["", "deadline", "deadline"]
    assert [o.error for o in crew.run(jobs, None, None)] == ["", "", ""]


def test_a_worker_that_cannot_set_up_says_why(trial, workers, monkeypatch):
    """Every client fails with the reason, and the run with it."""
    crew, run = workers(1), trial.run({})
    run.crew = crew
    prepare = run.prepare

    def prepared():
        prepare()
        crew.workers[0].begin(Begin({"method": {"name": "no such method"}}))

    monkeypatch.setattr(run, "prepare", prepared)
    with pytest.raises(RunFailed, match=r"a worker could not set up.*no such method"):
        run.go()
