"""A site's own model, used where it lies."""

import json
from pathlib import Path

from polyfed.engine.deploy.client import KEPT, world_of
from polyfed.engine.deploy.layout import Site
from polyfed.engine.replay import Predictor
from polyfed.engine.work import Job
from polyfed.errors import DataError
from polyfed.message import Message


def site_predictor(site: Site) -> tuple[Predictor, tuple[str, ...]]:
    """What answers for a site since its last evaluation, and the names of its classes."""
    try:
        about = json.loads((site.model / "job.json").read_text())
        down = Message.decode((site.model / KEPT).read_bytes())
        memory = None if about["version"] is None else (site.model / "memory.safetensors").read_bytes()
    except (OSError, ValueError) as error:
        raise DataError(f"site '{site.name}' has no model yet in '{site.model}': {error}") from None
    world = world_of(site, about["order"])
    client = world.client(Job("evaluate", about["client"], about["round"], down), memory)
    world.method.adapt(client)
    model = world.method.predictor(client)
    return Predictor(model, world.federation, world.config.eval.batch), world.federation.class_names


def read_inputs(path: Path) -> "object":
    """Rows from a .npy file, or from `x` of a .npz file."""
    import numpy as np

    try:
        found = np.load(path, allow_pickle=False)
        return found["x"] if hasattr(found, "files") else found
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"cannot read rows from '{path}' (.npy, or .npz with x): {error}") from None
