"""A federation of sites in this one process: the server app's loop and every site's app, with Flower's bytes between.

What needs no network, no guard and no processes of its own is shown here in seconds instead of minutes.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

from flwr.app import Context, Message, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as Bytes
from flwr.supercore.task_identity import TaskIdentity

from polyfed.config import make_config, merge, named_sections, read_config, unflatten
from polyfed.engine.flower.deploy.client import app
from polyfed.engine.flower.deploy.layout import Server
from polyfed.engine.flower.deploy.server import Sites, SitesRun
from polyfed.engine.run_folder import RunFolder
from polyfed.measure.watch import Silent


class Grid:
    """Every site answers as soon as a message is sent to it."""

    def __init__(self, path: Path):
        server = Server.at(path)
        self.homes = {at: path / "sites" / name for at, name in enumerate(server.sites, 1)}
        self.nodes = [
            SimpleNamespace(node_id=at, public_key=server.key_of(home.name), last_activated_at="now")
            for at, home in self.homes.items()
        ]
        self.answers: dict[str, Message] = {}

    def get_nodes(self) -> list[SimpleNamespace]:
        return self.nodes

    def push_messages(self, messages: Iterable[Message]) -> Iterator[str]:
        for message in messages:
            message.metadata.__dict__["_message_id"] = key = str(uuid4())
            node = message.metadata.dst_node_id
            context = Context(0, node, {"home": str(self.homes[node])}, RecordDict(), {})
            self.answers[key] = as_bytes(app(as_bytes(message), context))
            yield key

    def pull_messages(self, keys: Iterable[str]) -> list[Message]:
        return [self.answers.pop(key) for key in keys if key in self.answers]


def as_bytes(message: Message) -> Message:
    """What arrives of a message that crosses Flower's wire."""
    return message_from_proto(Bytes.FromString(message_to_proto(message).SerializeToString()))


class Quick(Sites):
    """Nobody is waited for."""

    pause = 0.01


def run(path: Path, changes: dict[str, Any], monkeypatch: Any) -> RunFolder:
    """A run of the federation at a path, with changes to its config, from its start to its end."""
    for number in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, number, 1)
    server = Server.at(path)
    tree = merge(named_sections(read_config(server.config)), named_sections(unflatten(changes)))
    folder = RunFolder.create(make_config(tree), server.runs / "run-1")
    SitesRun(folder.made_of(), folder, Quick(Grid(path), server, folder.path, "counts"), Silent()).go()
    return folder
