"""The server's large computations, cut into chunks that all cores share, with the same bits on any number of them.

The number of chunks comes from the sizes of what is computed, never from the cores. Each chunk is computed with one
thread, and the results come back in order, so that whoever puts them together does so in the same order everywhere.
"""

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

import torch

Piece = TypeVar("Piece")
Made = TypeVar("Made")

_here = threading.local()  # says whether this thread computes chunks itself
_pool: ThreadPoolExecutor | None = None


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_chunks(function: Callable[[Piece], Made], pieces: Sequence[Piece]) -> list[Made]:
    """Apply a function to every piece; results are in order, and each is computed with one thread of a pool.

    A single piece is computed by the caller, and so are nested calls. If some fail, the first failure is raised
    when all are done. Torch's operators let other threads run; a function should spend its time in them.
    """
    if len(pieces) < 2 or getattr(_here, "computes", False):
        return [function(piece) for piece in pieces]
    with_gradient = torch.is_grad_enabled()

    def compute(piece: Piece) -> Made:
        with torch.set_grad_enabled(with_gradient):  # torch keeps this for each thread
            return function(piece)

    asked = [_workers().submit(compute, piece) for piece in pieces]
    wait(asked)
    return [one.result() for one in asked]


def ranges(length: int, least: int, most: int) -> list[slice]:
    """A length as at most `most` ranges of a whole multiple of `least`, the last of which may be shorter."""
    step = least * max(1, -(-length // (least * max(1, most))))
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]


def _workers() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(cores(), "polyfed-chunk", initializer=_begin)
    return _pool


def _begin() -> None:
    torch.set_num_threads(1)  # of this thread; the caller's number stays
    _here.computes = True


def _forget() -> None:
    """A forked process has none of its parent's threads; it starts its own if it needs some."""
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
