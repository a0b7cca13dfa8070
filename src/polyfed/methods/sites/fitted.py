"""Fits that a process remembers, because the same fit from the same start will be asked for again."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from polyfed.parts.fit import Tally

MOST = 1 << 26  # bytes remembered at once
LOSS = 512  # bytes of one loss in a tally: a tensor of its own


@dataclass(frozen=True)
class Fitted:
    """What a fit left, and what it started from."""

    key: str  # a digest of the start
    values: tuple[Tensor, Tensor]  # floats and integers of the slice
    tally: Tally
    fits: dict[str, int]  # fits counted so far, which number the batches of the next

    @property
    def size(self) -> int:
        """Bytes, about."""
        return sum(t.numel() * t.element_size() for t in self.values) + LOSS * len(self.tally.losses)


def remember(fitted: dict[str, Any], whose: str, what: Fitted) -> None:
    """Keep a fit in place of an earlier one of the same site; the oldest of other sites make room for it."""
    fitted.pop(whose, None)
    while fitted and sum(one.size for one in fitted.values()) + what.size > MOST:
        del fitted[next(iter(fitted))]
    fitted[whose] = what
