"""How far the cells of a comparison are, for those who run them and those who watch."""

import time
from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from statistics import fmean
from typing import Any, Protocol, runtime_checkable

from polyfed.comparison.folder import ComparisonFolder
from polyfed.comparison.grid import Cell
from polyfed.comparison.phases import sources
from polyfed.config import Config
from polyfed.errors import PolyfedError
from polyfed.measure.watch import Watch

PAUSE = 0.5  # seconds between two checks of cells that another process works on


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
    """A watch that is told about all cells, not only about the run that is under way."""

    def cells(self, states: States, left: float | None) -> None:
        """A cell's state changed; `left` are the seconds the rest will take, once there is something to go by."""

    def round_of(self, cell: Cell, done: int, rounds: int, numbers: dict[str, Any]) -> None:
        """A round of a cell is committed."""


class Standing:
    """The cells of a comparison and how far each is."""

    def __init__(self, folder: ComparisonFolder, watch: Watch, until: float | None = None):
        self.folder, self.watch, self.until = folder, watch, until
        self.states = dict.fromkeys(folder.grid.cells, State.WAITING)
        self.seconds: dict[Cell, float] = {}
        self.failures: dict[str, PolyfedError] = {}
        self.at_once = 1
        self.sources = sources(folder.grid.cells) if folder.grid.share else {}
        for cell in folder.grid.cells:
            self.finished(cell)
        self.tell()

    def open(self) -> list[Cell]:
        """What is neither done nor failed; a cell that others take their rounds from comes before them."""
        order: dict[Cell, None] = {}
        for cell in self.states:
            chain = [cell]
            while chain[-1] in self.sources:
                chain.append(self.sources[chain[-1]])
            order |= dict.fromkeys(reversed(chain))
        late = (State.WAITING, State.ELSEWHERE) if self.late else ()
        return [cell for cell in order if self.states[cell] not in (State.DONE, State.FAILED, *late)]

    @property
    def late(self) -> bool:
        """Whether the time is up after which no further cell begins."""
        return self.until is not None and time.monotonic() > self.until

    def waits(self, cell: Cell) -> bool:
        """Whether the rounds of a cell are being made by another."""
        source = self.sources.get(cell)
        return source is not None and self.states[source] not in (State.DONE, State.FAILED)

    def config(self, cell: Cell) -> Config:
        """A cell's experiment, from the finished run of its base if there is one; a failed one is of no use."""
        source = self.sources.get(cell)
        if source is None or self.states[source] is not State.DONE:
            return cell.config
        return cell.config.model_copy(update={"init": str(self.folder.run(source).path)})

    def finished(self, cell: Cell) -> bool:
        """Whether a cell is done, here or by another process."""
        summary = self.folder.run(cell).result()
        if summary is not None and self.states[cell] is not State.DONE:
            self.seconds[cell] = own_seconds(summary)
            self.becomes(cell, State.DONE)
        return summary is not None

    def fails(self, cell: Cell, error: PolyfedError) -> None:
        """Note that a cell failed; the error is kept until all cells are done."""
        self.failures[cell.name] = error
        self.watch.say(f"{cell.name} failed: {error}")
        self.becomes(cell, State.FAILED)

    def becomes(self, cell: Cell, state: State) -> None:
        """A cell's state changes."""
        if self.states[cell] is not state:
            self.states[cell] = state
            self.tell()

    def round(self, cell: Cell, done: int, rounds: int, numbers: dict[str, Any]) -> None:
        """A round of a cell is committed."""
        if isinstance(self.watch, Onlooker):
            self.watch.round_of(cell, done, rounds, numbers)
        else:
            self.watch.round(done, rounds, numbers)

    def tell(self) -> None:
        """Tell the watch how far all cells are."""
        if isinstance(self.watch, Onlooker):
            self.watch.cells(dict(self.states), time_left(self.states, self.seconds, self.at_once))


def own_seconds(summary: Mapping[str, Any]) -> float:
    """The seconds that a cell itself took, without rounds that another cell did."""
    shared = summary.get("phase_one")
    return summary["seconds"]["total"] - (shared["seconds"]["total"] if shared else 0.0)


def time_left(states: States, seconds: Mapping[Cell, float], at_once: int = 1) -> float | None:
    """The seconds that the open cells will take, judged by cells of the same line, row or comparison; None at first."""
    if not seconds:
        return None
    to_do = (cell for cell, state in states.items() if state in (State.WAITING, State.RUNNING))
    return sum(expected(cell, seconds) for cell in to_do) / at_once


def expected(cell: Cell, seconds: Mapping[Cell, float]) -> float:
    """The seconds a cell will take, judged by finished cells of the same line, else of the same row, else by all."""
    alike = [s for other, s in seconds.items() if other.line == cell.line]
    same_row = [s for other, s in seconds.items() if other.row == cell.row]
    return fmean(alike or same_row or seconds.values() or [0.0])


def longest_first(cells: Sequence[Cell], seconds: Mapping[Cell, float], lenders: Collection[Cell] = ()) -> list[Cell]:
    """Cells seed by seed; of a seed those that others wait for, then the longest, so that none ends alone."""
    seeds = {seed: place for place, seed in enumerate(dict.fromkeys(cell.seed for cell in cells))}
    return sorted(cells, key=lambda cell: (seeds[cell.seed], cell not in lenders, -expected(cell, seconds)))
