"""The finish round: the quorum holds there too, and who could not finish is told apart."""

import pytest

import polyfed
from polyfed.errors import RunFailed


@pytest.fixture
def finishing(own):
    return {"method.name": own("FinishesSometimes"), "participation": 1.0, "eval.classes": True}


@pytest.mark.parametrize(("fails", "quorum"), [(4, 0.5), (3, 0.5), (4, 0.0), (1, 1.0)])
def test_below_the_quorum_the_run_fails_with_a_sentence(trial, finishing, fails, quorum):
    run = trial.run(finishing | {"method.fails": fails, "engine.quorum": quorum})
    with pytest.raises(RunFailed, match=rf"finish fell below the quorum: {4 - fails} of 4 clients.*no time for that"):
        run.go()
    assert run.folder.result() is None
    assert not run.progress.finished


def test_a_finish_that_failed_is_tried_again_by_a_resume(trial, finishing):
    run = trial.run(finishing | {"method.fails": 4})
    with pytest.raises(RunFailed):
        run.go()
    with pytest.raises(RunFailed, match="finish fell below"):
        polyfed.resume(run.folder.path)
    assert "resumed after round 3" in run.folder.log.read_text()


def test_above_the_quorum_those_that_did_not_finish_are_counted_and_measured_apart(trial, finishing):
    result, whole = trial(finishing | {"method.fails": 1}), trial(finishing | {"method.fails": 0})
    assert (result["unfinished"], whole["unfinished"]) == ([0], [])
    assert result["failed"] == {"exception": 1}
    last = result.clients[result.clients["round"] == 4]
    assert last[last["measure"] == "personal_unfinished"]["client"].tolist() == [0]
    final = last[last["measure"] == "personal_final"]
    assert final["client"].tolist() == [1, 2, 3]
    assert result["personal.accuracy"] == pytest.approx(final["accuracy"].mean())
    before = result.clients[(result.clients["round"] == 3) & (result.clients["measure"] == "personal")]
    assert result["personal_unfinished.accuracy"] == before[before["client"] == 0]["accuracy"].item()
    assert whole["personal_unfinished"] is None
    assert {"unfinished", "unfinished_clients"} <= result.counts().keys()
    assert result.counts()["final_classes_clients"].tolist() == [1, 2, 3]


def test_the_table_says_who_is_missing(trial, finishing):
    table = trial(finishing | {"method.fails": 2}).table()
    assert "finish failed on 2 of 4 clients, which are not in personal, and have" in table
    assert "finish failed" not in trial(finishing | {"method.fails": 0}).table()


def test_a_resumed_run_remembers_who_did_not_finish(trial, finishing):
    done = trial(finishing | {"method.fails": 1})
    numbers = done.summary
    (done.path / "summary.json").unlink()
    again = polyfed.resume(done.path).summary
    assert {k: v for k, v in again.items() if k != "seconds"} == {k: v for k, v in numbers.items() if k != "seconds"}
