"""Where a run's model starts: the seeded initial values, or another run's or file's."""

from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file

from polyfed.config import BESIDE, Config, Tree
from polyfed.engine.checkpoint import Checkpoints, Progress
from polyfed.engine.folder import RunFolder
from polyfed.engine.memory import MemoryStore
from polyfed.errors import DataError, UsageError
from polyfed.methods.base import OnTop, Server
from polyfed.params import Params
from polyfed.parts.resident import Resident


def starting_params(config: Config, resident: Resident) -> Params:
    """Where every site starts: the seeded values, or what `init` names: a run (its last shared model) or a file."""
    if config.init is None or _phase_one(config):
        return resident.initial
    path = Path(config.init)
    file = newest_model(path) if path.is_dir() else path
    try:
        tensors = load_file(file)
    except (OSError, SafetensorError) as error:
        raise DataError(f"init: cannot read a model from '{file}': {error}") from None
    params = resident.initial.copy()
    if "params#flat" in tensors:
        vectors = tensors["params#flat"], tensors.get("params#integers", params.integers[:0])
        if (vectors[0].shape, vectors[1].shape) != (params.flat.shape, params.integers.shape):
            raise DataError(f"init: the model in '{file}' has another shape than model '{config.model.name}' here")
        return Params(params.layout, *vectors)
    for entry in params.layout.entries:
        found = tensors.get(entry.name)
        if found is None or tuple(found.shape) != entry.shape:
            raise DataError(f"init: '{file}' has no tensor '{entry.name}' of shape {entry.shape}")
        entry.view(params.integers if entry.kind == "integer" else params.flat).copy_(found)
    return params


def _phase_one(config: Config) -> bool:
    """Whether `init` is a run whose rounds are this one's."""
    return config.init is not None and isinstance(config.method, OnTop) and Path(config.init).is_dir()


def adopt(config: Config, server: Server, store: MemoryStore, say: Callable[[str], None]) -> Progress | None:
    """Phase one of a method on top of another, from a finished run of that other: the same bits as from scratch."""
    if config.init is None or not _phase_one(config):
        return None
    method: OnTop = config.method
    run = RunFolder.existing(Path(config.init))
    if run.result() is None:
        raise DataError(f"init: the run at '{config.init}' is not finished; go on with: polyfed resume {config.init}")
    differing = _differences(run.tree(), {**config.dump(), "method": method.base.dump()})
    if differing:
        raise UsageError(f"init: the run at '{config.init}' is not this phase one: {', '.join(differing)} differ")
    theirs = MemoryStore(run.path / "memory")
    found = Checkpoints(run.path / "checkpoints", keep=1, finished=False).load(server, theirs, say)
    if found is None:
        raise DataError(f"init: the run at '{config.init}' kept no checkpoint of before its finish (checkpoint.keep=1)")
    for client, version in theirs.table.items():
        store.put(client, version, theirs.get(client, version) or b"")
        store.commit(client, version, theirs.digests[client])
    say(f"phase one is the run at {config.init}: its records are there")
    return found[0]


def _differences(theirs: Tree, ours: Tree) -> list[str]:
    """The keys that decide the bits and are not the same."""
    free = ("device", "eval", "checkpoint", "init", "engine", *BESIDE)
    return [key for key in ours if key not in free and theirs.get(key) != ours[key]]


def newest_model(run: Path) -> Path:
    """The server's file of a run's last checkpoint."""
    found = sorted((run / "checkpoints").glob("at-*/server.safetensors"))
    if not found:
        raise DataError(f"init: '{run}' is not a run with a checkpoint")
    return found[-1]
