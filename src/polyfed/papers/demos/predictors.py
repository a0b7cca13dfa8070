"""How far the heads of two clients move apart on one pre-trained body (FedCRC, Figure 1)."""

from collections.abc import Iterable

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from polyfed.config import Tree, make_config, merge
from polyfed.data import dirichlet, partition
from polyfed.engine.work import Job, World
from polyfed.models.plain import Conv4
from polyfed.papers.demos import SHORT, Demo, ExperimentKeys, demo
from polyfed.params import Params, head
from polyfed.parts.losses import cross_entropy

USED = (Conv4, dirichlet, partition)  # their sources count for what is stored
SETTINGS: dict[str, Tree] = {
    "IID": {"partition": "iid"},
    "Non-IID": {"partition": "dirichlet", "variant": "client", "alpha": 0.1},
}


class Keys(ExperimentKeys):
    """The experiment, how long everybody's model was trained on all data before, and how long the heads train."""

    tiny = {
        "experiment": {"data": {"limit": 30}, "model": {"width": 0.1}, "split": {"clients": 4}, "train": {"batch": 16}},
        "before": 2,
        "updates": 4,
        "every": 2,
    }
    before: int = Field(500, ge=1)
    updates: int = Field(500, ge=1)
    every: int = Field(10, ge=1)

    def trains(self) -> Iterable[tuple[Tree, float]]:
        """The model that all begin with; heads cost next to nothing."""
        train = {"epochs": SHORT, "min_steps": self.before}
        together = {"split": {"partition": "iid", "clients": 1}, "rounds": 1, "train": train}
        yield merge(self.experiment, together), 1


@demo("predictors", Keys)
def predictors(seed: int, keys: Keys) -> Demo:
    """The distance of two clients' heads after every few updates, where their data are alike and where they are not."""
    together = _world(keys, seed, {"partition": "iid", "clients": 1})
    everybody = together.client(Job("train", 0, 1), None)
    everybody.fit(cross_entropy, steps=keys.before)
    start = everybody.live.copy()
    numbers, arrays = {}, {}
    for name, split in SETTINGS.items():
        world = _world(keys, seed, split)
        heads = [_heads(world, client, start, keys) for client in (0, 1)]
        apart = [float((a - b).norm()) for a, b in zip(*heads, strict=True)]
        numbers[name] = {"distance": apart[-1]}
        arrays[name] = np.array(apart)
    arrays["updates"] = np.arange(0, keys.updates + 1, keys.every)
    return Demo(numbers, arrays)


def _world(keys: Keys, seed: int, split: Tree) -> World:
    return World(make_config(keys.experiment, {"split": split, "seed": seed}))


def _heads(world: World, id: int, start: Params, keys: Keys) -> list[Tensor]:
    """A client's head at the start and after every few updates; the body stays as it is."""
    client = world.client(Job("train", id, 1), None)
    client.load(start)
    rows = client.features("head")
    made = [_copy(client.live)]
    for turn in range(keys.updates // keys.every):
        client.fit(cross_entropy, on=rows, steps=keys.every, train=head, go_on=turn > 0)
        made.append(_copy(client.live))
    return made


def _copy(live: Params) -> Tensor:
    return torch.clone(live.get(head)[0])
