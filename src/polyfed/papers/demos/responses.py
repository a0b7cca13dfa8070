"""DistFL's Figures 6 and 8: how alike models of clients of several types answer to noise and to extracted inputs."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from pydantic import Field

from polyfed import rng
from polyfed.config import Tree, make_config, merge
from polyfed.engine.work import Job, World
from polyfed.methods.distfl import DistFL
from polyfed.methods.sites import Known, Server, Upload
from polyfed.papers.demos import SHORT, Demo, DemoKeys, demo
from polyfed.parts.dendrogram import partition

TYPES = 5


class Keys(DemoKeys):
    """The clients and their training, and with how many inputs and channels they are compared."""

    tiny = {"clients": 10, "limit": 8, "rounds": 1, "epochs": 1.0, "width": 0.1, "z": [4], "ratios": [0.5], "steps": 2}
    clients: int = Field(25, ge=TYPES)
    limit: int = Field(100, ge=1)  # training images of each class
    network: str = "cnn-bn"
    width: float = Field(1.0, gt=0)
    rounds: int = Field(1, ge=1)  # after which the uploads are compared
    epochs: float = Field(5.0, gt=0)
    lr: float = Field(0.01, gt=0)
    batch: int = Field(32, ge=1)
    z: list[int] = [200]
    ratios: list[float] = [0.5]
    steps: int = Field(100, ge=1)
    noise: bool = False  # whether noise that was not optimised is compared, too
    softness: float = Field(0.0, ge=0)

    def trains(self) -> Iterable[tuple[Tree, float]]:
        """The clients, and the inputs that are extracted, all of a setting in one batch."""
        yield merge(_experiment(self), {"rounds": self.rounds}), 1
        for z in self.z:
            train = {"epochs": SHORT, "min_steps": self.steps * len(self.ratios), "batch": z}
            each = {"split": {"clients": TYPES}, "rounds": 1, "train": train}
            yield merge(_experiment(self), each), 1 / TYPES


@demo("responses", Keys)
def responses(seed: int, keys: Keys) -> Demo:
    """For each number of inputs and share of channels: divergences between types over those within, and the matrix."""
    server, uploads = _trained(seed, keys)
    settings = {f"z={z}, {100 * ratio:g} %": (z, ratio, keys.steps) for z in keys.z for ratio in keys.ratios}
    if keys.noise:
        settings |= {"noise": (max(keys.z), 1.0, 0)}
    numbers, arrays = {}, {}
    for name, (z, ratio, steps) in settings.items():
        method = DistFL(z=z, channel_ratio=ratio, steps=steps, softness=keys.softness)
        found, sim = _compared(method, server, uploads)
        numbers[name] = {"contrast": _contrast(sim), "largest": float(sim.max()), "types found": float(_same(found))}
        arrays[name] = np.round(sim / max(sim.max(), 1e-12), 2)  # a stored cell has to stay small
    return Demo(numbers, arrays)


def _trained(seed: int, keys: Keys) -> tuple[Server, list[Upload]]:
    """Rounds of plain averaging, and the uploads of the last one."""
    world = World(make_config(_experiment(keys), {"seed": seed}))
    method, clients = world.method, world.federation.clients
    known = [Known(k, one.name, len(one.train), tuple(one.counts.tolist())) for k, one in enumerate(clients)]
    server = Server(world.resident, world.task, known, "uniform", method.shared)
    method.start(server)
    uploads: list[Upload] = []
    for number in range(1, keys.rounds + 1):
        if uploads:
            method.merge(server, uploads)
        server.begin(number)
        uploads = [_worked(world, server, number, k) for k in range(len(clients))]
    return server, uploads


def _worked(world: World, server: Server, number: int, k: int) -> Upload:
    down = world.method.send(server, k)
    client = world.client(Job("train", k, number, down), None)
    with rng.seeded(world.task.seed, "work", number, k):
        return Upload(k, client.n, world.method.train(client), down)


def _experiment(keys: Keys) -> Tree:
    return {
        "data": {"name": "cifar10", "limit": keys.limit},
        "split": {"partition": "groups", "groups": TYPES, "clients": keys.clients, "test": "mirror"},
        "model": {"name": keys.network, "width": keys.width, "bias": True},  # a VGG would have none, as in MAP
        "method": {"name": "distfl", "warmup_rounds": keys.rounds + 1},
        "rounds": keys.rounds + 2,
        "train": {"lr": keys.lr, "momentum": 0.9, "batch": keys.batch, "epochs": keys.epochs},
    }


def _compared(method: DistFL, server: Server, uploads: Sequence[Upload]) -> tuple[list[int], np.ndarray]:
    """The clusters that would be made, and the divergences they would be made from."""
    server.state.inputs = method.extract(server, uploads)
    _, answers = method.usable(server, uploads)
    groups, sim = partition(torch.stack(answers), method.threshold, method.min_ratio, method.linkage)
    return list(groups.labels), sim.numpy()


def _types(clients: int) -> np.ndarray:
    return np.concatenate([np.full(len(some), t) for t, some in enumerate(np.array_split(np.arange(clients), TYPES))])


def _contrast(sim: np.ndarray) -> float:
    """The mean divergence between clients of different types over that between clients of the same type."""
    same = np.equal.outer(_types(len(sim)), _types(len(sim)))
    others = ~np.eye(len(sim), dtype=bool)
    return float(sim[~same].mean() / max(sim[same & others].mean(), 1e-12))


def _same(labels: Sequence[int]) -> bool:
    found, truth = np.array(labels), _types(len(labels))
    return bool((np.equal.outer(found, found) == np.equal.outer(truth, truth)).all())
