"""A stop request at any moment: what was whole is saved, the rest is done again, and nothing is counted twice."""

import signal
import threading

import pandas as pd
import pytest

import polyfed
from polyfed.engine.stop import StopRequest
from polyfed.errors import Interrupted

MOMENTS = [1, 5, 8, 10, 12, 17, 22, 29, 33, 36, 38]
REDRAWN = {"participation": 1.0, "split.clients": 4, "faults.dropout": 0.5, "engine.quorum": 0.6, "checkpoint.every": 2}


def without_time(summary):
    return {k: v for k, v in summary.items() if k not in ("run", "seconds")}


def same_records(one, other):
    for table in ("rounds", "clients", "classes"):
        assert (one / f"{table}.csv").read_bytes() == (other / f"{table}.csv").read_bytes(), table
    mine, theirs = (pd.read_csv(path / "training.csv").drop(columns="seconds") for path in (one, other))
    pd.testing.assert_frame_equal(mine, theirs)


@pytest.fixture
def changes(own):
    return REDRAWN | {"method.name": own("Finishing"), "split.val": 0.2}


def test_the_moments_below_are_of_all_kinds(trial, changes, crews):
    spy = crews.spy()
    summary = trial(changes, spy).summary
    kinds = [kind for kind, _, _ in spy.outcomes]
    assert {kinds[n - 1] for n in MOMENTS} == {"train", "evaluate", "finish"}
    assert kinds[MOMENTS[-1] - 1] == "evaluate", "the last evaluation, after finish"
    assert max(MOMENTS) <= len(kinds)
    attempts = trial.kept(changes).records("training").groupby("round")["attempt"].max()
    assert attempts.max() > 0, "some round is drawn again"
    assert summary["failed"]["dropout"] > 0


@pytest.mark.parametrize("moment", MOMENTS)
def test_stopped_anywhere_and_resumed_everything_is_as_if_it_never_was(trial, changes, crews, moment):
    crew = crews.stop_at(moment, signal.SIGTERM if moment % 2 else signal.SIGINT)
    run = trial.run(changes, crew)
    with pytest.raises(Interrupted, match="polyfed resume"):
        run.go()
    assert crew.where is not None
    resumed, whole = polyfed.resume(run.folder.path), trial.kept(changes)
    assert without_time(resumed.summary) == without_time(whole.summary)
    same_records(resumed.path, whole.path)


def test_stopped_again_and_again(trial, changes, crews):
    run = trial.run(changes, crews.stop_at(3))
    with pytest.raises(Interrupted):
        run.go()
    for _ in range(20):
        try:
            polyfed.resume(run.folder.path, crew=crews.stop_at(9))
            break
        except Interrupted:
            continue
    resumed, whole = polyfed.load(run.folder.path), trial.kept(changes)
    assert without_time(resumed.summary) == without_time(whole.summary)
    same_records(resumed.path, whole.path)


def test_a_checkpoint_that_is_there_is_not_written_again(trial, crews, monkeypatch):
    """Writing it anew would for a moment leave none, where only one is kept."""
    run = trial.run({"checkpoint.keep": 1, "rounds": 3, "participation": 1.0})
    saved = []
    prepare = run.prepare

    def spied():
        prepare()
        save = run.checkpoints.save

        def remember(progress, *rest):
            saved.append(progress.round)
            save(progress, *rest)

        monkeypatch.setattr(run.checkpoints, "save", remember)

    class AfterTwo:
        def round(self, done, rounds, numbers):
            if done == 2:
                signal.raise_signal(signal.SIGTERM)

        def say(self, text): ...

    monkeypatch.setattr(run, "prepare", spied)
    run.watch = AfterTwo()
    with pytest.raises(Interrupted, match="after round 2"):
        run.go()
    assert saved == [1, 2]


def test_the_handlers_of_the_caller_are_back_afterwards(trial):
    before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    trial({})
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_second_signal_is_the_callers():
    heard, request = [], StopRequest()
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        with request.awaited():
            signal.raise_signal(signal.SIGINT)
            assert (request.made, heard) == (True, [])
            signal.raise_signal(signal.SIGINT)
        assert heard == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)


def test_outside_the_main_thread_signals_are_left_alone(trial):
    results = []
    thread = threading.Thread(target=lambda: results.append(trial({}).fingerprint))
    thread.start()
    thread.join()
    assert results == [trial.kept({}).fingerprint]
