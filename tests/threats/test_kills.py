"""kill -9 at random moments of runs with an attack, with a defence that remembers, with a budget: the same bits."""

import random
import signal
import time

import pytest

import polyfed
from killing import forked, wait_for
from polyfed.errors import RunFailed

pytestmark = pytest.mark.slow
ROUNDS = 12
COMMON = {"split.clients": 6, "rounds": ROUNDS, "participation": 1.0, "eval.every": 4}
CLIPPING = {"defence.name": "centred-clipping", "defence.pre": "nnm"}
CREDIT = {"defence.name": "credit", "defence.clean": 4, "defence.width": 16, "defence.epochs": 20}
CASES = {
    "alie": COMMON | {"attack.name": "alie", "attack.count": 2} | CLIPPING,
    "label flip": COMMON | {"attack.name": "label-flip", "attack.count": 2, "attack.rounds": "{from: 3}"} | CREDIT,
    "dp-sgd": COMMON | {"privacy.name": "dp-sgd", "privacy.epsilon": 20.0, "train.batch": 64, "engine.quorum": 0.1},
}


def checkpointed(out):
    """The round of the newest checkpoint; -1 if there is none."""
    return max((int(p.name[3:9]) for p in (out / "checkpoints").glob("at-*")), default=-1)


def kill(process, round, draw):
    """kill -9 at a random moment after a round is saved."""
    assert wait_for(lambda: checkpointed(process.out) >= round)
    time.sleep(draw.uniform(0, 0.03))
    process.kill()
    assert process.end() == -signal.SIGKILL, "it was over before it could be killed"


def killed_twice(trial, changes, seed, ends=0):
    """The directory of a run that was killed in its first and in its second half, and resumed each time."""
    draw, out = random.Random(seed), trial.path()
    words = ["run", *trial.words(changes), "--out", str(out)]
    for first in (1, ROUNDS // 2):
        kill(forked(out, words), draw.randrange(first, first + ROUNDS // 4), draw)
        words = ["resume", str(out)]
    assert forked(out, words).end() == ends
    return out


@pytest.mark.parametrize("case", ["alie", "label flip"])
def test_an_attack_and_a_defence_that_remembers_go_on_where_they_were(trial, case):
    result, whole = polyfed.load(killed_twice(trial, CASES[case], len(case))), trial(CASES[case])
    assert result.fingerprint == whole.fingerprint
    assert result.summary["threats"] == whole.summary["threats"]
    assert (result.path / "threats.csv").read_bytes() == (whole.path / "threats.csv").read_bytes()


def test_a_budget_is_spent_once_however_often_the_run_is_killed(trial, monkeypatch):
    """The noise is made for eight rounds of twelve: the last ones find nobody who can pay."""
    pytest.importorskip("opacus", reason="skipped: no opacus")
    monkeypatch.setattr("polyfed.engine.work.most_appearances", lambda config, everybody: 8)  # a fork has it, too
    run = trial.run(CASES["dp-sgd"])
    with pytest.raises(RunFailed, match="budget spent"):
        run.go()
    out, whole = killed_twice(trial, CASES["dp-sgd"], 3, ends=4), run.folder.path
    for table in ("privacy", "training"):
        assert (out / f"{table}.csv").read_bytes() == (whole / f"{table}.csv").read_bytes(), table
    rows = [line.split(",") for line in (out / "privacy.csv").read_text().splitlines()[1:]]
    assert max(int(row[0]) for row in rows) == 8
    assert 19 < max(float(row[-1]) for row in rows) <= 20
