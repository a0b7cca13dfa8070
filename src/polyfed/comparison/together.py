"""Cells side by side, each in a process of its own, as many as cores and memory allow."""

import contextlib
import time
from multiprocessing.connection import wait

from polyfed.comparison.grid import Cell
from polyfed.comparison.jobs import Division
from polyfed.comparison.process import Begun, CellProcess, Holds, News, Over, Round, Said, log_failure
from polyfed.comparison.standing import PAUSE, Standing, State
from polyfed.config import Config
from polyfed.engine.run_folder import in_use
from polyfed.engine.size import available, cell_memory, in_bytes
from polyfed.engine.stop import StopRequest
from polyfed.engine.threads import threads
from polyfed.engine.work import federation_of
from polyfed.errors import Interrupted, PolyfedError, trouble

ENOUGH = 1.0  # seconds, and
ROUNDS = 2  # rounds, after which the first cell has shown how busy its workers are
PATIENCE = 0.2  # seconds between looks at stop requests


class Together:
    """Starts cells, hears what becomes of them, and passes on a request to stop."""

    def __init__(self, table: Standing, division: Division):
        self.table, self.division = table, division
        self.running: dict[Cell, CellProcess] = {}
        self.largest = 0.0  # bytes a cell was seen to hold
        self.busy: float | None = None  # what the first cell showed last
        self.told: set[str] = set()

    def go(self) -> None:
        """All cells; a request to stop reaches those that run, which save what they have."""
        stop = StopRequest()
        with stop.awaited():
            while self.table.open():
                self._start_what_may()
                self._hear()
                if stop.made:
                    self._stop()

    def close(self) -> None:
        """No process is left."""
        for process in self.running.values():
            process.end()
        self.running.clear()

    # ---- starting

    def _start_what_may(self) -> None:
        """Fill the free places, in order."""
        waiting = [cell for cell in self.table.open() if cell not in self.running and not self.table.waits(cell)]
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
        """Start a cell if it fits into memory."""
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
        """Read the data here, so that all processes share them; the bytes that a cell needs beside them."""
        with contextlib.suppress(Exception), threads(1):  # the cell itself will say what is wrong
            data = federation_of(config)
            return cell_memory(config.model, data.shape, data.classes, workers)
        return 0.0

    def _fits(self, estimate: float) -> bool:
        """Whether one more cell fits, when those that run have grown as large as any was seen to be."""
        need = max(estimate, self.largest)
        growing = sum(max(0.0, need - process.holds) for process in self.running.values())
        free = available() - growing
        if self.running and need > free:
            size, left = in_bytes(need), in_bytes(max(free, 0.0))
            self._say_once(f"not more than {len(self.running)} cells at once: each needs {size}, {left} are left")
            return False
        return True

    # ---- hearing

    def _hear(self) -> None:
        """Wait a moment for news."""
        if not self.running:
            time.sleep(PAUSE)
            return
        ready = wait([process.pipe for process in self.running.values()], timeout=PATIENCE)
        for process in [p for p in self.running.values() if p.pipe in ready]:
            for news in process.news():
                self._take(process, news)
            if process.over is not None:
                process.end()
                del self.running[process.cell]

    def _take(self, process: CellProcess, news: News) -> None:
        table, cell = self.table, process.cell
        match news:
            case Begun():
                table.becomes(cell, State.RUNNING)
            case Round():
                table.round(cell, news.done, news.rounds, news.numbers)
                self._measure(news)
            case Said():
                table.watch.say(news.text)
            case Holds():
                process.holds = max(process.holds, news.bytes)
                self.largest = max(self.largest, news.bytes)
            case Over():
                self._is_over(process, news)

    def _measure(self, news: Round) -> None:
        self.busy = news.busy
        if news.done >= ROUNDS and news.seconds >= ENOUGH:
            self._decide()

    def _decide(self) -> None:
        """How many at once, by what the first cell showed."""
        if self.division.at_once is None and self.busy is not None:
            self._say_once(self.division.measured(self.busy, len(self.table.open())))
        self.table.at_once = self.division.at_once or 1

    def _is_over(self, process: CellProcess, over: Over) -> None:
        table, cell = self.table, process.cell
        if over.elsewhere:
            table.becomes(cell, State.ELSEWHERE)
        elif over.died and table.finished(cell):
            pass  # it was killed after its last word was written
        elif over.stopped:
            table.becomes(cell, State.WAITING)
        elif over.error is not None or not table.finished(cell):
            known = over.error or PolyfedError("it ended without a result")
            if over.died:  # it could not write this down itself
                log_failure(table.folder.run(cell), known, known)
            table.fails(cell, known)
        self._decide()

    def _say_once(self, text: str) -> None:
        """Say something once, whatever follows its colon: numbers change all the time."""
        kind = text.split(":", 1)[0]
        if kind not in self.told:
            self.told.add(kind)
            self.table.watch.say(text)

    # ---- stopping

    def _stop(self) -> None:
        """Pass the request on, and wait until every cell has saved what it has."""
        for process in self.running.values():
            process.ask_to_stop()
        while self.running:
            self._hear()
        raise Interrupted("stopped")
