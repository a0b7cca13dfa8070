"""Where the time of a run goes: it is always in exactly one phase, so the phases add up to the whole."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

PHASES = ("setup", "train", "server", "eval", "finish", "checkpoint", "report")
TRAINING = ("train", "finish")  # the phases in which clients learn


class Stopwatch:
    """Counts seconds by phase; entering a phase leaves the one before."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self._clock, self._since = clock, clock()
        self._phase = PHASES[0]
        self._spent = dict.fromkeys(PHASES, 0.0)

    def enter(self, phase: str) -> str:
        """From now on time is spent in this phase; gives the phase that ends."""
        now, before = self._clock(), self._phase
        self._spent[before] += now - self._since
        self._since, self._phase = now, phase
        return before

    @contextmanager
    def phase(self, phase: str) -> Iterator[None]:
        """Time is spent in this phase inside, and in the one before again afterwards."""
        before = self.enter(phase)
        try:
            yield
        finally:
            self.enter(before)

    def add(self, earlier: Mapping[str, float]) -> None:
        """Add what the run spent before it was interrupted."""
        for phase in PHASES:
            self._spent[phase] += earlier.get(phase, 0.0)

    def read(self) -> dict[str, float]:
        """The seconds so far: in all, and by phase."""
        self.enter(self._phase)
        return {"total": sum(self._spent.values()), **self._spent}


def phases_in_words(seconds: Mapping[str, float]) -> str:
    """The phases of a run and their seconds, in order; nothing where they were not recorded."""
    return ", ".join(f"{phase} {seconds[phase]:.1f}" for phase in PHASES if phase in seconds)


def outside_training(seconds: Mapping[str, float]) -> str:
    """Where a run spent its time that spent more of it outside training than in it; nothing for any other run."""
    other = {phase: seconds[phase] for phase in PHASES if phase in seconds and phase not in TRAINING}
    outside, training = sum(other.values()), sum(seconds.get(phase, 0.0) for phase in TRAINING)
    if outside <= training:
        return ""
    dearest = sorted(other, key=lambda phase: -other[phase])[:2]
    where = " and ".join(f"{other[phase]:.1f} s in {phase}" for phase in dearest)
    return f"{outside:.1f} s were spent outside training and {training:.1f} s in it: {where}"
