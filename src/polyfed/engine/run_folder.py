"""A run directory: never overwritten, locked while used, its config there before data are read."""

import fcntl
import io
import json
import os
import platform
import re
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from polyfed.config import Config, Tree, make_config, read_config, write_yaml
from polyfed.engine.trust import only_ours, seal
from polyfed.errors import DataError, InUse, UsageError
from polyfed.files import Place, write_file
from polyfed.measure.stored import Environment, Summary, read_json
from polyfed.registry import specs_in

ASIDE = re.compile(r"\.(federation\.json|counts\.npz|summary\.json)\.\d+\.tmp")  # what a killed run leaves half written
CHECKPOINT = re.compile(r"at-\d{6,}(-finished)?")
_mine: set[Path] = set()  # record locks do not stop their own process, so it remembers what it holds


class RunFolder:
    """One run on disk."""

    def __init__(self, path: Path | Place):
        self.place = Place.of(path)
        self.path = self.place.path
        self.config, self.summary = self.place / "config.yaml", self.place / "summary.json"
        self.log = self.place / "log.txt"

    @staticmethod
    def create(config: Config, path: Path | None) -> "RunFolder":
        """A new one at `path` (which must not exist or be empty), or a fresh name under $POLYFED_OUT or ./runs."""
        folder = RunFolder(claim(path, f"{config.method.name}-{config.data.name}-s{config.seed}"))
        folder.begin(config)
        return folder

    def begin(self, config: Config) -> None:
        """Make this directory a run."""
        around = json.dumps(environment(), indent=1).encode()
        content = write_yaml(config.dump()).encode()
        write_file(self.place / "environment.json", around)  # first: with its config this is a run
        seal(self.place, content, specs_in(config))
        write_file(self.config, content)

    @staticmethod
    def existing(path: Path) -> "RunFolder":
        """Open an existing run; an error says what is wrong with it."""
        folder = RunFolder(path)
        if not path.is_dir():
            raise DataError(f"there is no run at '{path}'")
        if not folder.config.is_file():
            raise DataError(f"'{path}' is not a run: it has no config.yaml")
        return folder

    def tree(self) -> Tree:
        """The config of the run as a tree."""
        try:
            return read_config(self.config)
        except UsageError as error:
            raise DataError(f"the run at '{self.path}' is corrupt: {error}") from None

    def made_of(self, given: Tree | None = None, trust: bool = False) -> Config:
        """The config it was made from, with some keys changed; code that it names is executed only if it is trusted."""
        with only_ours(self.place, self.config.name, trust):
            return make_config(self.tree(), given or {})

    def result(self) -> dict[str, Any] | None:
        """The summary of the run, if it is finished."""
        return read_json(self.summary, Summary)

    def counts(self) -> dict[str, np.ndarray] | None:
        """The final confusion counts, if there are any."""
        try:
            with np.load(io.BytesIO((self.place / "counts.npz").read_bytes()), allow_pickle=False) as file:
                return dict(file)
        except FileNotFoundError:
            return None
        except (ValueError, EOFError, TypeError, AttributeError, IsADirectoryError, BadZipFile, zlib.error) as error:
            raise DataError(f"the run at '{self.path}' is corrupt: counts.npz: {error}") from None

    def checkpoints(self) -> list[str]:
        """The names of its checkpoints, the newest last."""
        return [name for name in (self.place / "checkpoints").names() if CHECKPOINT.fullmatch(name)]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of this run, so that no other process works on it; a dead process holds no lock."""
        with alone(self.place, f"the run at '{self.path}'"):
            yield

    def sweep(self) -> None:
        """Remove what a killed process of this run left half written; only the holder of the lock may call this."""
        for name in self.place.names():
            if ASIDE.fullmatch(name):
                (self.place / name).unlink()

    def say(self, text: str) -> None:
        """Append a line to the log."""
        self.log.append(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n".encode())

    def other_environment(self) -> str:
        """How this environment differs from the one in which the run began, in words; then bits may differ."""
        file = self.place / "environment.json"
        file.exists()  # a link is refused
        try:
            before = read_json(file, Environment)
        except DataError as error:
            return f"environment.json cannot be read: {error}"
        if before is None:
            return "environment.json cannot be read: there is none"
        now = environment()
        keys = ("polyfed", "python", "torch", "numpy", "cpu", "capability", "machine")
        return ", ".join(f"{k} {before.get(k)} -> {now[k]}" for k in keys if before.get(k) != now[k])


@contextmanager
def alone(place: Place, what: str, patient: bool = False) -> Iterator[None]:
    """Hold the lock of a directory; if it is held already, raise an error, or wait for it if `patient`."""
    key = place.path.resolve()
    refusal = InUse(f"{what} is in use by another process")
    if key in _mine:
        raise refusal
    with (place / "lock").lock() as handle:
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
    """Whether a process holds the lock of a directory; the lock is not taken to find out, which could delay others."""
    if path.resolve() in _mine:
        return True
    unlocked = {"l_type": fcntl.F_WRLCK, "l_whence": 0, "l_start": 0, "l_len": 0, "l_pid": 0}
    order = ("l_start", "l_len", "l_pid", "l_type", "l_whence") if sys.platform == "darwin" else tuple(unlocked)
    form = "qqihh" if sys.platform == "darwin" else "hhqqi"
    try:
        with (Place(path) / "lock").open() as handle:
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


@cache
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
