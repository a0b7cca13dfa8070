"""Who runs the work: an engine, chosen by name, opens a crew; a crew takes jobs and gives outcomes."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from polyfed.config import Config
from polyfed.engine.memory import MemoryStore
from polyfed.engine.work import Job, Outcome, World
from polyfed.registry import Registry, Spec, param


class Crew(Protocol):
    """An engine that is running: `begin` gives it a run, `run` does jobs, `close` ends it."""

    def begin(self, config: Config, world: World, store: MemoryStore) -> None:
        """Begin a run; jobs belong to it until another one begins."""

    def hello(self) -> Iterator[Outcome]:
        """Ask every client for its hello."""

    def run(
        self, jobs: Sequence[Job], deadline: float | None, meanwhile: Callable[[], None] | None
    ) -> Iterator[Outcome]:
        """Do the jobs; `meanwhile` is called once, while they run."""

    def close(self) -> None:
        """End every process."""


class Engine(Spec):
    """What every engine takes."""

    server_threads: int = param(1, "threads the server computes with, part of a run's identity", ge=1, le=256)
    quorum: float = param(0.5, "share of the selected clients below which a round is drawn again", ge=0, le=1)
    deadline: float | None = param(None, "seconds after which a round goes on without the missing clients", gt=0)

    def check(self, config: Config) -> None:
        """Refuse an experiment that this engine cannot run, before anything is made for it."""

    def open(self) -> Crew:
        """A crew, ready for runs."""
        raise TypeError(f"engine '{self.name}' must say how it opens")


engines = Registry("engine", "polyfed.engine", Engine, members="polyfed.engine.known")
engine = engines.register
