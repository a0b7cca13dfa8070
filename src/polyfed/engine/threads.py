"""How many threads this process computes with."""

import contextlib
import threading
from collections.abc import Iterator

import torch
from threadpoolctl import threadpool_limits

_here = threading.local()  # the number that the innermost `threads` set in this thread


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Compute with this many threads inside; the caller's number is back afterwards."""
    before, outer = torch.get_num_threads(), getattr(_here, "count", None)
    if outer == count == before:  # setting it again takes milliseconds, more than many a job
        yield
        return
    torch.set_num_threads(count)
    _here.count = count
    try:
        with threadpool_limits(count):
            yield
    finally:
        _here.count = outer
        torch.set_num_threads(before)
