"""How many cells of a comparison run at once, and with how many workers each: the cores, divided."""

import math
import multiprocessing
import sys
from collections.abc import Sequence
from typing import Any, Literal

from polyfed.config import Config
from polyfed.engine.local import Local
from polyfed.engine.work import device_of
from polyfed.errors import UsageError
from polyfed.parts.chunks import cores

Jobs = int | Literal["auto"]
MOST = 1024  # cells at once
WORTH = 0.95  # share of the sequential time: cells run at once only if that is faster than this


def read_jobs(given: Any) -> Jobs:
    """`jobs` of a comparison: a number of cells, or auto."""
    number = isinstance(given, int) and not isinstance(given, bool) and 1 <= given <= MOST
    if not number and given != "auto":
        raise UsageError(f"jobs must be auto or a number of cells to run at once, from 1 to {MOST} (got {given!r})")
    return given


def one_by_one(configs: Sequence[Config], jobs: Jobs) -> str:
    """Why cells cannot run side by side; nothing where they can."""
    if "fork" not in multiprocessing.get_all_start_methods() or sys.platform == "darwin":
        return "this system cannot fork processes safely"
    for config in configs:
        if not isinstance(config.engine, Local):
            return f"engine '{config.engine.name}' divides the machine itself"
        if config.engine.server_threads > 1:
            return "engine.server_threads gives a cell several cores already"
        if config.engine.deadline is not None and jobs == "auto":
            return "on a crowded machine clients would miss engine.deadline"
    if any(device_of(name).type != "cpu" for name in {config.device for config in configs}):
        return "they share one device"
    return ""


def divide(count: int, cells: int, busy: float) -> int:
    """The number of cells to run at once on `count` cores so that all are done soonest.

    `busy` is the share of its time in which the workers of a cell were at work, when it had a worker on every core.
    The rest is the server's, which uses one core however many there are.
    """
    work, alone = busy * count, 1 - busy  # seconds of clients and server, in a second of that cell

    def needed(at_once: int) -> float:
        return math.ceil(cells / at_once) * (work / (count // at_once) + alone)

    best = min(range(1, min(count, cells) + 1), key=needed, default=1)
    return best if needed(best) <= WORTH * needed(1) else 1


class Division:
    """The cores of this machine among the cells of a comparison."""

    def __init__(self, jobs: Jobs, configs: Sequence[Config]):
        self.cores, self.given = cores(), jobs
        self.obstacle = one_by_one(configs, jobs)
        asked = [config.engine.workers for config in configs] if not self.obstacle else []
        self.open = any(workers is None for workers in asked)  # whether workers are ours to choose
        self.at_once: int | None = self._from_start(max((workers or 1 for workers in asked), default=1), len(configs))

    def _from_start(self, workers: int, cells: int) -> int | None:
        """How many at once; None where the first cell must show it."""
        if self.obstacle or cells < 2:
            return 1
        if self.given != "auto":
            return min(self.given, cells)
        if self.open and self.cores > 1:
            return None
        return min(max(1, self.cores // workers), cells)

    def measured(self, busy: float, cells: int) -> str:
        """Decide by how busy the first cell's workers were, with so many cells left; return the decision in words."""
        self.at_once = divide(self.cores, cells, min(busy, 1.0))
        how = f"{self.at_once} cells at once" if self.at_once > 1 else "one cell after the other"
        return f"jobs=auto: the workers of the first cell were at work in {busy:.0%} of the time, so {how}"

    def workers(self, config: Config, running: Sequence[int], waiting: int) -> int:
        """Worker processes for the next cell, beside cells that have so many each: none means it works by itself."""
        if config.engine.workers is not None:
            return config.engine.workers
        if self.at_once is None:
            return self.cores
        places = max(1, min(waiting, self.at_once - len(running)))
        free = self.cores - sum(max(1, workers) for workers in running)
        share = max(free // places, self.cores // self.at_once)
        return share if share > 1 else 0
