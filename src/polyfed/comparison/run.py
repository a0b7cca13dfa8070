"""Running a comparison: every cell once, by however many processes; one that fails does not stop the others."""

import time
import traceback
from collections.abc import Mapping, Sequence
from enum import Enum
from statistics import fmean
from typing import Protocol, runtime_checkable

from polyfed.comparison.folder import ComparisonFolder
from polyfed.comparison.grid import Cell
from polyfed.config import Config
from polyfed.engine.base import Crew, Engine
from polyfed.engine.rounds import Run, Watch
from polyfed.errors import Interrupted, InUse, PolyfedError

PAUSE = 0.5  # seconds between looks at cells another process works on


class State(Enum):
    """How far a cell is."""

    WAITING = "waiting"
    RUNNING = "running"
    ELSEWHERE = "elsewhere"  # another process works on it
    DONE = "done"
    FAILED = "failed"


States = Mapping[Cell, State]


@runtime_checkable
class Onlooker(Watch, Protocol):
    """Who looks on and wants to know of all cells, not only of the run that goes on."""

    def cells(self, states: States, left: float | None) -> None:
        """A cell's state changed; `left` are the seconds the rest will take, once there is something to go by."""


def run_cells(folder: ComparisonFolder, watch: Watch) -> dict[str, PolyfedError]:
    """Do what is missing; the errors of the cells that failed, by name.

    A cell another process works on is left to it and looked at again in the end. Where no cell got through and all
    failed alike, the mistake is not a cell's: it is raised.
    """
    runner = Runner(folder, watch)
    try:
        runner.go()
    except (Interrupted, KeyboardInterrupt):
        raise Interrupted(f"interrupted; go on with: polyfed resume {folder.path}") from None
    finally:
        runner.crew.close()
    failures = runner.failures
    if len(failures) == len(folder.grid.cells) and len({str(error) for error in failures.values()}) == 1:
        raise next(iter(failures.values()))
    return failures


class Runner:
    """The cells of a comparison and how far each is."""

    def __init__(self, folder: ComparisonFolder, watch: Watch):
        self.folder, self.watch, self.crew = folder, watch, _Crew()
        self.states = dict.fromkeys(folder.grid.cells, State.WAITING)
        self.seconds: dict[Cell, float] = {}
        self.failures: dict[str, PolyfedError] = {}

    def go(self) -> None:
        """Every cell in turn; then those others were working on, until they are done or free."""
        for cell in self.folder.grid.cells:
            self._finished(cell)
        self._tell()
        open_cells = self._do([cell for cell, state in self.states.items() if state is not State.DONE])
        if open_cells:
            self.watch.say(f"{len(open_cells)} cells are another process's; waiting for them")
        while open_cells:
            time.sleep(PAUSE)
            open_cells = self._do(open_cells)

    def _do(self, cells: Sequence[Cell]) -> list[Cell]:
        """Those of the cells that another process works on."""
        return [cell for cell in cells if not self._finished(cell) and not self._run(cell)]

    def _finished(self, cell: Cell) -> bool:
        summary = self.folder.run(cell).result()
        if summary is not None and self.states[cell] is not State.DONE:
            self.seconds[cell] = summary["seconds"]["total"]
            self._becomes(cell, State.DONE)
        return summary is not None

    def _run(self, cell: Cell) -> bool:
        """Run a cell to its end or its failure; False if another process does."""
        crew = self.crew.of(cell.config)
        try:
            run = self.folder.begin(cell)
            with run.locked():  # so that a cell which is another's is never shown as running here
                pass
            self._becomes(cell, State.RUNNING)
            Run(cell.config, run, crew, self.watch).go()
        except InUse:
            if self.states[cell] is not State.ELSEWHERE:
                self._becomes(cell, State.ELSEWHERE)
            return False
        except Interrupted:
            raise
        except Exception as error:
            self._fails(cell, error)
            return True
        return self._finished(cell)

    def _fails(self, cell: Cell, error: Exception) -> None:
        """Kept for the end, with where it happened in the cell's log; its workers may be in the middle of something."""
        known = error if isinstance(error, PolyfedError) else _fault(error)
        self.failures[cell.name] = known
        run = self.folder.run(cell)
        if run.path.is_dir():
            run.say(f"failed: {known}\n{''.join(traceback.format_exception(error)).rstrip()}")
        self.crew.close()
        self.watch.say(f"{cell.name} failed: {known}")
        self._becomes(cell, State.FAILED)

    def _becomes(self, cell: Cell, state: State) -> None:
        self.states[cell] = state
        self._tell()

    def _tell(self) -> None:
        if isinstance(self.watch, Onlooker):
            self.watch.cells(dict(self.states), time_left(self.states, self.seconds))


def _fault(error: Exception) -> PolyfedError:
    return PolyfedError(f"a fault in polyfed or a method: {type(error).__name__}: {error}")


def time_left(states: States, seconds: Mapping[Cell, float]) -> float | None:
    """What the open cells will take: each as long as its like took, or its row, or the mean cell; None at first."""
    if not seconds:
        return None

    def expected(cell: Cell) -> float:
        alike = [s for other, s in seconds.items() if other.line == cell.line]
        same_row = [s for other, s in seconds.items() if other.row == cell.row]
        return fmean(alike or same_row or seconds.values())

    return sum(expected(c) for c, state in states.items() if state in (State.WAITING, State.RUNNING))


class _Crew:
    """One crew for all cells, as long as they name the same engine."""

    def __init__(self) -> None:
        self.engine: Engine | None = None
        self.crew: Crew | None = None

    def of(self, config: Config) -> Crew:
        if self.crew is None or config.engine != self.engine:
            self.close()
            self.engine, self.crew = config.engine, config.engine.open()
        return self.crew

    def close(self) -> None:
        if self.crew is not None:
            self.crew.close()
            self.crew = None
