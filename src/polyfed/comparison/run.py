"""Running a comparison: every cell once, by however many processes; one that fails does not stop the others."""

import time
from dataclasses import dataclass
from typing import Any

from polyfed.comparison.folder import ComparisonFolder
from polyfed.comparison.grid import Cell
from polyfed.comparison.jobs import Division
from polyfed.comparison.process import fault, log_failure
from polyfed.comparison.standing import PAUSE, Standing, State
from polyfed.comparison.together import Together
from polyfed.config import Config
from polyfed.engine.base import Crew, Engine
from polyfed.engine.rounds import Run
from polyfed.errors import Interrupted, InUse, PolyfedError
from polyfed.measure.watch import Watch


def run_cells(folder: ComparisonFolder, watch: Watch, until: float | None = None) -> dict[str, PolyfedError]:
    """Run the missing cells, several at once if that is faster; return the errors of those that failed, by name.

    After `until`, a time of the monotonic clock, those that run go on to their end and no further one begins.

    A cell another process works on is left to it and looked at again in the end. Where no cell got through and all
    failed alike, the mistake is not a cell's: it is raised.
    """
    table = Standing(folder, watch, until)
    division = Division(folder.grid.jobs, [cell.config for cell in table.open()])
    if division.obstacle and division.given not in (1, "auto"):
        watch.say(f"jobs={division.given}: {division.obstacle}, so one cell runs after the other")
    runner: InTurn | Together = InTurn(table) if division.at_once == 1 else Together(table, division)
    try:
        runner.go()
    except (Interrupted, KeyboardInterrupt):
        raise Interrupted(f"interrupted; go on with: polyfed resume {folder.path}") from None
    finally:
        runner.close()
    failures = table.failures
    if len(failures) == len(folder.grid.cells) and len({str(error) for error in failures.values()}) == 1:
        raise next(iter(failures.values()))
    return failures


class InTurn:
    """One cell after the other, in this process; workers live on from cell to cell."""

    def __init__(self, table: Standing):
        self.table, self.crew = table, _Crew()

    def go(self) -> None:
        """Run every cell in turn; then wait for those of other processes, until they are done or free."""
        told = False
        while cells := self.table.open():
            done = [self._do(cell) for cell in cells]
            if not any(done):
                if not told:
                    self.table.watch.say(f"{len(cells)} cells are another process's; waiting for them")
                told = True
                time.sleep(PAUSE)

    def close(self) -> None:
        """End every worker."""
        self.crew.close()

    def _do(self, cell: Cell) -> bool:
        """Run a cell to its end or its failure; False if another process has it, or the rounds it needs."""
        table = self.table
        if table.waits(cell) or table.late:
            return False
        if table.finished(cell):
            return True
        config = table.config(cell)
        try:
            run = table.folder.begin(cell)
            with run.locked():  # a cell that another process works on is never shown as running here
                pass
            table.becomes(cell, State.RUNNING)
            Run(config, run, self.crew.of(config), _OfCell(table, cell)).go()
        except InUse:
            table.becomes(cell, State.ELSEWHERE)
            return False
        except Interrupted:
            raise
        except Exception as error:
            self.crew.close()  # its workers may be in the middle of something
            known = fault(error)
            log_failure(table.folder.run(cell), known, error)
            table.fails(cell, known)
            return True
        return table.finished(cell)


@dataclass
class _OfCell(Watch):
    """A watch that reports the rounds of one cell."""

    table: Standing
    cell: Cell

    def round(self, done: int, rounds: int, numbers: dict[str, Any]) -> None:
        self.table.round(self.cell, done, rounds, numbers)

    def say(self, text: str) -> None:
        self.table.watch.say(text)


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
