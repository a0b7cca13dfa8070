"""polyfed on a task: the wall clock from the end of the warm-up round to the end of the last measured one."""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import polyfed
from benchmarks.measure import family, processor_time
from benchmarks.task import Task, Tree
from polyfed.api import Result
from polyfed.errors import Interrupted

NEVER = 1_000_000


class Clock:
    """Notes when set-up and every round end; stops the run after enough of them, so that nothing is evaluated."""

    def __init__(self, rounds: int):
        self.rounds = rounds
        self.ready = 0.0
        self.times: list[float] = []
        self.cpu: list[float] = []  # of this process and its workers

    def round(self, done: int, rounds: int, numbers: dict[str, Any]) -> None:
        """A round is committed."""
        self.times.append(time.perf_counter())
        if done in (1, self.rounds):
            self.cpu.append(processor_time(family(os.getpid())))
        if done == self.rounds:
            raise Interrupted("measured enough")

    def say(self, text: str) -> None:
        """The first thing said is that the run begins."""
        self.ready = self.ready or time.perf_counter()


def clocked(tree: Tree, rounds: int, out: Path, kind: type[Clock] = Clock) -> Clock:
    """Run a warm-up round and so many more."""
    clock = kind(rounds + 1)
    quiet = {"rounds": NEVER, "eval": {"every": NEVER, "classes": False}}
    try:
        polyfed.run(quiet, tree, out=out, progress=clock)
    except Interrupted:
        return clock
    raise AssertionError("the run ended before it was measured")


def trained(run: Path, rounds: int) -> int:
    """Samples trained in the measured rounds, by polyfed's own records."""
    rows = Result(run).records("training")
    measured = rows[(rows["round"] > 1) & (rows["round"] <= rounds + 1)]
    if (measured["status"] != "accepted").any():
        raise AssertionError("a client of the benchmark failed")
    return int(measured["samples"].sum() + measured["skipped_batches"].sum())  # a skipped batch holds one sample


def measure(task: Task) -> dict[str, float]:
    """Samples and seconds; fails if other samples were trained than those of the task."""
    rounds, sizes = len(task.selected) - 1, task.sizes()
    with tempfile.TemporaryDirectory() as folder:
        clock = clocked({**task.config, "checkpoint": {"every": NEVER}}, rounds, Path(folder) / "run")
        samples = trained(Path(folder) / "run", rounds)
    expected = task.epochs * sum(sizes[k] for chosen in task.selected[1:] for k in chosen)
    if samples != expected:
        raise AssertionError(f"polyfed trained {samples} samples where the task has {expected}")
    return {"samples": samples, "seconds": clock.times[-1] - clock.times[0], "cpu": clock.cpu[-1] - clock.cpu[0]}


def main() -> None:
    """Print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task")
    options = parser.parse_args()
    json.dump(measure(Task.load(options.task)), sys.stdout)


if __name__ == "__main__":
    main()
