"""Fits that a process remembers, because the same fit from the same start will be asked for again."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from polyfed.parts.fit import Tally

MOST = 1 << 26  # bytes remembered at once
OBJECT = 512  # bytes of a tensor beside its numbers, about


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
        return sum(OBJECT + t.numel() * t.element_size() for t in (*self.values, *self.tally.losses))


def start_digest(place: str, tensors: Iterable[Tensor]) -> str:
    """A digest of where a fit starts, taken without copying."""
    made = hashlib.sha256(place.encode())
    for tensor in tensors:
        made.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        made.update(tensor.cpu().contiguous().numpy().data)
    return made.hexdigest()


def remember(fitted: dict[str, Any], whose: str, what: Fitted) -> None:
    """Keep a fit in place of an earlier one of the same site; the oldest of other sites make room for it."""
    fitted.pop(whose, None)
    while fitted and sum(one.size for one in fitted.values()) + what.size > MOST:
        del fitted[next(iter(fitted))]
    fitted[whose] = what
