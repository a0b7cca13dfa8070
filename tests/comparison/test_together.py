"""Cells side by side: the same bits for any number of them, and nothing lost when one fails, dies or is stopped."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import polyfed
from polyfed.comparison import together
from polyfed.comparison.grid import Cell
from polyfed.comparison.process import CellProcess
from polyfed.comparison.standing import States
from polyfed.errors import DataError, Interrupted, RunFailed
from polyfed.measure.watch import Silent
from polyfed.methods.base import Method

Keys = dict[str, Any]


class Onlooking(Silent):
    """Remembers the rounds of cells, and what was said."""

    def __init__(self) -> None:
        self.rounds, self.said = set[tuple[str, int, int]](), list[str]()

    def cells(self, states: States, left: float | None) -> None:
        """Not remembered."""

    def round_of(self, cell: Cell, done: int, rounds: int, numbers: dict[str, Any]) -> None:
        self.rounds.add((cell.name, done, rounds))

    def say(self, text: str) -> None:
        self.said.append(text)


def fingerprints(made: polyfed.Comparison) -> dict[str, str]:
    return {result.path.name: result.fingerprint for result in made.results}


@pytest.fixture
def crowd(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many cells were under way whenever another one was started, that one too."""
    begin, started, found = CellProcess.start, list[CellProcess](), list[int]()

    def start(*given: Any) -> CellProcess:
        started.append(begin(*given))
        found.append(sum(process.ended is None for process in started))
        return started[-1]

    monkeypatch.setattr(CellProcess, "start", start)
    return found


@pytest.fixture(scope="module")
def keys(tiny: Keys) -> Keys:
    """Four cells, of which one takes the rounds of another, and one has memories."""
    return {**tiny, "rounds": 2, "methods": ["fedavg-ft", "fedavg", "fedper", "fedprox"], "seeds": 1}


@pytest.fixture(scope="module")
def in_turn(keys: Keys, tmp_path_factory: pytest.TempPathFactory) -> polyfed.Comparison:
    return polyfed.compare(keys, jobs=1, out=tmp_path_factory.mktemp("turn") / "c")


@pytest.mark.parametrize("jobs", [2, 3])
def test_the_same_bits_for_any_number_at_once(
    keys: Keys, in_turn: polyfed.Comparison, tmp_path: Path, crowd: list[int], jobs: int
) -> None:
    watch = Onlooking()
    made = polyfed.compare(keys, jobs=jobs, out=tmp_path / "c", progress=watch)
    assert made.finished
    assert fingerprints(made) == fingerprints(in_turn)
    assert max(crowd) == jobs
    cells = {cell.name for cell in made.folder.grid.cells}
    made_here = {name for name in cells if not name.startswith("fedavg-ft")}
    assert watch.rounds == {(name, done, 2) for name in made_here for done in (1, 2)}
    assert f"beside up to {jobs - 1} other cells" in (made.path / "fedper-s0" / "log.txt").read_text()


