"""A cell in a process of its own: it reports events to its parent through a pipe, and it ends when its parent does."""

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

MEMORY_INTERVAL = 2.0  # seconds between two measurements of a cell's memory


@dataclass(frozen=True)
class CellStarted:
    """The process has locked the cell, and its run begins."""


@dataclass(frozen=True)
class RoundDone:
    """A round was committed.

    `busy` is the share of their time in which the workers were at work since the first job, and `seconds` is that time.
    """

    done: int
    rounds: int
    numbers: dict[str, Any]
    busy: float
    seconds: float


@dataclass(frozen=True)
class LogLine:
    """A line that the run wrote to its log."""

    text: str


@dataclass(frozen=True)
class MemoryUsed:
    """The bytes of memory that only this cell uses."""

    bytes: float


@dataclass(frozen=True)
class CellEnded:
    """The process is done with the cell: it finished, was stopped or failed, or another process works on the cell."""

    elsewhere: bool = False
    stopped: bool = False
    error: PolyfedError | None = None
    died: bool = False  # without sending this event itself


Event = CellStarted | RoundDone | LogLine | MemoryUsed | CellEnded


def fault(error: Exception) -> PolyfedError:
    """Turn any error into one that is explained in a sentence."""
    if isinstance(error, PolyfedError):
        return error
    return trouble(error) or PolyfedError(f"a fault in polyfed or a method: {type(error).__name__}: {error}")


def log_failure(run: RunFolder, known: PolyfedError, error: Exception) -> None:
    """Write an error and its traceback into the cell's log."""
    with contextlib.suppress(OSError, PolyfedError):  # where there is no room for the run there is none for its log
        run.say(f"failed: {known}\n{''.join(traceback.format_exception(error)).rstrip()}")


@dataclass
class CellProcess:
    """A running cell as its parent sees it."""

    cell: Cell
    workers: int
    pipe: Connection
    process: Any
    memory: float = 0.0
    ended: CellEnded | None = None

    @staticmethod
    def start(folder: ComparisonFolder, cell: Cell, config: Config, workers: int, note: str) -> "CellProcess":
        """Fork a process for a cell; it inherits the Python objects of this one."""
        context = multiprocessing.get_context("fork")
        ours, others = context.Pipe(duplex=False)
        runner = CellRunner(folder, cell, config, workers, note, others, ours, os.getpid())
        process = context.Process(target=runner.go)  # no daemon: it has workers of its own
        with warnings.catch_warnings():  # forking beside our own progress thread is safe: cells never print
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        others.close()
        return CellProcess(cell, workers, ours, process)

    def events(self) -> Iterator[Event]:
        """Yield the events that have arrived; a process that died is reported as ended."""
        try:
            while self.ended is None and self.pipe.poll():
                event: Event = self.pipe.recv()
                if isinstance(event, CellEnded):
                    self.ended = event
                yield event
        except (EOFError, OSError):
            self.process.join()
            stopped = self.process.exitcode == -signal.SIGTERM  # it was asked to stop before its run listened for it
            error = PolyfedError(f"its process {_how_it_died(self.process.exitcode)}")
            self.ended = CellEnded(stopped=stopped, error=error, died=True)
            yield self.ended

    def ask_to_stop(self) -> None:
        """Ask the process to save what it has and to end."""
        self.process.terminate()

    def end(self) -> None:
        """Wait for the process if it has ended its cell; kill it otherwise."""
        if self.ended is None:
            self.process.kill()
        self.process.join()
        self.pipe.close()


def _how_it_died(code: int) -> str:
    if code == -signal.SIGKILL:
        return "was killed (SIGKILL): by somebody, or because memory ran out"
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code} and no word"


