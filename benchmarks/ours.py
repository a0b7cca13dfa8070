"""polyfed on a task: turns of some rounds, by the wall clock from the end of one to the end of another."""

import argparse
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import polyfed
from benchmarks.task import Task, Tree
from benchmarks.turns import Rounds
from polyfed.api import Result
from polyfed.errors import Interrupted
from polyfed.measure.watch import Watch

NEVER = 1_000_000


class Clock:
    """Hears of the rounds of a run and stops it when enough were measured, so that nothing is evaluated."""

    def __init__(self, rounds: Rounds):
        self.rounds = rounds
        self.begun = time.perf_counter()
        self.setup = 0.0

    def round(self, done: int, rounds: int, numbers: dict[str, Any]) -> None:
        """A round is committed."""
        if not self.rounds.over(done, setup=self.setup):
            raise Interrupted("measured enough")

    def say(self, text: str) -> None:
        """The first thing said is that the run begins."""
        self.setup = self.setup or time.perf_counter() - self.begun


def clocked(tree: Tree, clock: Watch, out: Path) -> None:
    """Run until the clock has enough."""
    quiet = {"rounds": NEVER, "eval": {"every": NEVER, "classes": False}}
    with suppress(Interrupted):
        polyfed.run(quiet, tree, out=out, progress=clock)
        raise AssertionError("the run ended before it was measured")


def trained(run: Path, rounds: range) -> int:
    """Samples trained in some rounds, by polyfed's own records."""
    rows = Result(run).records("training")
    measured = rows[rows["round"].isin(rounds)]
    if (measured["status"] != "accepted").any():
        raise AssertionError("a client of the benchmark failed")
    return int(measured["samples"].sum() + measured["skipped_batches"].sum())  # a skipped batch holds one sample


def turns(task: Task) -> None:
    """A turn whenever it is asked for; fails if other samples were trained than those of the task."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"

        def samples(turn: int) -> int:
            last = 1 + turn * task.per_turn
            found, expected = trained(run, range(last - task.per_turn + 1, last + 1)), task.samples(turn)
            if found != expected:
                raise AssertionError(f"polyfed trained {found} samples where the task has {expected}")
            return found

        clocked({**task.config, "checkpoint": {"every": NEVER}}, Clock(Rounds(task.per_turn, samples)), run)


def main() -> None:
    """Take turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task")
    turns(Task.load(parser.parse_args().task))


if __name__ == "__main__":
    main()
