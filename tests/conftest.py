"""What every room's tests may use: runs under a temporary folder, and a small, fast experiment."""

import contextlib
import io
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings

from polyfed.cli import call

# the machine is shared: no test may fail for taking long
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")

TINY: dict[str, Any] = {
    "data.limit": 20,
    "split.clients": 4,
    "model.width": 0.1,
    "train.batch": 16,
    "rounds": 1,
    "engine.workers": 0,
}


@pytest.fixture(autouse=True, scope="session")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where polyfed keeps what is the user's: never the home of whoever runs the tests."""
    folder = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder))
        yield folder


@pytest.fixture(autouse=True, scope="session")
def priority() -> Iterator[None]:
    """A command that lowers its priority, called in this process, may not slow down every test after it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "nice", lambda _: 0)
        yield


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where runs without `--out` go: a folder of this test's own, not there yet."""
    monkeypatch.setenv("POLYFED_OUT", str(tmp_path / "runs"))
    return tmp_path / "runs"


@pytest.fixture(scope="session")
def tiny() -> dict[str, Any]:
    """The keys of a small and fast experiment, for the Python API."""
    return dict(TINY)


@pytest.fixture(scope="session")
def tiny_words() -> list[str]:
    """The same for the command line; a word that comes later takes the place of one of these."""
    return _words()


def _words() -> list[str]:
    return [f"{key}={value}" for key, value in TINY.items()]


def settled(words: Sequence[str]) -> list[str]:
    """A command line on which what a test says replaces the small experiment's word for that key."""
    said = [word.partition("=")[0] for word in words]
    return [word for place, word in enumerate(words) if word not in _words() or said[place] not in said[place + 1 :]]


class Said(NamedTuple):
    """What a command did and printed."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def cli() -> Callable[..., Said]:
    """Calls the command line in this process."""

    def command(*words: str) -> Said:
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
            code = call(settled(words))
        return Said(code, out.getvalue(), err.getvalue())

    return command
