"""Live progress on stderr."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
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

from polyfed.engine.rounds import Silent


class Live:
    """A bar per run with the last numbers beside it."""

    def __init__(self, bar: Progress):
        self.bar, self.title = bar, "run"
        self.task: TaskID | None = None

    def round(self, done: int, rounds: int, numbers: dict[str, Any]) -> None:
        """Move the bar."""
        if self.task is None:
            self.task = self.bar.add_task(self.title, total=rounds, numbers="")
        self.bar.update(self.task, completed=done, numbers=in_words(numbers))
        if done == rounds:
            self.task = None

    def say(self, text: str) -> None:
        """A line above the bar; it names the next bar too."""
        if "begins: method" in text:
            self.title = text.split("method ", 1)[1]
            return
        self.bar.console.print(Text(text, style="dim"))


def in_words(numbers: dict[str, Any]) -> str:
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
    with Progress(*columns, console=Console(stderr=True), transient=False) as bar:
        yield Live(bar)


@contextmanager
def watching(progress: Any) -> Iterator[Any]:
    """Live for True, nobody for False, or the watch that was given."""
    if progress is True:
        with live() as watch:
            yield watch
    else:
        yield progress or Silent()
