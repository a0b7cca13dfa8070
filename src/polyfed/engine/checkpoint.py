"""Everything a run needs to go on, written aside, synced and renamed; a corrupt one falls back to the one before."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from polyfed.config import Tree, deciding, differences
from polyfed.engine.memory import MemoryStore
from polyfed.engine.run_folder import RunFolder
from polyfed.errors import DataError, UsageError
from polyfed.files import Place, sync, write_file
from polyfed.message import State, digest_of
from polyfed.methods.base import Server

UNREADABLE = (DataError, ValueError, KeyError, TypeError, AttributeError, OSError)  # what garbage in a file may raise


@dataclass
class Progress:
    """Where a run stands: what it has done and spent so far."""

    round: int = 0  # the last committed round
    finished: bool = False  # whether the finish round is committed too
    unfinished: list[int] = field(default_factory=list)  # clients whose finish failed: they stay as they were
    bytes: dict[str, int] = field(default_factory=lambda: {"up": 0, "down": 0, "eval": 0})
    seconds: dict[str, float] = field(default_factory=dict)  # in total and by phase, including those before a resume
    rejected: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    excluded: dict[str, str] = field(default_factory=dict)  # client id -> why it takes part no more
    lengths: dict[str, list[float]] = field(default_factory=dict)  # of accepted updates, by field: what is usual
    lost: list[list[Any]] = field(default_factory=list)  # [round, client, reason]: rounds whose bits are not promised
    best: dict[str, Any] | None = None  # the round chosen on validation, with its numbers
    last: dict[str, Any] = field(default_factory=dict)  # the numbers of the last evaluation
    privacy: dict[str, list[list[float]]] = field(default_factory=dict)  # by client: (sigma, q, steps) spent
    threats: dict[str, Any] = field(default_factory=dict)  # tp, fp, fn, stopped of all rounds; acc, asr of the last
    phase_one: dict[str, Any] | None = None  # the run whose rounds are this one's, and what they had spent


@dataclass(frozen=True)
class Origin:
    """What a checkpoint belongs to: the keys of the config that decide bits, and who holds what."""

    config: Tree
    federation: str  # a digest of what all clients said in their hello

    def head(self) -> dict[str, Any]:
        """As written to a checkpoint, with the version of polyfed and a digest of all three."""
        told = {"config": self.config, "federation": self.federation, "polyfed": version("polyfed")}
        return {**told, "digest": digest_of(json.dumps(told, sort_keys=True).encode())}

    def check(self, kept: dict[str, Any], what: str) -> None:
        """Refuse a checkpoint of another experiment, and say in what it differs."""
        differing = differences(kept["config"], self.config)
        data = all(key.startswith("data.") for key in differing)
        if kept["federation"] != self.federation:
            differing.append("who takes part or holds how many samples of which class")
        if differing:
            whose, cure = ("a run on other data", ": give the very data it had") if data else ("another experiment", "")
            words = _first_few(differing)
            raise UsageError(f"{what} belongs to {whose}, from which this one differs in {words}{cure}")


def _first_few(words: list[str]) -> str:
    more = [f"{len(words) - 5} more"] if len(words) > 5 else []
    return ", ".join([*words[:5], *more])


class Checkpoints:
    """The checkpoints of one run directory, newest last."""

    def __init__(self, folder: Path | Place, keep: int, origin: Origin, finished: bool = True):
        self.folder, self.keep, self.origin = Place.of(folder), keep, origin
        self.finished = finished  # whether one taken after the finish round counts

    def _all(self) -> list[Place]:
        found = [self.folder / name for name in self.folder.names() if name.startswith("at-")]
        return [p for p in found if p.is_dir() and (self.finished or not p.name.endswith("-finished"))]

    def save(self, progress: Progress, server: Server, store: MemoryStore, records: dict[str, int]) -> None:
        """Write one, then delete what is older than the last `keep`."""
        store.persist()
        blob = state_of(server).encode()
        head = {
            "origin": self.origin.head(),
            "progress": asdict(progress),
            "memory": {str(k): [v, store.digests[k]] for k, v in sorted(store.table.items())},
            "records": records,
            "server": digest_of(blob),
        }
        name = f"at-{progress.round:06d}{'-finished' if progress.finished else ''}"
        aside = self.folder / f".{name}.tmp"
        aside.remove()
        aside.mkdir()
        write_file(aside / "server.safetensors", blob)
        text = json.dumps(head, indent=1)
        write_file(aside / "head.json", json.dumps({"sha256": digest_of(text.encode()), "head": text}).encode())
        sync(aside)
        target = self.folder / name
        if target.exists():
            target.remove()
        aside.rename(name)
        sync(self.folder)
        self.tidy(store)

    def tidy(self, store: MemoryStore) -> None:
        """Delete what is older than the last `keep`, and the memories that none of them refers to."""
        for old in self._all()[: -self.keep]:
            old.remove()
        store.prune(*(self._table(p) for p in self._all()))

    def load(
        self, server: Server, store: MemoryStore, say: Callable[[str], None]
    ) -> tuple[Progress, dict[str, int]] | None:
        """Restore the newest whole checkpoint into server and store; None if there is none at all."""
        found = self._all()
        for path in reversed(found):
            try:
                head = read_head(path)
                self.origin.check(head["origin"], f"checkpoint {path.name} in {self.folder}")
                blob = (path / "server.safetensors").read_bytes()
                if digest_of(blob) != head["server"]:
                    raise DataError("server.safetensors is not what was written")
                memory = {int(k): v for k, v in head["memory"].items()}
                store.restore({k: v[0] for k, v in memory.items()}, {k: v[1] for k, v in memory.items()})
                restore_state(server, State.decode(blob, server.resident.layout))
                progress = TypeAdapter(Progress).validate_python(head["progress"])
                return progress, TypeAdapter(dict[str, int]).validate_python(head["records"])
            except UNREADABLE as error:
                say(f"checkpoint {path.name} is corrupt ({error}); falling back to the one before")
        if found:
            raise DataError(f"every checkpoint in {self.folder} is corrupt; the run cannot be resumed")
        return None

    def _table(self, path: Place) -> dict[int, int]:
        try:
            return {int(k): v[0] for k, v in read_head(path)["memory"].items()}
        except UNREADABLE:
            return {}


def other_config(run: RunFolder) -> list[str]:
    """The sentence that says in what a run's config.yaml is not the one it ran with; nothing where it is."""
    for name in reversed(run.checkpoints()):
        try:
            ran_with = read_head(run.place / "checkpoints" / name)["origin"]["config"]
            differing = differences(ran_with, deciding(run.tree()))
        except UNREADABLE:
            continue
        said = f"the config.yaml of the run at '{run.path}' is not the one it ran with: {_first_few(differing)}"
        return [said] if differing else []
    return []


def read_head(checkpoint: Place) -> dict[str, Any]:
    """What a checkpoint says of itself, if it is what was written."""
    outer = json.loads((checkpoint / "head.json").read_text())
    if digest_of(outer["head"].encode()) != outer["sha256"]:
        raise DataError("head.json is not what was written")
    return json.loads(outer["head"])


def state_of(server: Server) -> State:
    """All the server keeps, in one bundle."""
    return State(**{"params": server.shared, **{f"state.{k}": v for k, v in server.state.items()}})


def restore_state(server: Server, kept: State) -> None:
    """The inverse of `state_of`."""
    server.shared = kept.params
    server.state = State(**{k.removeprefix("state."): v for k, v in kept.items() if k != "params"})
