"""A site's own model, used where it lies."""

import json

from polyfed.engine.flower.deploy.client import KEPT, world_of
from polyfed.engine.flower.deploy.layout import Site
from polyfed.engine.work import Job
from polyfed.errors import DataError
from polyfed.message import Message
from polyfed.use.predictor import Predictor
from polyfed.use.replay import predictor_of


def site_predictor(site: Site) -> Predictor:
    """The predictor of a site, as of its last evaluation."""
    try:
        about = json.loads((site.model / "job.json").read_text())
        down = Message.decode((site.model / KEPT).read_bytes())
        memory = None if about["version"] is None else (site.model / "memory.safetensors").read_bytes()
    except (OSError, ValueError) as error:
        raise DataError(f"site '{site.name}' has no model yet in '{site.model}': {error}") from None
    world = world_of(site, about["order"])
    client = world.client(Job("evaluate", about["client"], about["round"], down), memory)
    world.method.adapt(client)
    return predictor_of(world, world.method.predictor(client))
