"""Trial runs; those that are only looked at are made once."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import polyfed
from polyfed.api import Result, config_of
from polyfed.engine.base import Crew
from polyfed.engine.local import Serial, Workers
from polyfed.engine.rounds import Run
from polyfed.engine.run_folder import RunFolder
from polyfed.engine.work import Job, Outcome
from polyfed.errors import Interrupted
from polyfed.report.progress import Silent

OWN = Path(__file__).parent / "own_methods.py"
TINY: dict[str, Any] = {
    "data.limit": 20,
    "split.clients": 4,
    "split.alpha": 1.0,
    "rounds": 3,
    "participation": 0.5,
    "train.batch": 16,
    "model.name": "mlp",
    "model.width": 0.1,
    "eval.classes": False,
    "engine.workers": 0,
}
RESNET = {"model.name": "resnet8", "model.width": 0.5}
SILENT = Silent()
Changes = dict[str, Any]


class Trial:
    """Makes tiny runs in fresh directories."""

    def __init__(self, base: Path):
        self.base, self.made = base, 0
        self._kept: dict[str, Result] = {}

    def path(self) -> Path:
        """A directory that does not exist yet."""
        self.made += 1
        return self.base / f"run-{self.made}"

    def keys(self, changes: Changes) -> Changes:
        """All keys of a tiny run."""
        return TINY | changes

    def words(self, changes: Changes) -> list[str]:
        """The same as words of a command line."""
        return [
            f"{key}={str(value).lower() if isinstance(value, bool) else value}"
            for key, value in self.keys(changes).items()
        ]

    def __call__(self, changes: Changes, crew: Crew | None = None, watch: Any = SILENT) -> Result:
        """A run from its start to its end."""
        return polyfed.run(self.keys(changes), out=self.path(), crew=crew, progress=watch)

    def kept(self, changes: Changes) -> Result:
        """The same, but made once per session: nobody may change its directory."""
        key = repr(sorted(changes.items()))
        if key not in self._kept:
            self._kept[key] = self(changes)
        return self._kept[key]

    def run(self, changes: Changes, crew: Crew | None = None, watch: Any = SILENT) -> Run:
        """A run about to start, to be looked into."""
        config = config_of(self.keys(changes))
        return Run(config, RunFolder.create(config, self.path()), crew or Serial(), watch)


@pytest.fixture(scope="session")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    return Trial(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def own() -> Callable[[str], str]:
    """The import path of a method in tests/own_methods.py."""
    return lambda name: f"{OWN}:{name}"


@pytest.fixture(scope="session")
def resnet() -> Changes:
    """A small model with BatchNorm."""
    return dict(RESNET)


@pytest.fixture
def workers() -> Iterator[Callable[[int], Workers]]:
    """Crews of worker processes, ended afterwards."""
    opened: list[Workers] = []

    def open_crew(count: int) -> Workers:
        opened.append(Workers(count))
        return opened[-1]

    yield open_crew
    for crew in opened:
        crew.close()


class Around:
    """A crew in front of another; what is not changed is passed on."""

    def __init__(self, inner: Crew | None = None):
        self.inner = inner or Serial()

    def begin(self, config: Any, world: Any, store: Any) -> None:
        self.inner.begin(config, world, store)

    def hello(self) -> Iterator[Outcome]:
        return self.inner.hello()

    def run(self, jobs: Sequence[Job], deadline: float | None, meanwhile: Any) -> Iterator[Outcome]:
        return self.inner.run(jobs, deadline, meanwhile)

    def close(self) -> None:
        self.inner.close()


class Spy(Around):
    """Remembers every job that was given out and every outcome that came back."""

    def __init__(self, inner: Crew | None = None):
        super().__init__(inner)
        self.jobs: list[Job] = []
        self.outcomes: list[tuple[str, int, Outcome]] = []  # (kind, round, outcome)

    def run(self, jobs: Sequence[Job], deadline: float | None, meanwhile: Any) -> Iterator[Outcome]:
        self.jobs += jobs
        for outcome in self.inner.run(jobs, deadline, meanwhile):
            self.outcomes.append((jobs[0].kind, jobs[0].round, outcome))
            yield outcome


class Backwards(Around):
    """Gives the outcomes in the opposite order."""

    def run(self, jobs: Sequence[Job], deadline: float | None, meanwhile: Any) -> Iterator[Outcome]:
        yield from reversed(list(self.inner.run(jobs, deadline, meanwhile)))


class Lying(Around):
    """Changes what one client says of itself (`hello`) and what comes of its work (`work`, told of the job's kind)."""

    def __init__(self, hello: Any = None, work: Any = None, who: int = 1):
        super().__init__()
        self.change_hello, self.change_work, self.who = hello, work, who

    def hello(self) -> Iterator[Outcome]:
        for outcome in self.inner.hello():
            if self.change_hello and outcome.client == self.who:
                self.change_hello(outcome)
            yield outcome

    def run(self, jobs: Sequence[Job], deadline: float | None, meanwhile: Any) -> Iterator[Outcome]:
        for outcome in self.inner.run(jobs, deadline, meanwhile):
            if self.change_work and outcome.client == self.who:
                self.change_work(outcome, jobs[0].kind)
            yield outcome


class StopAt(Around):
    """Sends this process a signal when the n-th outcome arrives."""

    def __init__(self, nth: int, number: int = signal.SIGTERM):
        super().__init__()
        self.left, self.number = nth, number
        self.where: tuple[str, int] | None = None

    def run(self, jobs: Sequence[Job], deadline: float | None, meanwhile: Any) -> Iterator[Outcome]:
        for outcome in self.inner.run(jobs, deadline, meanwhile):
            self.left -= 1
            if self.left == 0:
                self.where = (jobs[0].kind, jobs[0].round)
                os.kill(os.getpid(), self.number)
            yield outcome


@pytest.fixture(scope="session")
def crews() -> type:
    """The crews of this file by name."""

    class Crews:
        spy, backwards, stop_at, lying = Spy, Backwards, StopAt, Lying

    return Crews


class StopAfter:
    """Watches a run and asks it to stop after a round, by what a stop raises."""

    def __init__(self, round):
        self.at = round

    def round(self, done, rounds, numbers):
        if done == self.at:
            raise Interrupted("enough for this test")

    def say(self, text): ...
