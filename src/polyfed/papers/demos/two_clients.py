"""MAP's Figure 8: two clients, five classes each; what a round does to features, proxies and local accuracy."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field

from polyfed import rng
from polyfed.config import make_config
from polyfed.engine.work import Job, World
from polyfed.methods.sites import Client, Known, Server, Upload
from polyfed.papers.demos import Demo, DemoKeys, Drawn, Shown, demo
from polyfed.papers.demos.lone import mean_norm, proxies, share_right, some_features
from polyfed.papers.demos.planar import WITHOUT
from polyfed.papers.demos.points import draw_plane, rows_of_plane

CLIENTS, OBSERVED = 2, 5
STAGES = {"begin": "downloaded", "local": "trained on classes 0 to 4", "merged": "aggregated"}


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
            self._look("merged", client, everybody=True)

    def _work(self, number: int, k: int) -> Upload:
        down = self.method.send(self.server, k)
        client = self.world.client(Job("train", k, number, down), self.memories.get(k))
        if k == 0:
            self._measure(client, client.model)
            self._look_if_drawn("begin", client)
        with rng.seeded(self.world.task.seed, "work", number, k):
            upload = Upload(k, client.n, self.method.train(client), down)
        self.memories[k] = client.memory.encode()
        if k == 0:
            self._measure(client, self.method.predictor(client))
            client.load(self.server.model_of(upload))  # what is sent: of MAP, the model after its first stage
            self._look_if_drawn("local", client)
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


def _experiment(keys: Keys) -> dict[str, Any]:
    return {
        "data": {"name": "mnist", "size": 32, "limit": keys.limit},
        "split": {"partition": "groups", "groups": CLIENTS, "clients": CLIENTS, "test": "mirror"},
        "model": {"name": WITHOUT},
        "method": keys.algorithm,
        "rounds": keys.rounds,
        "train": {"lr": keys.lr, "momentum": keys.momentum, "batch": keys.batch, "epochs": keys.epochs},
    }


@demo("two-clients", Keys, uses=("polyfed.methods.fedavg", "polyfed.methods.map"))
def two_clients(seed: int, keys: Keys) -> Demo:
    """Ten rounds of a method; by how much a client's accuracy falls whenever it downloads the new model."""
    both = TwoClients(seed, keys)
    for number in range(1, keys.rounds + 1):
        both.round(number)
    accuracy = np.array(both.accuracy)
    downloaded, personal = accuracy[::2], accuracy[1::2]
    local = torch.from_numpy(both.seen["local proxies"])
    numbers = {
        "drop at download": float(np.mean(personal[:-1] - downloaded[1:])),
        "personal accuracy": float(personal[-1]),
        "downloaded accuracy": float(downloaded[-1]),
        "missing over observed norm": mean_norm(local[OBSERVED:]) / mean_norm(local[:OBSERVED]),
    }
    return Demo({"all": numbers}, {**both.seen, "accuracy": accuracy})


@two_clients.drawing
def draw(shown: Sequence[Shown]) -> Drawn:
    """A row for each method: features at download, after local training, after averaging; accuracy by round."""
    from matplotlib import pyplot

    from polyfed.report.print import STYLE

    first = [one for one in shown if one.seed == min(each.seed for each in shown)]
    rows: list[Mapping[str, Any]] = []
    with pyplot.rc_context(STYLE):
        size = (2.6 * (len(STAGES) + 1), 2.7 * len(first))
        figure, axes = pyplot.subplots(len(first), len(STAGES) + 1, figsize=size, squeeze=False, layout="constrained")
        for one, across in zip(first, axes, strict=True):
            for spare, (stage, told) in zip(across, STAGES.items(), strict=False):
                plane = {part: one.found.arrays[f"{stage} {part}"] for part in ("features", "labels", "proxies")}
                observed = OBSERVED if stage != "merged" else 2 * OBSERVED
                draw_plane(spare, plane, observed, f"{one.panel}, {told}")
                rows += rows_of_plane(f"{one.panel}, {told}", plane, observed)
            _draw_accuracy(across[-1], one)
            rows += _rows_of_accuracy(one)
    return Drawn(figure, rows)


def _draw_accuracy(axes: Any, one: Shown) -> None:
    """Solid while a client trains, dotted from its personal model to what it downloads next."""
    accuracy = one.found.arrays["accuracy"]
    for at in range(len(accuracy) - 1):
        trains = at % 2 == 0
        places = (at // 2 + 1, at // 2 + 1.6) if trains else (at // 2 + 1.6, at // 2 + 2)
        axes.plot(places, accuracy[at : at + 2], "-" if trains else ":", color="black", marker="o", markersize=2.5)
    axes.set(title=f"{one.panel}: solid, local training", xlabel="round", ylabel="local accuracy, %", ylim=(0, 101))


def _rows_of_accuracy(one: Shown) -> list[dict[str, Any]]:
    return [
        {
            "panel": one.panel,
            "what": "accuracy, personal" if at % 2 else "accuracy, downloaded",
            "class": "",
            "observed": "",
            "x": at // 2 + 1,
            "y": value,
        }
        for at, value in enumerate(one.found.arrays["accuracy"])
    ]
