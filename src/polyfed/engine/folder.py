"""A run directory: never overwritten, locked while used, its config there before data are read."""

import fcntl
import json
import os
import platform
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from polyfed.config import Config, Tree, read_config, write_yaml
from polyfed.engine.memory import write_file
from polyfed.errors import DataError, InUse, UsageError

_mine: set[Path] = set()  # record locks do not stop their own process, so it remembers what it holds


class RunFolder:
    """One run on disk."""

    def __init__(self, path: Path):
        self.path = path
        self.config, self.summary, self.log = path / "config.yaml", path / "summary.json", path / "log.txt"

    @staticmethod
    def create(config: Config, path: Path | None) -> "RunFolder":
        """A new one at `path` (which must not exist or be empty), or a fresh name under $POLYFED_OUT or ./runs."""
        folder = RunFolder(claim(path, f"{config.method.name}-{config.data.name}-s{config.seed}"))
        folder.begin(config)
        return folder

    def begin(self, config: Config) -> None:
        """Make this directory a run."""
        around = json.dumps(environment(), indent=1).encode()
        write_file(self.path / "environment.json", around)  # first: with its config this is a run
        write_file(self.config, write_yaml(config.dump()).encode())

    @staticmethod
    def existing(path: Path) -> "RunFolder":
        """One that is there, or a sentence that says what is wrong with it."""
        folder = RunFolder(path)
        if not path.is_dir():
            raise DataError(f"there is no run at '{path}'")
        if not folder.config.is_file():
            raise DataError(f"'{path}' is not a run: it has no config.yaml")
        return folder

    def tree(self) -> Tree:
        """Its config as a tree."""
        try:
            return read_config(self.config)
        except UsageError as error:
            raise DataError(f"the run at '{self.path}' is corrupt: {error}") from None

    def result(self) -> dict[str, Any] | None:
        """Its summary, if it is finished."""
        if not self.summary.exists():
            return None
        try:
            return json.loads(self.summary.read_text())
        except (json.JSONDecodeError, UnicodeDecodeError, OSError) as error:
            raise DataError(f"the run at '{self.path}' is corrupt: summary.json: {error}") from None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else works on this run meanwhile; a dead process holds no lock."""
        with alone(self.path, f"the run at '{self.path}'"):
            yield

    def say(self, text: str) -> None:
        """A line in the log."""
        with self.log.open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")

    def other_environment(self) -> str:
        """What differs from where the run began, in words; then bits may differ."""
        try:
            before = json.loads((self.path / "environment.json").read_text())
        except (OSError, ValueError):
            return "environment.json cannot be read"
        now = environment()
        keys = ("polyfed", "python", "torch", "numpy", "cpu", "capability", "machine")
        return ", ".join(f"{k} {before.get(k)} -> {now[k]}" for k in keys if before.get(k) != now[k])


@contextmanager
def alone(path: Path, what: str, patient: bool = False) -> Iterator[None]:
    """Hold the lock of a directory: who finds it held is refused, or waits for it if patient."""
    key = path.resolve()
    refusal = InUse(f"{what} is in use by another process")
    if key in _mine:
        raise refusal
    with (path / "lock").open("a") as handle:
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | (0 if patient else fcntl.LOCK_NB))
        except OSError:
            raise refusal from None
        _mine.add(key)
        try:
            yield
        finally:
            _mine.discard(key)


def in_use(path: Path) -> bool:
    """Whether a process holds the lock of a directory; asked without taking it, which would get in somebody's way."""
    if path.resolve() in _mine:
        return True
    unlocked = {"l_type": fcntl.F_WRLCK, "l_whence": 0, "l_start": 0, "l_len": 0, "l_pid": 0}
    order = ("l_start", "l_len", "l_pid", "l_type", "l_whence") if sys.platform == "darwin" else tuple(unlocked)
    form = "qqihh" if sys.platform == "darwin" else "hhqqi"
    try:
        with (path / "lock").open("rb") as handle:
            said = fcntl.fcntl(handle, fcntl.F_GETLK, struct.pack(form, *(unlocked[name] for name in order)))
    except OSError:
        return False
    return struct.unpack(form, said)[order.index("l_type")] != fcntl.F_UNLCK


def claim(path: Path | None, name: str) -> Path:
    """A new, empty directory: `path` itself, or a fresh one named after the time under $POLYFED_OUT or ./runs."""
    try:
        if path is not None:
            if path.exists() and (not path.is_dir() or any(path.iterdir())):
                raise UsageError(f"'{path}' exists and is not empty; a run never overwrites: give another --out")
            path.mkdir(parents=True, exist_ok=True)
            return path
        base = Path(os.environ.get("POLYFED_OUT") or "runs")
        base.mkdir(parents=True, exist_ok=True)
        stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{name.replace('/', '_').replace(':', '_')}"
        for number in range(1000):
            fresh = base / (stem if number == 0 else f"{stem}-{number}")
            try:
                fresh.mkdir()
                return fresh
            except FileExistsError:
                continue
    except OSError as error:
        raise UsageError(f"cannot write to '{path or base}': {error.strerror}") from None
    raise UsageError(f"cannot find a free name for the run under '{base}'")


def environment() -> dict[str, Any]:
    """What the bits may depend on."""
    import torch

    versions = {}
    for package in ("polyfed", "torch", "numpy", "scikit-learn", "safetensors"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "unknown"
    return {
        "python": platform.python_version(),
        **versions,
        "machine": platform.machine(),
        "system": platform.system(),
        "cpu": _cpu(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads_per_process": 1,
        "commit": _commit(),
        "command": sys.argv,
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def _commit() -> str | None:
    """The commit of the source tree polyfed runs from, if it is one."""
    here = Path(__file__).resolve().parent
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