def test_workers_are_ours_to_divide(
    keys: Keys, in_turn: polyfed.Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default the first cell shows how many run at once; it has a worker on every core."""
    monkeypatch.setattr("polyfed.comparison.jobs.cores", lambda: 2)
    watch = Onlooking()
    free = {key: value for key, value in keys.items() if key != "engine.workers"}
    made = polyfed.compare(free, out=tmp_path / "c", progress=watch)
    assert fingerprints(made) == fingerprints(in_turn)
    assert any(text.startswith("jobs=auto: the workers of the first cell were at work in") for text in watch.said)
    logs = {name: (made.path / name / "log.txt").read_text() for name in fingerprints(made)}
    assert "runs with 2 workers" in logs["fedavg-s0"]


def test_another_number_goes_on_with_the_same_directory(keys: Keys, tmp_path: Path) -> None:
    out = tmp_path / "c"
    first = polyfed.compare(keys, jobs=2, out=out)
    before = {file: file.stat().st_mtime_ns for file in out.glob("*/summary.json")}
    (out / "fedper-s0" / "summary.json").unlink()
    assert polyfed.compare(keys, jobs=3, share=False, out=out).finished
    assert polyfed.resume(out, jobs=2, share=True).finished
    assert fingerprints(polyfed.load(out)) == fingerprints(first)
    assert {file: file.stat().st_mtime_ns for file in before if "fedper-s0" not in str(file)}.items() < before.items()


def test_jobs_belong_to_a_comparison(in_turn: polyfed.Comparison) -> None:
    with pytest.raises(polyfed.errors.UsageError, match="is one run; jobs and share belong to a comparison"):
        polyfed.resume(in_turn.results[0].path, jobs=2)


class Own(Method):
    """A method that only this process knows."""

    def merge(self, server: Any, uploads: Any) -> None:
        super().merge(server, uploads)
        server.shared.flat.mul_(0.5)


class Small(nn.Module):
    """A model that only this process knows."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(x)


def test_objects_of_this_process(tmp_path: Path) -> None:
    y = np.arange(60) % 2
    x = np.random.default_rng(0).normal(size=(60, 6)).astype("float32") + y[:, None]
    keys = {"split": {"clients": 3}, "rounds": 1, "engine": {"workers": 0}, "data": (x, y), "model": Small()}
    made = [polyfed.compare(keys, methods=["fedavg", Own], seeds=1, jobs=jobs) for jobs in (1, 2)]
    assert made[1].finished
    assert fingerprints(made[0]) == fingerprints(made[1])


class Fragile(Method):
    """Fails on seed 1, in the way that it is told."""

    way: str = "tripped"

    def merge(self, server: Any, uploads: Any) -> None:
        if server.task.seed == 1:
            if self.way == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            elif self.way == "left":
                os._exit(7)
            raise {"tripped": ValueError, "refused": RunFailed, "missing": DataError}[self.way]("on a stone")
        super().merge(server, uploads)


@pytest.mark.parametrize(
    ("way", "kind", "sentence"),
    [
        ("tripped", polyfed.errors.PolyfedError, "a fault in polyfed or a method: ValueError: on a stone"),
        ("refused", RunFailed, "on a stone"),
        ("missing", DataError, "on a stone"),
        (
            "killed",
            polyfed.errors.PolyfedError,
            "its process was killed (SIGKILL): by somebody, or because memory ran out",
        ),
        ("left", polyfed.errors.PolyfedError, "its process ended with code 7 and no word"),
    ],
)
def test_a_cell_that_fails_does_not_stop_the_others(
    tiny: Keys, tmp_path: Path, way: str, kind: type, sentence: str
) -> None:
    out = tmp_path / "c"
    made = polyfed.compare(tiny, methods=[Fragile, "fedper"], seeds=2, Fragile={"way": way}, jobs=2, out=out)
    ((name, error),) = made.failures.items()
    assert name.endswith("Fragile-s1")
    assert type(error) is kind
    assert str(error) == sentence
    assert len(made.results) == 3
    log = (out / name / "log.txt").read_text()
    assert log.count(f"failed: {sentence}") == 1
    assert ("on a stone" in log) == ("Traceback" in log)


class TestMemory:
    def test_what_does_not_fit_waits(
        self, keys: Keys, tmp_path: Path, crowd: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(together, "available", lambda: 1e6)
        watch = Onlooking()
        made = polyfed.compare(keys, jobs=3, out=tmp_path / "c", progress=watch)
        assert made.finished
        assert crowd == [1, 1, 1, 1]
        (said,) = [text for text in watch.said if "at once" in text]
        assert said.startswith("not more than 1 cells at once: each needs ")

    def test_room_for_two(self, keys: Keys, tmp_path: Path, crowd: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
        """What runs may still grow to the size of the largest: that much is not free."""
        monkeypatch.setattr(together, "cell_memory", lambda *_: 1e12)
        monkeypatch.setattr(together, "available", lambda: 2.5e12)
        assert polyfed.compare(keys, jobs=3, out=tmp_path / "c").finished
        assert max(crowd) == 2


def test_a_request_to_stop_is_passed_on(tiny: Keys, tmp_path: Path) -> None:
    class Stopping(Onlooking):
        def round_of(self, cell: Cell, done: int, rounds: int, numbers: dict[str, Any]) -> None:
            if not self.rounds:
                os.kill(os.getpid(), signal.SIGINT)
            super().round_of(cell, done, rounds, numbers)

    out, before = tmp_path / "c", signal.getsignal(signal.SIGINT)
    often = {"rounds": 300, "eval.every": 300, "checkpoint.every": 300}  # longer than it takes to be told
    keys = {**tiny, **often, "methods": ["fedavg", "fedper"], "seeds": 1}
    with pytest.raises(Interrupted, match=f"interrupted; go on with: polyfed resume {out}"):
        polyfed.compare(keys, jobs=2, out=out, progress=Stopping())
    assert signal.getsignal(signal.SIGINT) is before
    assert any(run.round for run in map(polyfed.load, out.glob("fed*-s0")))
    assert not list(out.glob("*/summary.json"))
    made = polyfed.resume(out, jobs=2)
    assert made.finished
    assert fingerprints(made) == fingerprints(polyfed.compare(keys, jobs=1))
