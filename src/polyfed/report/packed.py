"""Long texts in few characters: compressed, and written in letters that may stand anywhere in a page.

The page's own script unpacks it, with what every browser since 2023 has built in. Plotly is a third of its size so.
"""

import zlib
from functools import cache
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

# 91 letters that mean nothing in HTML: two of them hold 13 bits
LETTERS = np.array([code for code in range(33, 127) if chr(code) not in "<&\\"], np.uint8)
BITS = 13


class Packed(NamedTuple):
    """Letters, and how many bytes they stand for: the last ones hold a few bits more."""

    letters: Markup
    bytes: int


@cache
def packed_plotly() -> Packed:
    """Plotly, which is the same on every page."""
    from plotly.offline import get_plotlyjs

    return packed(get_plotlyjs())


def packed(text: str) -> Packed:
    """The text, compressed, as letters."""
    squeezed = np.frombuffer(zlib.compress(text.encode(), 9), np.uint8)
    bits = np.unpackbits(squeezed)
    rows = np.pad(bits, (0, -len(bits) % BITS)).reshape(-1, BITS)
    values = rows @ (1 << np.arange(BITS - 1, -1, -1))
    pairs = np.stack([values // len(LETTERS), values % len(LETTERS)], axis=1)
    return Packed(Markup(LETTERS[pairs].tobytes().decode("ascii")), len(squeezed))
