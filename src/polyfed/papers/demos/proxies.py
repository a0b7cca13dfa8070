"""MAP's Figure 5: features and proxies in a plane where some of the ten classes have no samples."""

from collections.abc import Iterable

import torch
from pydantic import Field

from polyfed.config import Tree
from polyfed.papers.demos import Demo, DemoKeys, demo
from polyfed.papers.demos.lone import lone_learner, lone_training, mean_norm, of_first, proxies, some_features
from polyfed.papers.demos.planar import WITH_RELU, WITHOUT
from polyfed.parts.losses import cross_entropy


class Keys(DemoKeys):
    """How many classes have samples, whether a ReLU comes before the head, and how the network is trained."""

    tiny = {"limit": 20, "epochs": 2.0, "shown": 5}
    observed: int = Field(8, ge=1, le=10)
    relu: bool = True
    limit: int | None = Field(None, ge=1)
    epochs: float = Field(50.0, gt=0)
    lr: float = Field(0.01, gt=0)
    momentum: float = Field(0.9, ge=0, lt=1)
    batch: int = Field(64, ge=1)
    shown: int = Field(50, ge=1)  # samples of each class in the picture

    @property
    def experiment(self) -> Tree:
        """Its training."""
        return {
            "data": {"name": "mnist", "size": 32, "limit": self.limit},
            "model": {"name": WITH_RELU if self.relu else WITHOUT},
            "train": {"lr": self.lr, "momentum": self.momentum, "batch": self.batch, "epochs": self.epochs},
        }

    def trains(self) -> Iterable[tuple[Tree, float]]:
        """One network, with the observed classes."""
        yield lone_training(self.experiment, self.observed)


@demo("proxies", Keys)
def plane(seed: int, keys: Keys) -> Demo:
    """Train LeNet with two features on the first classes of MNIST, then look at its features and proxies."""
    world, client = lone_learner(seed, keys.experiment, keys.observed)
    client.fit(cross_entropy)
    test = of_first(world.federation.global_test, keys.observed)
    features, labels = some_features(client.model, test, keys.shown)
    rows, centre = proxies(client), torch.from_numpy(features).mean(0)
    towards = torch.cosine_similarity(rows, centre[None], dim=1)
    held = torch.arange(len(rows)) < keys.observed
    parts = {"observed": held, "missing": ~held}
    numbers = {
        name: {"norm": mean_norm(rows[part]), "cosine to the features": float(towards[part].mean())}
        for name, part in parts.items()
        if part.any()
    }
    numbers["observed"]["share of features at zero"] = float((features == 0).all(axis=1).mean())
    counted = torch.tensor(float(keys.observed))
    return Demo(numbers, {"features": features, "labels": labels, "proxies": rows.numpy(), "observed": counted.numpy()})
