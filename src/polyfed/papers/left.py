"""How much is left to do, in words."""

from collections.abc import Sequence
from dataclasses import dataclass

HOUR = 60  # minutes
GREATLY, LONG = 3.0, 2 * HOUR  # by this factor lengths of cells differ so much that so long a sum would hide it


@dataclass(frozen=True)
class Left:
    """Of cells that are not done: how many experiments they are, how many have a known length, and their minutes."""

    cells: int
    known: int
    minutes: float  # of one core
    only: str = ""  # the text in the names of their panels by which a command chooses them

    @property
    def each(self) -> float | None:
        """The minutes of one cell; None where nothing is known."""
        return self.minutes / self.known if self.known else None

    def about(self) -> str:
        """`, about 3.2 hours of one core`; nothing where nothing is known."""
        return f", about {self.in_words(' of one core')}" if self.known else ""

    def in_words(self, of: str = "") -> str:
        """`3.2 hours of one core for 10 of 12 cells`, where `of` is " of one core"; a dash where nothing is known."""
        if not self.known:
            return "–"
        some = "" if self.known == self.cells else f" for {self.known} of {self.cells} cells"
        return f"{spoken(self.minutes)}{of}{some}"


def differ_greatly(parts: Sequence[Left]) -> bool:
    """Whether a long sum would hide that cells of some parts are much longer than others, or of unknown length."""
    if sum(part.minutes for part in parts) < LONG:
        return False
    lengths = [part.each for part in parts if part.cells]
    known = [length for length in lengths if length is not None]
    return 0 < len(known) < len(lengths) or max(known, default=0.0) > GREATLY * min(known, default=0.0)


def spoken(minutes: float) -> str:
    """`48 minutes`, `3.2 hours`."""
    if minutes < 1.5:
        return "a minute"
    return f"{minutes:.0f} minutes" if minutes < 2 * HOUR else f"{minutes / HOUR:.1f} hours"
