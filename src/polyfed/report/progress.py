"""Live progress on stderr: a bar per run, and above it how far a comparison is."""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from polyfed.comparison.grid import Cell
from polyfed.comparison.standing import State, States
from polyfed.measure.watch import Silent

SIGNS = {State.WAITING: "·", State.RUNNING: "▶", State.ELSEWHERE: "~", State.DONE: "✓", State.FAILED: "✗"}
MOST = 24  # lines of an overview
OFTEN = 2  # times a second the display is drawn; each takes some milliseconds from the rounds


class Bars(Progress):
    """Bars, and something above them."""

    above: Text | None = None

    def get_renderables(self) -> Iterable[RenderableType]:
        """What is drawn."""
        if self.above is not None:
            yield self.above
        yield from super().get_renderables()


class Live:
    """A bar per run with the last numbers beside it; in a comparison all its cells, and a bar for each that runs."""

    def __init__(self, bar: Bars):
        self.bar, self.title = bar, "run"
        self.task: TaskID | None = None
        self.said: set[str] = set()
        self.running: dict[Cell, TaskID] = {}

    def round(self, done: int, rounds: int, numbers: dict[str, Any]) -> None:
        """Move the bar."""
        if self.task is None:
            self.task = self.bar.add_task(self.title, total=rounds, numbers="")
        self.bar.update(self.task, completed=done, numbers=in_words(numbers))
        if done == rounds:
            self.task = None

    def say(self, text: str) -> None:
        """A line above the bar, what the cells of a comparison all say only once; it names the next bar too."""
        if "begins: method" in text:
            self.title = text.split("method ", 1)[1]
            return
        if self.bar.above is None or text not in self.said:
            self.bar.console.print(Text(text, style="dim"))
        self.said.add(text)

    def round_of(self, cell: Cell, done: int, rounds: int, numbers: dict[str, Any]) -> None:
        """Move the bar of a cell."""
        if cell not in self.running:
            self.running[cell] = self.bar.add_task(cell.name, total=rounds, numbers="")
        self.bar.update(self.running[cell], completed=done, numbers=in_words(numbers))

    def cells(self, states: States, left: float | None) -> None:
        """How far the cells are; the bar of one that is over goes away."""
        self.bar.above = Text("\n".join(overview(states, left, time.time())))
        for cell in [cell for cell in self.running if states.get(cell) is not State.RUNNING]:
            self.bar.remove_task(self.running.pop(cell))


def overview(states: States, left: float | None, now: float) -> list[str]:
    """A line per method and setting with a sign per seed; then how many are done, and when all will be."""
    lines: dict[str, list[State]] = {}
    for cell, state in states.items():
        lines.setdefault(cell.line, []).append(state)
    shown = lines if len(lines) <= MOST else {line: each for line, each in lines.items() if State.RUNNING in each}
    width = max(map(len, shown), default=0)
    made = [f"{line.ljust(width)}  {' '.join(SIGNS[state] for state in each)}" for line, each in shown.items()]
    return [*made, f"{_counted(list(states.values()))}{_finish(left, now)}"]


def _counted(states: list[State]) -> str:
    words = [f"{states.count(State.DONE)} of {len(states)} cells done"]
    for state, what in ((State.FAILED, "failed"), (State.ELSEWHERE, "with another process")):
        if state in states:
            words.append(f"{states.count(state)} {what}")
    return ", ".join(words)


def _finish(left: float | None, now: float) -> str:
    """When all is done, by what was measured so far."""
    if not left:
        return ""
    day = "" if left < 12 * 3600 else "%Y-%m-%d "
    return f"; expected finish {time.strftime(f'{day}%H:%M:%S', time.localtime(now + left))}"


def in_words(numbers: Mapping[str, Any]) -> str:
    """The two numbers people look for."""
    words = []
    for part in ("global", "personal"):
        found = numbers.get(part)
        if found:
            words.append(f"{part} {100 * found['accuracy']:.1f} %")
    return ", ".join(words)


@contextmanager
def live() -> Iterator[Live]:
    """Progress on stderr while inside."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[numbers]}", markup=False),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=Console(stderr=True), transient=False, refresh_per_second=OFTEN) as bar:
        yield Live(bar)


@contextmanager
def watching(progress: Any) -> Iterator[Any]:
    """Live for True, nobody for False, or the watch that was given."""
    if progress is True:
        with live() as watch:
            yield watch
    else:
        yield progress or Silent()
