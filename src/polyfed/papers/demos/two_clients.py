"""MAP's Figure 8: two clients, five classes each; what a round does to features, proxies and local accuracy."""

from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field

from polyfed import rng
from polyfed.config import Tree, make_config
from polyfed.engine.work import Job, World
from polyfed.methods.sites import Client, Known, Server, Upload
from polyfed.papers.demos import Demo, DemoKeys, demo
from polyfed.papers.demos.lone import mean_norm, proxies, share_right, some_features
from polyfed.papers.demos.planar import WITHOUT

CLIENTS, OBSERVED = 2, 5
STAGES = BEGIN, LOCAL, MERGED = "begin", "local", "merged"  # when features are kept: at download, as sent, averaged


class Keys(DemoKeys):
    """The method, and how long the two clients train."""

    tiny = {"limit": 10, "rounds": 2, "epochs": 1.0, "drawn": 1, "shown": 4}
    algorithm: Literal["fedavg", "map"] = "fedavg"
    limit: int | None = Field(None, ge=1)
    rounds: int = Field(10, ge=2)
    epochs: float = Field(5.0, gt=0)
    lr: float = Field(0.01, gt=0)
    momentum: float = Field(0.9, ge=0, lt=1)
    batch: int = Field(64, ge=1)
    drawn: int = Field(5, ge=1)  # the round whose features are drawn
    shown: int = Field(50, ge=1)  # samples of each class in the picture

    def trains(self) -> Iterable[tuple[Tree, float]]:
        """The federation of two."""
        yield _experiment(self), 1


class TwoClients:
    """A server and two clients, and what is seen of the first one."""

    def __init__(self, seed: int, keys: Keys):
        self.keys, self.world = keys, World(make_config(_experiment(keys), {"seed": seed}))
        self.method, data = self.world.method, self.world.federation
        known = [Known(k, one.name, len(one.train), tuple(one.counts.tolist())) for k, one in enumerate(data.clients)]
        self.server = Server(self.world.resident, self.world.task, known, "uniform", self.method.shared)
        self.method.start(self.server)
        self.memories: dict[int, bytes] = {}
        self.accuracy: list[float] = []  # of the first client: downloaded, personal, downloaded, personal, ...
        self.seen: dict[str, np.ndarray] = {}

    def round(self, number: int) -> None:
        """One round; of the first client accuracies are measured, and in one round its features are kept."""
        self.server.begin(number)
        uploads = [self._work(number, k) for k in range(CLIENTS)]
        self.method.merge(self.server, uploads)
        if number == self.keys.drawn:
            client = self.world.client(Job("evaluate", 0, number, self.method.send(self.server, 0)), self.memories[0])
            self._look(MERGED, client, everybody=True)

    def _work(self, number: int, k: int) -> Upload:
        down = self.method.send(self.server, k)
        client = self.world.client(Job("train", k, number, down), self.memories.get(k))
        if k == 0:
            self._measure(client, client.model)
            self._look_if_drawn(BEGIN, client)
        with rng.seeded(self.world.task.seed, "work", number, k):
            upload = Upload(k, client.n, self.method.train(client), down)
        self.memories[k] = client.memory.encode()
        if k == 0:
            self._measure(client, self.method.predictor(client))
            client.load(self.server.model_of(upload))  # what is sent: of MAP, the model after its first stage
            self._look_if_drawn(LOCAL, client)
        return upload

    def _measure(self, client: Client, predictor: Any) -> None:
        test = self.world.federation.clients[client.id].test
        self.accuracy.append(share_right(predictor, test, self.world.task.classes))

    def _look_if_drawn(self, stage: str, client: Client) -> None:
        if client.round == self.keys.drawn:
            self._look(stage, client)

    def _look(self, stage: str, client: Client, everybody: bool = False) -> None:
        data = self.world.federation
        features, labels = some_features(
            client.model, data.global_test if everybody else data.clients[0].test, self.keys.shown
        )
        self.seen |= {f"{stage} features": features, f"{stage} labels": labels}
        self.seen[f"{stage} proxies"] = proxies(client).numpy()


def _experiment(keys: Keys) -> Tree:
    return {
        "data": {"name": "mnist", "size": 32, "limit": keys.limit},
        "split": {"partition": "groups", "groups": CLIENTS, "clients": CLIENTS, "test": "mirror"},
        "model": {"name": WITHOUT},
        "method": keys.algorithm,
        "rounds": keys.rounds,
        "train": {"lr": keys.lr, "momentum": keys.momentum, "batch": keys.batch, "epochs": keys.epochs},
    }


@demo("two-clients", Keys)
def two_clients(seed: int, keys: Keys) -> Demo:
    """Ten rounds of a method; by how much a client's accuracy falls whenever it downloads the new model."""
    both = TwoClients(seed, keys)
    for number in range(1, keys.rounds + 1):
        both.round(number)
    accuracy = np.array(both.accuracy)
    downloaded, personal = accuracy[::2], accuracy[1::2]
    local = torch.from_numpy(both.seen[f"{LOCAL} proxies"])
    numbers = {
        "drop at download": float(np.mean(personal[:-1] - downloaded[1:])),
        "personal accuracy": float(personal[-1]),
        "downloaded accuracy": float(downloaded[-1]),
        "missing over observed norm": mean_norm(local[OBSERVED:]) / mean_norm(local[:OBSERVED]),
    }
    return Demo({"all": numbers}, {**both.seen, "accuracy": accuracy})
