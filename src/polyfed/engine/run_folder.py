"""A run directory: made when the run can begin, locked while used, never overwritten once it has trained."""

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
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import SequenceMatcher
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
from polyfed.measure.recorder import FIELDS
from polyfed.measure.stored import Environment, Federation, Summary, read_json
from polyfed.registry import specs_in

ASIDE = re.compile(r"\.(federation\.json|counts\.npz|summary\.json)\.\d+\.tmp")  # what a killed run leaves half written
CHECKPOINT = re.compile(r"at-\d{6,}(-finished)?")
START = "at-000000"  # the checkpoint of a run that was stopped in its first round
OF_A_START = {  # what a run may leave behind that failed before its first round was over
    "config.yaml", "environment.json", "code.json", "lock", "log.txt", "federation.json", "checkpoints", "memory",
    "tensorboard", "mlflow", "mlflow.json", "wandb", "wandb.json", *(f"{table}.csv" for table in FIELDS),
}  # fmt: skip
PASSING = re.compile(r"\.(.+\.\d+\.tmp|lease-\w+)")  # half written, or a sign that somebody is at work
_mine: set[Path] = set()  # record locks do not stop their own process, so it remembers what it holds


class RunFolder:
    """One run on disk."""

    def __init__(self, path: Path | Place):
        self.place = Place.of(path)
        self.path = self.place.path
        self.config, self.summary = self.place / "config.yaml", self.place / "summary.json"
        self.log = self.place / "log.txt"
        self._began: bytes | None = None  # the config that was written here, where this process began the run

    @staticmethod
    def create(config: Config, path: Path | None) -> "RunFolder":
        """A new one at `path`, or under a fresh name in $POLYFED_OUT or ./runs; see `refuse_taken` for what is free."""
        folder = RunFolder(claim(path, f"{config.method.name}-{config.data.name}-s{config.seed}"))
        with folder.locked():
            folder.begin(config)
        return folder

    def begin(self, config: Config) -> None:
        """Make this directory a run; nothing in it was trained, or it is refused."""
        refuse_taken(self.path)
        (self.place / "checkpoints" / START).remove()  # of a start that came to nothing
        around = json.dumps(environment(), indent=1).encode()
        content = self._began = write_yaml(config.dump()).encode()
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

    def refuse_another(self) -> None:
        """Whoever holds the lock goes on with the run it began, and with no other's that began here in between."""
        if self._began is not None and self.config.read_bytes() != self._began:
            raise InUse(f"the run at '{self.path}' was begun anew by another process")

    def never_trained(self) -> bool:
        """Whether all that lies here is the start of a run of which no round was ever completed."""
        names = self.place.names()
        return (
            all(name in OF_A_START or PASSING.fullmatch(name) for name in names)
            and ("environment.json" in names or not set(names) & OF_A_START - {"lock"})
            and not set(self.checkpoints()) - {START}
            and not any(self._rows(table) for table in ("rounds", "spent"))
        )

    def _rows(self, table: str) -> int:
        """Lines of a table, without its head."""
        file = self.place / f"{table}.csv"
        return max(0, file.read_bytes().count(b"\n") - 1) if file.exists() else 0

    def names(self) -> dict[int, str]:
        """The names of its clients by id; nothing where they are not written down."""
        found = read_json(self.place / "federation.json", Federation) or {"clients": []}
        return {client["id"]: client["name"] for client in found["clients"]}

    def client(self, who: int | str) -> int:
        """The id of a client that is called by its name or its id; a word that is both is a name."""
        names = self.names()
        named = [id for id, name in names.items() if name == who]
        if named:
            return named[0]
        if isinstance(who, str) and not re.fullmatch(r"[+-]?\d{1,18}", who):
            hint = f"the nearest name is '{_nearest(who, names.values())}'" if names else "its clients have no names"
            raise UsageError(f"the run at '{self.path}' has no client '{who}'; {hint}")
        id = int(who)
        if names and id not in names:
            raise UsageError(f"there is no client {id}; the run has clients 0 to {len(names) - 1}")
        return id

    def named(self, client: int) -> str:
        """The name somebody gave a client; nothing where it is only numbered."""
        name = self.names().get(client, "")
        return "" if re.fullmatch(r"client-\d+", name) else name

    def called(self, client: int) -> str:
        """What a file's name calls a client: its name, if it can stand there and is no number, or else its id."""
        name = self.named(client)
        return name if re.fullmatch(r"\w[\w.-]{0,63}", name) and not name.isdecimal() else str(client)

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


def _nearest(word: str, names: Iterable[str]) -> str:
    """The name that looks most like a word, however little that is."""
    return max(names, key=lambda name: SequenceMatcher(None, word.lower(), name.lower()).ratio())


def refuse_taken(path: Path) -> None:
    """A run may begin where there is nothing, an empty directory, or a run of which no round was ever completed."""
    try:
        run = RunFolder(path)
        if not path.exists() or (path.is_dir() and run.never_trained()):
            return
        cure = f"go on with polyfed resume {path}, or " if path.is_dir() and run.config.is_file() else ""
    except OSError as error:
        raise UsageError(f"cannot write to '{path}': {error.strerror}") from None
    raise UsageError(f"'{path}' exists and is not empty; a run never overwrites: {cure}give another --out")


def claim(path: Path | None, name: str) -> Path:
    """A directory for a run: `path` itself, or a fresh one named after the time under $POLYFED_OUT or ./runs."""
    try:
        if path is not None:
            refuse_taken(path)
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
