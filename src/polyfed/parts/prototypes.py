"""Prototypes: the mean features of each class, and the module that answers with the class of the nearest one."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from polyfed.models.base import Ensemble, Net


def class_features(rows: Tensor, y: Tensor, classes: Tensor) -> Tensor:
    """The mean of the rows of features of each of these classes."""
    return torch.stack([rows[y == c].mean(0) for c in classes.tolist()])


def merged(sent: Sequence[tuple[Tensor, Tensor, Tensor]], classes: int) -> tuple[Tensor, Tensor]:
    """The classes that somebody sent, and the weighted mean of their rows; each sends class ids, rows and weights."""
    width = sent[0][1].shape[1]
    total, weight = torch.zeros(classes, width, dtype=torch.float64), torch.zeros(classes, dtype=torch.float64)
    for ids, rows, each in sent:
        ids, each = ids.cpu(), each.cpu().double()
        total.index_add_(0, ids, rows.cpu() * each[:, None])
        weight.index_add_(0, ids, each)
    found = weight.nonzero().flatten()
    return found, (total[found] / weight[found, None]).float()


def table(rows: Tensor, ids: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """A row for every class, zero where there is none, and which there are."""
    known = torch.zeros(classes, dtype=torch.bool, device=rows.device).index_fill(0, ids, True)
    return rows.new_zeros(classes, rows.shape[1]).index_copy(0, ids, rows), known


class Nearest(Ensemble):
    """A network that answers by its features: the nearer the prototype of a class, the larger the logit."""

    def __init__(self, net: Net, prototypes: Tensor, known: Tensor):
        super().__init__()
        self.net = net
        self.register_buffer("prototypes", prototypes)
        self.register_buffer("known", known)

    def forward(self, x: Tensor) -> Tensor:
        """Minus the squared distance from each prototype; a class without one is no answer."""
        apart = self.net.features(x)[:, None] - self.get_buffer("prototypes")
        return (-apart.square().sum(2)).masked_fill(~self.get_buffer("known"), float("-inf"))

    def plan(self) -> dict[str, Any]:
        """What `planned` needs to build it again."""
        return {"shape": list(self.get_buffer("prototypes").shape)}

    @classmethod
    def planned(cls, plan: dict[str, Any], make: Callable[[], Net]) -> "Nearest":
        """Build it again from a plan; its values are loaded afterwards."""
        return cls(make(), torch.zeros(plan["shape"]), torch.zeros(plan["shape"][0], dtype=torch.bool))
