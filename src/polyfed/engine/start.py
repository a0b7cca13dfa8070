"""Where a run's model starts: the seeded initial values, or another run's or file's."""

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file

from polyfed.config import Config
from polyfed.errors import DataError
from polyfed.params import Params
from polyfed.parts.resident import Resident


def starting_params(config: Config, resident: Resident) -> Params:
    """`init` names a run (its last shared model) or a safetensors file by tensor names; None is the seeded start."""
    if config.init is None:
        return resident.initial.copy()
    path = Path(config.init)
    file = newest_model(path) if path.is_dir() else path
    try:
        tensors = load_file(file)
    except (OSError, SafetensorError) as error:
        raise DataError(f"init: cannot read a model from '{file}': {error}") from None
    params = resident.initial.copy()
    if "params#flat" in tensors:
        if tensors["params#flat"].shape != params.flat.shape:
            raise DataError(f"init: the model in '{file}' has another shape than model '{config.model.name}' here")
        return Params(params.layout, tensors["params#flat"], tensors["params#integers"])
    for entry in params.layout.entries:
        found = tensors.get(entry.name)
        if found is None or tuple(found.shape) != entry.shape:
            raise DataError(f"init: '{file}' has no tensor '{entry.name}' of shape {entry.shape}")
        entry.view(params.integers if entry.kind == "integer" else params.flat).copy_(found)
    return params


def newest_model(run: Path) -> Path:
    """The server's file of a run's last checkpoint."""
    found = sorted((run / "checkpoints").glob("at-*/server.safetensors"))
    if not found:
        raise DataError(f"init: '{run}' is not a run with a checkpoint")
    return found[-1]
