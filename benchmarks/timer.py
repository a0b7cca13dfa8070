"""Seconds spent inside functions of the process that is measured."""

import time
from collections.abc import Callable
from typing import Any


class Timer:
    """Seconds spent in the functions it watches; a call inside another is counted once."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock, self.seconds, self.inside = clock, 0.0, False

    def watched(self, call: Callable[..., Any], when: Callable[..., bool] = lambda *a, **k: True) -> Callable[..., Any]:
        """The same function, timed where `when` says so."""

        def timed(*arguments: Any, **named: Any) -> Any:
            if self.inside or not when(*arguments, **named):
                return call(*arguments, **named)
            self.inside, started = True, self.clock()
            try:
                return call(*arguments, **named)
            finally:
                self.seconds += self.clock() - started
                self.inside = False

        return timed
