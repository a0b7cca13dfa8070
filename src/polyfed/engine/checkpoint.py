"""Everything a run needs to go on, written aside, synced and renamed; a corrupt one falls back to the one before."""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from polyfed.engine.memory import MemoryStore, sync, write_file
from polyfed.errors import DataError
from polyfed.message import State, digest_of
from polyfed.methods.base import Server

UNREADABLE = (DataError, ValueError, KeyError, TypeError, AttributeError, OSError)  # what garbage in a file may raise


@dataclass
class Progress:
    """Where a run stands: what it has done and spent so far."""

    round: int = 0  # the last committed round
    finished: bool = False  # whether the finish round is committed too
    bytes: dict[str, int] = field(default_factory=lambda: {"up": 0, "down": 0, "eval": 0})
    seconds: dict[str, float] = field(default_factory=lambda: {"total": 0.0, "train": 0.0, "eval": 0.0, "server": 0.0})
    rejected: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    lost: list[list[Any]] = field(default_factory=list)  # [round, client, reason]: rounds whose bits are not promised
    best: dict[str, Any] | None = None  # the round chosen on validation, with its numbers
    last: dict[str, Any] = field(default_factory=dict)  # the numbers of the last evaluation


class Checkpoints:
    """The checkpoints of one run directory, newest last."""

    def __init__(self, folder: Path, keep: int, finished: bool = True):
        self.folder, self.keep = folder, keep
        self.finished = finished  # whether one taken after the finish round counts

    def _all(self) -> list[Path]:
        found = sorted(p for p in self.folder.glob("at-*") if p.is_dir())
        return [p for p in found if self.finished or not p.name.endswith("-finished")]

    def save(self, progress: Progress, server: Server, store: MemoryStore, records: dict[str, int]) -> None:
        """Write one, then delete what is older than the last `keep`."""
        store.persist()
        blob = state_of(server).encode()
        head = {
            "progress": asdict(progress),
            "memory": {str(k): [v, store.digests[k]] for k, v in sorted(store.table.items())},
            "records": records,
            "server": digest_of(blob),
        }
        name = f"at-{progress.round:06d}{'-finished' if progress.finished else ''}"
        aside = self.folder / f".{name}.tmp"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        write_file(aside / "server.safetensors", blob)
        text = json.dumps(head, indent=1)
        write_file(aside / "head.json", json.dumps({"sha256": digest_of(text.encode()), "head": text}).encode())
        sync(aside)
        target = self.folder / name
        if target.exists():
            shutil.rmtree(target)
        aside.rename(target)
        sync(self.folder)
        for old in self._all()[: -self.keep]:
            shutil.rmtree(old, ignore_errors=True)
        store.prune(*(self._table(p) for p in self._all()))

    def load(
        self, server: Server, store: MemoryStore, say: Callable[[str], None]
    ) -> tuple[Progress, dict[str, int]] | None:
        """Restore the newest whole checkpoint into server and store; None if there is none at all."""
        found = self._all()
        for path in reversed(found):
            try:
                head = self._head(path)
                blob = (path / "server.safetensors").read_bytes()
                if digest_of(blob) != head["server"]:
                    raise DataError("server.safetensors is not what was written")
                memory = {int(k): v for k, v in head["memory"].items()}
                store.restore({k: v[0] for k, v in memory.items()}, {k: v[1] for k, v in memory.items()})
                restore_state(server, State.decode(blob, server.resident.layout))
                return Progress(**head["progress"]), head["records"]
            except UNREADABLE as error:
                say(f"checkpoint {path.name} is corrupt ({error}); falling back to the one before")
        if found:
            raise DataError(f"every checkpoint in {self.folder} is corrupt; the run cannot be resumed")
        return None

    def _head(self, path: Path) -> dict[str, Any]:
        outer = json.loads((path / "head.json").read_text())
        if digest_of(outer["head"].encode()) != outer["sha256"]:
            raise DataError("head.json is not what was written")
        return json.loads(outer["head"])

    def _table(self, path: Path) -> dict[int, int]:
        try:
            return {int(k): v[0] for k, v in self._head(path)["memory"].items()}
        except UNREADABLE:
            return {}


def state_of(server: Server) -> State:
    """All the server keeps, in one bundle."""
    return State(**{"params": server.params, **{f"state.{k}": v for k, v in server.state.items()}})


def restore_state(server: Server, kept: State) -> None:
    """The inverse of `state_of`."""
    server.params = kept.params
    server.state = State(**{k.removeprefix("state."): v for k, v in kept.items() if k != "params"})
