"""MAP's Figure 6: what becomes of the proxies of observed and missing classes while a network is trained."""

from collections.abc import Iterable

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from polyfed.config import Tree
from polyfed.papers.demos import Demo, demo
from polyfed.papers.demos.lone import (
    NetworkKeys,
    lone_learner,
    lone_training,
    mean_distance,
    mean_norm,
    proxies,
    rows_of,
)
from polyfed.parts.losses import cross_entropy

NORMS, GRADIENTS, DISTANCES = ("observed", "missing"), ("observed gradient", "missing gradient"), ("O-O", "O-M", "M-M")
TRACES = (*NORMS, *GRADIENTS, *DISTANCES)


class Keys(NetworkKeys):
    """How many of CIFAR-10's classes have samples, the network, and how it is trained."""

    tiny = {"limit": 8, "epochs": 2, "width": 0.05, "batch": 16}
    observed: int = Field(8, ge=2, le=8)
    network: str = "vgg11-bn"
    epochs: int = Field(50, ge=1)

    def trains(self) -> Iterable[tuple[Tree, float]]:
        """One network, with the observed classes."""
        yield lone_training(self.experiment("cifar10"), self.observed)


@demo("proxy-training", Keys)
def training(seed: int, keys: Keys) -> Demo:
    """Train on the first classes; before the first epoch and after each, look at the rows of the head."""
    _, client = lone_learner(seed, keys.experiment("cifar10"), keys.observed)
    traces = [_statistics(proxies(client), None, keys.observed)]
    for _ in range(keys.epochs):
        total = torch.zeros_like(proxies(client))
        client.fit(cross_entropy, epochs=1, go_on=True, correct=lambda grad, t=total: t.add_(rows_of(client, grad)))
        traces.append(_statistics(proxies(client), total, keys.observed))
    arrays = {name: np.array([one[name] for one in traces]) for name in TRACES}
    return Demo({"first epoch": _numbers(traces[1]), "last epoch": _numbers(traces[-1])}, arrays)


def _statistics(rows: Tensor, gradient: Tensor | None, observed: int) -> dict[str, float]:
    seen, unseen = rows[:observed], rows[observed:]
    made = dict(zip(NORMS, (mean_norm(seen), mean_norm(unseen)), strict=True))
    for name, part in zip(GRADIENTS, (slice(None, observed), slice(observed, None)), strict=True):
        made[name] = np.nan if gradient is None else mean_norm(gradient[part])
    between = (mean_distance(a, b) for a, b in ((seen, seen), (seen, unseen), (unseen, unseen)))
    return made | dict(zip(DISTANCES, between, strict=True))


def _numbers(one: dict[str, float]) -> dict[str, float]:
    return {**one, "M-M over O-O": one["M-M"] / one["O-O"]}
