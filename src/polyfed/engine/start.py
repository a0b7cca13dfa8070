"""Where a run's model starts: the seeded initial values, or another run's or file's; and whose rounds are its own."""

from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load

from polyfed.config import Config, Tree, deciding, differences, flatten, registry_of
from polyfed.engine.checkpoint import Checkpoints, Origin, Progress
from polyfed.engine.memory import MemoryStore
from polyfed.engine.run_folder import RunFolder
from polyfed.errors import DataError, UsageError
from polyfed.files import Place, read_plain
from polyfed.methods.base import Method, OnTop, Server
from polyfed.params import Params
from polyfed.parts.resident import Resident
from polyfed.registry import specs_in

ROUNDS = (
    "kept", "shared", "trains", "weighting", "buffers", "everyone", "personal", "own_models", "bind", "wire", "build",
    "build_own", "start", "send", "adapt", "train", "local", "loss", "correct", "upload", "merge", "global_predictor",
    "has_global", "remembers", "private_steps", "presumes", "unbounded",
)  # fmt: skip


def starting_params(config: Config, resident: Resident) -> Params:
    """Where every site starts: the seeded values, or what `init` names: a run (its last shared model) or a file."""
    if config.init is None or _phase_one(config):
        return resident.initial
    if config.model.per_client:
        raise UsageError(
            "init names one model for all to start from, and model.per_client gives clients models of their own: leave "
            "one of them out"
        )
    path = Path(config.init)
    file = newest_model(path) if path.is_dir() else path
    try:
        tensors = load(read_plain(file))
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


def phase_one_of(config: Config) -> RunFolder | None:
    """The finished run whose rounds are this one's; None where there is none, and a sentence where it is another's."""
    if config.init is None or not _phase_one(config):
        return None
    run = RunFolder.existing(Path(config.init))
    if run.result() is None:
        raise DataError(f"init: the run at '{config.init}' is not finished; go on with: polyfed resume {config.init}")
    differing = differences(deciding(run.tree()), _base_of(config))
    if differing and differences(_rounds_of(run.tree(), config), _base_of(config)):
        raise UsageError(f"init: the run at '{config.init}' is not this phase one: {', '.join(differing)} differ")
    return run


def _base_of(config: Config) -> Tree:
    """What decides the bits of a run of this one's base."""
    return deciding({**config.dump(), "method": config.method.base.dump()})


def _rounds_of(tree: Tree, config: Config) -> Tree:
    """What decides another run's rounds, which are those of its base if its method is on top of one and adds none."""
    section = tree.get("method", {})
    if "base" in section and may_name(section, config):
        method = registry_of("method").build(section, "method")
        if isinstance(method, Method) and has_rounds_of_base(method):
            return deciding({**tree, "method": section["base"]})
    return deciding(tree)


def may_name(section: Tree, config: Config) -> bool:
    """Whether a method in another run's config is ours, or one that this config names too: other code is not run."""
    names = [str(value) for key, value in flatten(section).items() if key.rpartition(".")[2] == "name"]
    known = {spec.name for spec in specs_in(config)}
    return all(":" not in name or name in known for name in names)


def has_rounds_of_base(method: Method) -> bool:
    """Whether, until its finish, a method on top of another does what that other does, numbers and records too."""
    return (
        isinstance(method, OnTop)
        and all(getattr(type(method), name) is getattr(OnTop, name) for name in ROUNDS)
        and _answers_plainly(method)
        and _answers_plainly(method.base)
    )


def _answers_plainly(method: Method) -> bool:
    """Whether the resident model answers for a client, at least until finish."""
    return type(method).predictor is Method.predictor or (isinstance(method, OnTop) and method.late)


def adopt(
    config: Config, server: Server, store: MemoryStore, federation: str, say: Callable[[str], None]
) -> tuple[Progress, dict[str, int]] | None:
    """Phase one of a method on top of another, from a finished run that has the same: the same bits as from scratch.

    The progress names that run and what it had spent; beside it, how much of its records belongs to phase one.
    """
    run = phase_one_of(config)
    if run is None:
        return None
    theirs, origin = MemoryStore(run.place / "memory"), Origin(deciding(run.tree()), federation)
    found = Checkpoints(run.place / "checkpoints", 1, origin, finished=False).load(server, theirs, say)
    if found is None:
        raise DataError(f"init: the run at '{config.init}' kept no checkpoint of before its finish (checkpoint.keep=1)")
    for client, version in theirs.table.items():
        store.put(client, version, theirs.get(client, version) or b"")
        store.commit(client, version, theirs.digests[client])
    say(f"phase one is the run at {config.init}")
    progress, records = found
    seconds = {phase: round(spent, 3) for phase, spent in progress.seconds.items()}
    progress.phase_one = {"run": config.init, "seconds": seconds, "bytes": dict(progress.bytes)}
    return progress, records


def newest_model(run: Path) -> Place:
    """The server's file of a run's last checkpoint."""
    folder = RunFolder(run)
    found = folder.checkpoints()
    if not found:
        raise DataError(f"init: '{run}' is not a run with a checkpoint")
    return folder.place / "checkpoints" / found[-1] / "server.safetensors"
