"""One model that is trained in one place: the only client of a federation, with the one training loop."""

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from polyfed.config import Tree, make_config, merge
from polyfed.data.samples import Samples
from polyfed.engine.work import Job, World
from polyfed.measure.counts import confusion
from polyfed.measure.metrics import accuracy
from polyfed.methods.base import Client
from polyfed.models.base import Net
from polyfed.papers.demos import DemoKeys
from polyfed.params import head
from polyfed.parts.resident import in_batches

BATCH = 128  # samples that are measured at once
EVERYTHING: Tree = {"split": {"partition": "iid", "clients": 1, "test": "none"}, "method": "fedavg"}
CLASSES = {"mnist": 10, "cifar10": 10, "cifar100": 100}


class NetworkKeys(DemoKeys):
    """A network for pictures, on how many images of a class it is trained, and how."""

    network: str
    width: float = Field(1.0, gt=0)
    limit: int | None = Field(None, ge=1)
    epochs: float = Field(50.0, gt=0)
    lr: float = Field(0.03, gt=0)
    momentum: float = Field(0.9, ge=0, lt=1)
    batch: int = Field(64, ge=1)
    augment: str = "crop+flip"

    def experiment(self, data: str) -> Tree:
        """Its training on these data."""
        return {
            "data": {"name": data, "limit": self.limit, "augment": self.augment},
            "model": {"name": self.network, "width": self.width},
            "train": {"lr": self.lr, "momentum": self.momentum, "batch": self.batch, "epochs": self.epochs},
        }


def lone_training(keys: Tree, classes: int) -> tuple[Tree, float]:
    """What a lone learner of so many classes trains: the share of all data that has them."""
    return merge(merge(EVERYTHING, keys), {"rounds": 1}), classes / CLASSES[keys["data"]["name"]]


def lone_learner(seed: int, keys: Tree, classes: int) -> tuple[World, Client]:
    """A client with all training samples of the first so many classes, and the world it lives in."""
    world = World(make_config(merge(EVERYTHING, keys), {"seed": seed}))
    client = world.client(Job("train", 0, 1), None)
    client.data = of_first(client.data, classes)
    return world, client


def of_first(samples: Samples, classes: int) -> Samples:
    """The samples of the first so many classes."""
    return samples.only(samples.y < classes)


def share_right(model: Net, samples: Samples, classes: int) -> float:
    """The accuracy of a model, in per cent."""
    return 100 * accuracy(confusion(model, samples, classes, BATCH).numpy())


def proxies(client: Client) -> Tensor:
    """The rows of the head, one for each class."""
    return rows_of(client, client.live.weights).clone()


def rows_of(client: Client, flat: Tensor) -> Tensor:
    """The part of a flat vector of weights, or of their gradients, that belongs to the head: a row for each class."""
    ((start, stop),) = client.resident.layout.ranges(head)
    return flat[start:stop].view(client.task.classes, -1)


def some_features(model: Net, samples: Samples, each: int) -> tuple[np.ndarray, np.ndarray]:
    """Features of the first so many samples of each class, and their labels."""
    y = samples.y
    chosen = torch.cat([torch.nonzero(y == c).flatten()[:each] for c in y.unique().tolist()])
    some = Samples(samples.pool, samples.rows[chosen])
    model.eval()
    with torch.inference_mode():
        return in_batches(model.features, some, BATCH).numpy(), some.y.numpy()


def mean_norm(rows: Tensor) -> float:
    """The mean length of some rows."""
    return float(rows.norm(dim=1).mean())


def mean_distance(some: Tensor, others: Tensor) -> float:
    """The mean distance between the rows of two sets, a row with itself included (MAP, Section 5.1.1)."""
    return float(torch.cdist(some.double(), others.double(), compute_mode="donot_use_mm_for_euclid_dist").mean())
