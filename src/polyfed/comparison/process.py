"""A cell in a process of its own: what happens there is told through a pipe; it ends with its parent."""

import contextlib
import gc
import multiprocessing
import os
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
from threadpoolctl import threadpool_limits

from polyfed import errors
from polyfed.comparison.folder import ComparisonFolder
from polyfed.comparison.grid import Cell
from polyfed.config import Config
from polyfed.engine.base import Crew
from polyfed.engine.heap import keep_freed_memory
from polyfed.engine.memory import MemoryStore
from polyfed.engine.parent import end_with
from polyfed.engine.rounds import Run
from polyfed.engine.run_folder import RunFolder
from polyfed.engine.size import held
from polyfed.engine.work import Job, Outcome, World
from polyfed.errors import Interrupted, InUse, PolyfedError, trouble
from polyfed.measure.watch import Watch

SELDOM = 2.0  # seconds between looks at a cell's memory


@dataclass(frozen=True)
class Begun:
    """The cell is this process's, and its run begins."""


@dataclass(frozen=True)
class Round:
    """A round is committed; so busy were the workers since the first one, and so long."""

    done: int
    rounds: int
    numbers: dict[str, Any]
    busy: float
    seconds: float


@dataclass(frozen=True)
class Said:
    """A line for whoever looks on."""

    text: str


@dataclass(frozen=True)
class Holds:
    """Bytes of memory the cell has for itself."""

    bytes: float


@dataclass(frozen=True)
class Over:
    """The cell came to its end, another process has it, it was stopped, or it failed."""

    elsewhere: bool = False
    stopped: bool = False
    error: PolyfedError | None = None
    died: bool = False  # without a word


News = Begun | Round | Said | Holds | Over


def fault(error: Exception) -> PolyfedError:
    """Any error as one sentence."""
    if isinstance(error, PolyfedError):
        return error
    return trouble(error) or PolyfedError(f"a fault in polyfed or a method: {type(error).__name__}: {error}")


def log_failure(run: RunFolder, known: PolyfedError, error: Exception) -> None:
    """Into the cell's log, with where it happened."""
    with contextlib.suppress(OSError, PolyfedError):  # where there is no room for the run there is none for its log
        run.say(f"failed: {known}\n{''.join(traceback.format_exception(error)).rstrip()}")


@dataclass
class CellProcess:
    """One cell under way, seen from outside."""

    cell: Cell
    workers: int
    pipe: Connection
    process: Any
    holds: float = 0.0
    over: Over | None = None

    @staticmethod
    def start(folder: ComparisonFolder, cell: Cell, config: Config, workers: int, note: str) -> "CellProcess":
        """Fork it; Python objects of this process are there too."""
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe(duplex=False)
        serving = Serving(folder, cell, config, workers, note, theirs, ours, os.getpid())
        process = context.Process(target=serving.go)  # no daemon: it has workers of its own
        with warnings.catch_warnings():  # forking beside our own progress thread is safe: cells never print
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        theirs.close()
        return CellProcess(cell, workers, ours, process)

    def news(self) -> Iterator[News]:
        """What it told; its death is its end, too."""
        try:
            while self.over is None and self.pipe.poll():
                told: News = self.pipe.recv()
                if isinstance(told, Over):
                    self.over = told
                yield told
        except (EOFError, OSError):
            self.process.join()
            stopped = self.process.exitcode == -signal.SIGTERM  # asked before its run could hear it
            self.over = Over(False, stopped, PolyfedError(f"its process {_death(self.process.exitcode)}"), died=True)
            yield self.over

    def ask_to_stop(self) -> None:
        """It saves what it has and ends."""
        self.process.terminate()

    def end(self) -> None:
        """Wait for one that is over; kill any other."""
        if self.over is None:
            self.process.kill()
        self.process.join()
        self.pipe.close()


def _death(code: int) -> str:
    if code == -signal.SIGKILL:
        return "was killed (SIGKILL): by somebody, or because memory ran out"
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code} and no word"


