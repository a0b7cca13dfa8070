"""What one caller may use of the guard: requests a second, connections at a time, and idle seconds."""

import time
from collections import Counter
from collections.abc import Hashable
from typing import Any, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

PER_ADDRESS, PER_SITE = 64, 8  # connections; a SuperNode has a handful, and all sites may share an address
IDLE = 60.0  # seconds a connection may stay without a request that is being answered
CALLERS = 10_000  # how many callers are remembered at most


class Allowance:
    """How many requests a second each caller may make, and how many at once in a burst."""

    def __init__(self, rate: float, burst: float):
        self.rate, self.burst = rate, burst
        self._left: dict[Hashable, tuple[float, float]] = {}  # caller -> requests left, and when that was

    def take(self, caller: Hashable) -> bool:
        """Whether this caller may have one more now."""
        now = time.monotonic()
        left, then = self._left.pop(caller, (self.burst, now))
        left = min(self.burst, left + (now - then) * self.rate)
        self._left[caller] = (max(0.0, left - 1), now)
        if len(self._left) > CALLERS:
            del self._left[next(iter(self._left))]  # whoever has been silent for longest
        return left >= 1


class Bounded(H11Protocol):
    """A connection that is one of few from its address, is closed when it brings no request, and knows its certificate.

    It is uvicorn's protocol on h11, which, unlike the faster one, leaves a request's target as it was sent."""

    most: ClassVar[int] = PER_ADDRESS
    open: ClassVar[Counter[str]] = Counter()

    def connection_made(self, transport: Any) -> None:
        """Count the connection; close it if its address has too many."""
        super().connection_made(transport)
        self.address = (transport.get_extra_info("peername") or ("",))[0]
        self.open[self.address] += 1
        self.app = _with_certificate(self.app, name_in(transport.get_extra_info("peercert")))
        self.busy = time.monotonic()
        if self.open[self.address] > self.most:
            transport.abort()
        else:
            self.timer = self.loop.call_later(IDLE / 4, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """Count the connection no more."""
        self.open[self.address] -= 1
        if not self.open[self.address]:
            del self.open[self.address]
        if hasattr(self, "timer"):
            self.timer.cancel()
        super().connection_lost(exc)

    def _look(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self.busy = time.monotonic()
        if time.monotonic() - self.busy > IDLE:
            self.transport.abort()
        else:
            self.timer = self.loop.call_later(IDLE / 4, self._look)


def name_in(certificate: dict[str, Any] | None) -> str:
    """The common name in a verified certificate, or nothing."""
    subject = (certificate or {}).get("subject", ())
    return next((value for part in subject for key, value in part if key == "commonName"), "")


def _with_certificate(app: Any, name: str) -> Any:
    async def told(scope: dict[str, Any], receive: Any, send: Any) -> None:
        await app({**scope, "certificate": name}, receive, send)

    return told
