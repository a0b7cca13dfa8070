"""A server and a client side built by hand, without a run around them."""

from typing import Any

from polyfed.api import config_of
from polyfed.engine.work import World
from polyfed.methods.base import Server
from polyfed.methods.sites import Known


def world_of(tree: dict[str, Any]) -> World:
    """What a process builds for an experiment."""
    return World(config_of(tree))


def server_of(world: World, clients: int | None = None) -> Server:
    """A server before its first round; it knows the federation's clients, or as many alike."""
    held = world.federation.clients
    known = [Known(k, str(k), len(held[k % len(held)].train), None) for k in range(clients or len(held))]
    method = world.method
    weighting = world.config.weighting or method.weighting
    server = Server(world.resident, world.task, known, weighting, method.shared)
    method.start(server)
    server.round = 1
    return server
