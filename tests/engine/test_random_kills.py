"""kill -9 at random moments, of the run or of a worker, again after a resume, with any number of workers."""

import os
import random
import signal
import time

import pytest

import polyfed
from killing import children, forked, wait_for

pytestmark = pytest.mark.slow
CASES = [  # (victim, method, workers of each sitting); the number of the case is the seed of the moments
    ("run", "fedper", (2, 0, 1)),
    ("run", "Counting", (2, 1, 0)),
    ("worker", "fedper", (2,)),
    ("checkpoint", "fedper", (2, 0, 2)),
    ("run", "fedper", (1, 2, 0)),
    ("worker", "Counting", (2,)),
    ("checkpoint", "Counting", (2, 1, 2)),
    ("run", "Counting", (0, 2, 1)),
    ("checkpoint", "fedper", (1, 2, 0)),
    ("worker", "fedper", (1,)),
]
ROUNDS = 25


@pytest.fixture(scope="module")
def long(own):
    """Many clients with a memory and a checkpoint every round: much of the time is saving."""
    common = {"split.clients": 24, "data.limit": 100, "rounds": ROUNDS, "participation": 0.5, "eval.every": 5}
    return {
        name: common | {"method.name": own(name) if name == "Counting" else name} for name in ("fedper", "Counting")
    }


@pytest.mark.parametrize("seed", range(len(CASES)))
def test_killed_and_resumed_the_bits_are_the_same(trial, long, seed):
    victim, method, sittings = CASES[seed]
    draw, out = random.Random(seed), trial.path()
    words = ["run", *trial.words(long[method] | {"engine.workers": sittings[0]}), "--out", str(out)]
    if victim == "worker":
        kill_workers(forked(out, words), draw)
    else:
        for sitting, workers in enumerate(sittings[1:]):
            first = ROUNDS // 2 * sitting
            kill(forked(out, words), draw.randrange(first, first + ROUNDS // 3), draw, victim == "checkpoint")
            words = ["resume", str(out), "--workers", str(workers)]
        assert forked(out, words).end() == 0
    result = polyfed.load(out)
    assert result["lost"] == []
    assert result.fingerprint == trial.kept(long[method]).fingerprint


def checkpointed(out):
    """The round of the newest checkpoint; -1 if there is none."""
    return max((int(p.name[3:9]) for p in (out / "checkpoints").glob("at-*")), default=-1)


def saving(out):
    """Whether a checkpoint is being written aside."""
    return any((out / "checkpoints").glob(".at-*.tmp"))


def reach(process, round, draw):
    """A random moment after a round (0: before the first one) is saved."""
    assert wait_for((process.out / "config.yaml").exists)
    assert wait_for(lambda: round == 0 or checkpointed(process.out) >= round)
    time.sleep(draw.uniform(0, 0.1))


def kill(process, round, draw, while_saving):
    """kill -9: nobody survives, nothing stays in shared memory."""
    reach(process, round, draw)
    assert not while_saving or wait_for(lambda: saving(process.out), step=0)
    seen = process.kill()
    assert process.end() == -signal.SIGKILL, "it was over before it could be killed"
    assert wait_for(lambda: not seen.alive(), seconds=5)
    assert not seen.left_in_shared_memory()


def kill_workers(process, draw):
    """Three random workers in one run, many rounds apart: no client loses two of them."""
    for third in range(3):
        reach(process, 1 + third * ROUNDS // 3, draw)
        os.kill(draw.choice(children(process.pid)), signal.SIGKILL)
    assert process.end() == 0
