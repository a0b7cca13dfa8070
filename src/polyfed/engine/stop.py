"""Being asked to stop: SIGINT and SIGTERM become a request that is heard at the next safe point."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class StopRequest:
    """Whether somebody asked the run to stop."""

    def __init__(self) -> None:
        self.made = False

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """Turn the first signal into a request; a second one acts as usual. Only the main thread gets signals."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}

        def ask(number: int, frame: Any) -> None:
            self.made = True
            signal.signal(number, before[signal.Signals(number)])

        for each in before:
            signal.signal(each, ask)
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)
