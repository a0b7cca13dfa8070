"""How much is left to do, in words."""

from dataclasses import dataclass

HOUR = 60  # minutes


@dataclass(frozen=True)
class Left:
    """Of cells that are not done: how many experiments they are, how many have a known length, and their minutes."""

    cells: int
    known: int
    minutes: float  # of one core

    def in_words(self, of: str = "") -> str:
        """`3.2 hours of one core for 10 of 12 cells`, where `of` is " of one core"; a dash where nothing is known."""
        if not self.known:
            return "–"
        some = "" if self.known == self.cells else f" for {self.known} of {self.cells} cells"
        return f"{spoken(self.minutes)}{of}{some}"


def spoken(minutes: float) -> str:
    """`48 minutes`, `3.2 hours`."""
    if minutes < 1.5:
        return "a minute"
    return f"{minutes:.0f} minutes" if minutes < 2 * HOUR else f"{minutes / HOUR:.1f} hours"