@dataclass
class Serving:
    """The life of a cell's process."""

    folder: ComparisonFolder
    cell: Cell
    config: Config
    workers: int
    note: str
    pipe: Connection
    other_end: Connection
    parent: int
    looked: float = 0.0

    def go(self) -> None:
        """Run the cell; then end without a word on any stream that the parent has open."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's goes to all: the parent passes it on
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self.other_end.close()
        threading.Thread(target=end_with, args=(self.parent,), daemon=True).start()
        torch.set_num_threads(1)
        keep_freed_memory()
        gc.freeze()  # to look through what the parent made would copy all its pages
        try:
            with threadpool_limits(1):
                self.tell(self._outcome())
        finally:
            os._exit(0)

    def tell(self, news: News) -> None:
        """To the parent."""
        with contextlib.suppress(OSError):  # it is gone, and this process ends in a moment
            self.pipe.send(news)

    def _outcome(self) -> Over:
        run = self.folder.run(self.cell)
        try:
            self._run(run)
        except InUse:
            return Over(elsewhere=True)
        except Interrupted:
            return Over(stopped=True)
        except Exception as error:
            known = fault(error)
            log_failure(run, known, error)
            ours = getattr(errors, type(known).__name__, None) is type(known)  # any other may not cross a pipe
            return Over(error=known if ours else PolyfedError(str(known)))
        return Over()

    def _run(self, run: RunFolder) -> None:
        self.folder.begin(self.cell)
        with run.locked():  # so that a cell which is another's is never shown as running here
            pass
        self.tell(Begun())
        if run.result() is None:
            run.say(self.note)
        engine = self.config.engine.model_copy(update={"workers": self.workers})
        crew = Measured(engine.open(), max(1, self.workers))
        try:
            Run(self.config.model_copy(update={"engine": engine}), run, crew, Relay(self, crew)).go()
        finally:
            crew.close()

    def look_at_memory(self) -> None:
        """Now and then: reading it takes some milliseconds."""
        if time.monotonic() - self.looked > SELDOM:
            mine = [os.getpid(), *(child.pid for child in multiprocessing.active_children() if child.pid)]
            self.tell(Holds(sum(map(held, mine))))
            self.looked = time.monotonic()


@dataclass
class Relay(Watch):
    """Tells the parent what a watch is told."""

    serving: Serving
    crew: "Measured"

    def round(self, done: int, rounds: int, numbers: dict[str, Any]) -> None:
        """And how busy the workers were."""
        self.serving.tell(Round(done, rounds, numbers, *self.crew.busy()))
        self.serving.look_at_memory()

    def say(self, text: str) -> None:
        """A line."""
        self.serving.tell(Said(text))


class Measured:
    """A crew, and how much of its time it was at work."""

    def __init__(self, crew: Crew, workers: int):
        self.crew, self.workers, self.worked = crew, workers, 0.0
        self.began: float | None = None

    def busy(self) -> tuple[float, float]:
        """The share of the workers' time since the first job in which they worked, and that time in seconds."""
        passed = time.perf_counter() - (self.began or time.perf_counter())
        return (self.worked / (passed * self.workers) if passed > 0 else 0.0), passed

    def begin(self, config: Config, world: World, store: MemoryStore) -> None:
        """The crew's."""
        self.crew.begin(config, world, store)

    def hello(self) -> Iterator[Outcome]:
        """The crew's."""
        return self.crew.hello()

    def run(
        self, jobs: Sequence[Job], deadline: float | None, meanwhile: Callable[[], None] | None
    ) -> Iterator[Outcome]:
        """The crew's; what each job took is added up."""
        self.began = self.began or time.perf_counter()
        for outcome in self.crew.run(jobs, deadline, meanwhile):
            self.worked += outcome.numbers.get("seconds", 0.0)
            yield outcome

    def close(self) -> None:
        """The crew's."""
        self.crew.close()