@dataclass
class CellRunner:
    """What runs in a cell's process."""

    folder: ComparisonFolder
    cell: Cell
    config: Config
    workers: int
    note: str
    pipe: Connection
    parents_end: Connection
    parent: int
    memory_read: float = 0.0

    def go(self) -> None:
        """Run the cell, then end without flushing any stream that was inherited from the parent."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the parent passes it on
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self.parents_end.close()
        threading.Thread(target=end_with, args=(self.parent,), daemon=True).start()
        torch.set_num_threads(1)
        keep_freed_memory()
        gc.freeze()  # a collection that visited the parent's objects would copy their pages
        try:
            with threadpool_limits(1):
                self.send(self._outcome())
        finally:
            os._exit(0)

    def send(self, event: Event) -> None:
        """Send an event to the parent."""
        with contextlib.suppress(OSError):  # the parent is gone, and this process ends in a moment
            self.pipe.send(event)

    def _outcome(self) -> CellEnded:
        run = self.folder.run(self.cell)
        try:
            self._run(run)
        except InUse:
            return CellEnded(elsewhere=True)
        except Interrupted:
            return CellEnded(stopped=True)
        except Exception as error:
            known = fault(error)
            log_failure(run, known, error)
            ours = getattr(errors, type(known).__name__, None) is type(known)  # other classes may not be picklable
            return CellEnded(error=known if ours else PolyfedError(str(known)))
        return CellEnded()

    def _run(self, run: RunFolder) -> None:
        self.folder.begin(self.cell)
        with run.locked():  # a cell that another process works on is never shown as running here
            pass
        self.send(CellStarted())
        if run.result() is None:
            run.say(self.note)
        engine = self.config.engine.model_copy(update={"workers": self.workers})
        crew = MeasuredCrew(engine.open(), max(1, self.workers))
        try:
            Run(self.config.model_copy(update={"engine": engine}), run, crew, Relay(self, crew)).go()
        finally:
            crew.close()

    def report_memory(self) -> None:
        """Report how much memory the cell uses, at intervals, because reading it takes some milliseconds."""
        if time.monotonic() - self.memory_read > MEMORY_INTERVAL:
            mine = [os.getpid(), *(child.pid for child in multiprocessing.active_children() if child.pid)]
            self.send(MemoryUsed(sum(map(held, mine))))
            self.memory_read = time.monotonic()


@dataclass
class Relay(Watch):
    """A watch that passes on to the parent what it is told."""

    runner: CellRunner
    crew: "MeasuredCrew"

    def round(self, done: int, rounds: int, numbers: dict[str, Any]) -> None:
        """Report a round, and how busy the workers were."""
        self.runner.send(RoundDone(done, rounds, numbers, *self.crew.busy()))
        self.runner.report_memory()

    def say(self, text: str) -> None:
        """Pass on a line of the log."""
        self.runner.send(LogLine(text))


class MeasuredCrew:
    """A crew that measures which share of its time its workers are at work."""

    def __init__(self, crew: Crew, workers: int):
        self.crew, self.workers, self.worked = crew, workers, 0.0
        self.began: float | None = None

    def busy(self) -> tuple[float, float]:
        """Return the share of the time since the first job in which the workers worked, and that time in seconds."""
        passed = time.perf_counter() - (self.began or time.perf_counter())
        return (self.worked / (passed * self.workers) if passed > 0 else 0.0), passed

    def begin(self, config: Config, world: World, store: MemoryStore) -> None:
        """Let the crew begin a run."""
        self.crew.begin(config, world, store)

    def hello(self) -> Iterator[Outcome]:
        """Ask the crew's clients for their hellos."""
        return self.crew.hello()

    def run(
        self, jobs: Sequence[Job], deadline: float | None, meanwhile: Callable[[], None] | None
    ) -> Iterator[Outcome]:
        """Run the jobs, and add up the seconds that each took."""
        self.began = self.began or time.perf_counter()
        for outcome in self.crew.run(jobs, deadline, meanwhile):
            self.worked += outcome.numbers.get("seconds", 0.0)
            yield outcome

    def close(self) -> None:
        """Close the crew."""
        self.crew.close()
