"""A real, tiny run in this process with everything recorded: what went down, what came up, what was remembered."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import polyfed
from polyfed.api import Result
from polyfed.data.sources.arrays import Arrays
from polyfed.engine.work import Job, Outcome, World
from polyfed.message import Memory, Message, State
from polyfed.methods.base import Client, Method
from polyfed.params import Layout, Params

CLASSES, INTO = 5, 8
SIZES = {"even": [40] * 4, "skewed": [20, 34, 27, 9]}
HOLDS = [(0, 1), (1, 2, 3, 4), (0, 1, 2, 3, 4), (3,)]  # the classes of the clients of the skewed federation


def federation(kind: str) -> tuple[Arrays, dict[str, Any]]:
    """Arrays and a split: four clients alike, or four that hold other classes in other numbers."""
    draw = np.random.default_rng(7)
    holds = HOLDS if kind == "skewed" else [range(CLASSES)] * 4
    y = np.concatenate([np.resize(np.array(h), n) for h, n in zip(holds, SIZES[kind], strict=True)])
    users = np.repeat(np.arange(4), SIZES[kind])
    y_test = np.arange(50) % CLASSES
    rows = [draw.normal(size=(len(labels), INTO)).astype(np.float32) for labels in (y, y_test)]
    for x, labels in zip(rows, (y, y_test), strict=True):
        x[np.arange(len(labels)), labels] += 2.5
    data = Arrays.hold(rows[0], y, rows[1], y_test, users=users, class_names=[str(c) for c in range(CLASSES)])
    return data, {"partition": "users", "clients": 4, "test": 0.2}


@dataclass
class Seen:
    """One job: what went in and what came out."""

    kind: str
    client: int
    round: int
    down: Message
    up: Message
    before: bytes | None  # the memory it began with
    after: bytes | None  # the memory it left
    numbers: dict[str, Any]
    live: Tensor  # the resident model when its hooks were done, before anything was measured
    layout: Layout

    def memory(self, after: bool = True) -> Memory:
        """What the client remembered."""
        blob = self.after if after else self.before
        return Memory() if blob is None else Memory.decode(blob, self.layout)


@dataclass
class Ride:
    """A finished run with its record."""

    result: Result
    seen: list[Seen]
    world: World
    _state: dict[str, Any] = field(default_factory=dict)

    @property
    def layout(self) -> Layout:
        return self.world.resident.layout

    @property
    def initial(self) -> Params:
        return self.world.resident.initial

    def of(self, kind: str) -> list[Seen]:
        return [s for s in self.seen if s.kind == kind]

    def train(self, round: int, client: int) -> Seen:
        """The training of a client in a round."""
        return next(s for s in self.of("train") if (s.round, s.client) == (round, client))

    @cached_property
    def state(self) -> State:
        """The server in the end: params, and its state as `state.<name>`."""
        newest = sorted((self.result.path / "checkpoints").glob("at-*/server.safetensors"))[-1]
        return State.decode(newest.read_bytes(), self.layout)

    @property
    def params(self) -> Params:
        return self.state.params

    def down_whole(self, seen: Seen) -> Params:
        """The model a client was sent, where all of it was."""
        return Params(self.layout, seen.down.w, seen.down.get("w.integers", self.initial.integers))


def ride(
    out: Path,
    method: str | type[Method] | dict[str, Any] = "fedavg",
    data: str = "even",
    model: str = "mlp",
    **keys: Any,
) -> Ride:
    """Run it; `keys` are config keys, dotted."""
    source, split = federation(data)
    seen: list[Seen] = []
    worlds: list[World] = []
    left: dict[str, Tensor] = {}
    real, real_leave = World.do, World._with_memory

    def leave(self: World, client: Client, outcome: Outcome) -> Outcome:
        left["live"] = self.resident.params.flat.clone()
        return real_leave(self, client, outcome)

    def do(self: World, job: Job, blob: bytes | None) -> Outcome:
        down = Message.decode(job.down.encode())
        outcome = real(self, job, blob)
        up = Message.decode(outcome.up.encode())
        live = left.pop("live", self.resident.params.flat.clone())
        numbers = dict(outcome.numbers) | {"error": outcome.error}
        about = (job.kind, job.client, job.round)
        seen.append(Seen(*about, down, up, blob, outcome.memory, numbers, live, self.resident.layout))
        worlds.append(self)
        return outcome

    config = {
        "data": source,
        "split": split,
        "model": {"name": model, "width": 0.02},
        "rounds": 3,
        "train": {"lr": 0.1, "batch": 4},
        "engine": {"workers": 0},
        "checkpoint": {"every": 1000},
        "eval": {"every": 1000},
        "method": method,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(World, "do", do)
        patch.setattr(World, "_with_memory", leave)
        result = polyfed.run(config, keys, out=out)
    return Ride(result, seen, worlds[0])


def spoiling(method: type[Method], who: int = 1, when: int = 2) -> type[Method]:
    """The same method, but one client's upload of one round is not a number."""

    class Spoiling(method):  # type: ignore[misc, valid-type]
        def train(self, client: Client) -> Message:
            upload = super().train(client)
            if (client.id, client.round) == (who, when):
                upload.w[0] = float("nan")
            return upload

    return Spoiling


def learnt(secret: Tensor, *known: Tensor) -> np.ndarray:
    """The values of a secret that nobody else could know: those that are in none of the known tensors."""
    values = secret.flatten().numpy()
    public = np.concatenate([k.flatten().numpy() for k in known]) if known else np.zeros(0, np.float32)
    return values[~np.isin(values, public) & (values != 0)]


def leaks(values: np.ndarray, message: Message) -> bool:
    """Whether a message holds such values: more of them than two random sets of numbers share by chance."""
    assert len(values) > 0
    floats = [t.flatten().numpy() for t in message.tensors().values() if t.dtype == torch.float32]
    found = int(np.isin(values, np.concatenate(floats)).sum()) if floats else 0
    return found > 0.02 * len(values)
