"""Cells side by side, each in a process of its own, as many as cores and memory allow."""

import contextlib
import time
from multiprocessing.connection import wait

from polyfed.comparison.grid import Cell
from polyfed.comparison.jobs import Division
from polyfed.comparison.process import (
    CellEnded,
    CellProcess,
    CellStarted,
    Event,
    LogLine,
    MemoryUsed,
    RoundDone,
    log_failure,
)
from polyfed.comparison.standing import PAUSE, Standing, State, longest_first
from polyfed.config import Config
from polyfed.engine.run_folder import in_use
from polyfed.engine.size import available, cell_memory, in_bytes
from polyfed.engine.stop import StopRequest
from polyfed.engine.threads import threads
from polyfed.engine.work import federation_of
from polyfed.errors import Interrupted, PolyfedError, trouble

# After so many rounds and seconds the first cell has shown how busy its workers are.
FIRST_ROUNDS = 2
FIRST_SECONDS = 1.0
POLL = 0.2  # seconds between two checks for a request to stop


class Together:
    """Starts cells in processes, handles the events that they send, and passes on a request to stop."""

    def __init__(self, table: Standing, division: Division):
        self.table, self.division = table, division
        self.running: dict[Cell, CellProcess] = {}
        self.largest = 0.0  # the most bytes that any cell has used
        self.busy: float | None = None  # how busy the workers of the first cell were, as last reported
        self.told: set[str] = set()

    def go(self) -> None:
        """Run all cells; a request to stop is passed on to those that run, which save what they have."""
        stop = StopRequest()
        with stop.awaited():
            while self.table.open():
                self._fill_free_places()
                self._wait_for_events()
                if stop.made:
                    self._stop()

    def close(self) -> None:
        """End every process that is still running."""
        for process in self.running.values():
            process.end()
        self.running.clear()

    # ---- starting

    def _fill_free_places(self) -> None:
        """Start waiting cells, the longest first, until as many run as may run at once."""
        ready = [cell for cell in self.table.open() if cell not in self.running and not self.table.waits(cell)]
        waiting = longest_first(ready, self.table.seconds, self.table.sources.values())
        for number, cell in enumerate(waiting):
            if len(self.running) >= (self.division.at_once or 1):
                return
            if self.table.finished(cell):
                continue
            if in_use(self.table.folder.run(cell).path):
                self.table.becomes(cell, State.ELSEWHERE)
            elif not self._start(cell, len(waiting) - number):
                return
        elsewhere = list(self.table.states.values()).count(State.ELSEWHERE)
        if elsewhere:
            self._say_once(f"{elsewhere} cells are another process's; waiting for them")

    def _start(self, cell: Cell, waiting: int) -> bool:
        """Start a cell if it fits into memory; return whether it did."""
        config = self.table.config(cell)
        workers = self.division.workers(config, [p.workers for p in self.running.values()], waiting)
        if not self._fits(self._prepared(config, workers)):
            return False
        note = f"runs with {workers or 'no'} workers, beside up to {(self.division.at_once or 1) - 1} other cells"
        try:
            self.running[cell] = CellProcess.start(self.table.folder, cell, config, workers, note)
        except OSError as error:
            self.table.fails(cell, trouble(error) or PolyfedError(str(error)))
        return True

    def _prepared(self, config: Config, workers: int) -> float:
        """Read the data here, so that all processes share them; return the bytes that a cell needs beside them."""
        with contextlib.suppress(Exception), threads(1):  # the cell itself will say what is wrong
            data = federation_of(config)
            return cell_memory(config.model.architectures, data.shape, data.classes, workers)
        return 0.0

    def _fits(self, estimate: float) -> bool:
        """Whether one more cell fits, when those that run have grown as large as any was seen to be."""
        need = max(estimate, self.largest)
        growing = sum(max(0.0, need - process.memory) for process in self.running.values())
        free = available() - growing
        if self.running and need > free:
            size, left = in_bytes(need), in_bytes(max(free, 0.0))
            self._say_once(f"not more than {len(self.running)} cells at once: each needs {size}, {left} are left")
            return False
        return True

    # ---- events

    def _wait_for_events(self) -> None:
        """Wait a moment for events, and handle those that arrive."""
        if not self.running:
            time.sleep(PAUSE)
            return
        ready = wait([process.pipe for process in self.running.values()], timeout=POLL)
        for process in [p for p in self.running.values() if p.pipe in ready]:
            for event in process.events():
                self._handle(process, event)
            if process.ended is not None:
                process.end()
                del self.running[process.cell]

    def _handle(self, process: CellProcess, event: Event) -> None:
        table, cell = self.table, process.cell
        match event:
            case CellStarted():
                table.becomes(cell, State.RUNNING)
            case RoundDone():
                table.round(cell, event.done, event.rounds, event.numbers)
                self._measure(event)
            case LogLine():
                table.watch.say(event.text)
            case MemoryUsed():
                process.memory = max(process.memory, event.bytes)
                self.largest = max(self.largest, event.bytes)
            case CellEnded():
                self._cell_ended(process, event)

    def _measure(self, event: RoundDone) -> None:
        self.busy = event.busy
        if event.done >= FIRST_ROUNDS and event.seconds >= FIRST_SECONDS:
            self._decide()

    def _decide(self) -> None:
        """Decide how many cells run at once, by how busy the workers of the first one were."""
        if self.division.at_once is None and self.busy is not None:
            self._say_once(self.division.measured(self.busy, len(self.table.open())))
        self.table.at_once = self.division.at_once or 1

    def _cell_ended(self, process: CellProcess, ended: CellEnded) -> None:
        table, cell = self.table, process.cell
        if ended.elsewhere:
            table.becomes(cell, State.ELSEWHERE)
        elif ended.died and table.finished(cell):
            pass  # it was killed after it had written its result
        elif ended.stopped:
            table.becomes(cell, State.WAITING)
        elif ended.error is not None or not table.finished(cell):
            known = ended.error or PolyfedError("it ended without a result")
            if ended.died:  # it could not log this itself
                log_failure(table.folder.run(cell), known, known)
            table.fails(cell, known)
        self._decide()

    def _say_once(self, text: str) -> None:
        """Say something once; what follows its colon is ignored, because numbers change all the time."""
        kind = text.split(":", 1)[0]
        if kind not in self.told:
            self.told.add(kind)
            self.table.watch.say(text)

    # ---- stopping

    def _stop(self) -> None:
        """Pass a request to stop on, and wait until every cell has saved what it has."""
        for process in self.running.values():
            process.ask_to_stop()
        while self.running:
            self._wait_for_events()
        raise Interrupted("stopped")
