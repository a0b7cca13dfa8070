"""kill -9 at random moments of runs with an attack, with a defence that remembers, with a budget: the same bits."""

import random
import signal
import time

import pytest

import polyfed
from killing import forked, wait_for
from polyfed.engine.selection import most_appearances

pytestmark = pytest.mark.slow
ROUNDS = 12
COMMON = {"split.clients": 6, "rounds": ROUNDS, "participation": 1.0, "eval.every": 4}
CLIPPING = {"defence.name": "centred-clipping", "defence.pre": "nnm"}
CREDIT = {"defence.name": "credit", "defence.clean": 4, "defence.width": 16, "defence.epochs": 20}
CASES = {
    "alie": COMMON | {"attack.name": "alie", "attack.count": 2} | CLIPPING,
    "label flip": COMMON
    | {"attack.name": "label-flip", "attack.count": 2, "attack.rounds": [*range(3, ROUNDS)]}
    | CREDIT,
    "dp-sgd": COMMON
    | {"privacy.name": "dp-sgd", "privacy.epsilon": 20.0, "train.batch": 64}
    | {"participation": 0.5, "engine.quorum": 0.1}
    | {"attack.name": "alie", "attack.count": 2}
    | CLIPPING,
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


def killed_twice(trial, changes, seed):
    """The directory of a run that was killed in its first and in its second half, and resumed each time."""
    draw, out = random.Random(seed), trial.path()
    words = ["run", *trial.words(changes), "--out", str(out)]
    for first in (1, ROUNDS // 2):
        kill(forked(out, words), draw.randrange(first, first + ROUNDS // 4), draw)
        words = ["resume", str(out)]
    assert forked(out, words).end() == 0
    return out


@pytest.mark.parametrize("case", ["alie", "label flip"])
def test_an_attack_and_a_defence_that_remembers_go_on_where_they_were(trial, case):
    result, whole = polyfed.load(killed_twice(trial, CASES[case], len(case))), trial(CASES[case])
    assert result.fingerprint == whole.fingerprint
    assert result.summary["threats"] == whole.summary["threats"]
    assert (result.path / "threats.csv").read_bytes() == (whole.path / "threats.csv").read_bytes()


def test_a_budget_is_spent_once_however_often_the_run_is_killed(trial, monkeypatch):
    """The noise is made for one round fewer than somebody is drawn in: there its part ends, and the others go on.

    Some clients attack meanwhile, and a defence remembers.
    """
    pytest.importorskip("opacus", reason="skipped: no opacus")
    # a fork has it, too
    monkeypatch.setattr("polyfed.engine.work.most_appearances", lambda *given: most_appearances(*given) - 1)
    result, whole = polyfed.load(killed_twice(trial, CASES["dp-sgd"], 3)), trial(CASES["dp-sgd"])
    assert result.fingerprint == whole.fingerprint
    assert result.summary["privacy"] == whole.summary["privacy"]
    assert (result.path / "privacy.csv").read_bytes() == (whole.path / "privacy.csv").read_bytes()
    assert result.summary["threats"] == whole.summary["threats"]
    assert (result.path / "threats.csv").read_bytes() == (whole.path / "threats.csv").read_bytes()
    assert result.summary["failed"] == whole.summary["failed"]
    assert whole.summary["failed"]["budget spent"] >= 1
    assert 19 < whole.summary["privacy"]["epsilon"] <= 20
