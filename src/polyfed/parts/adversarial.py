"""Features of rare classes made out of those of others, by descending on the features themselves (FedAFA)."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

TINY = 1e-10


@dataclass(frozen=True)
class Towards:
    """How features are moved until a frozen classifier takes them for another class."""

    steps: int = 10
    size: float = 0.5  # length of a step, and of the noise at the start
    accept: float = 0.5  # least probability of the wanted class

    def __call__(
        self, classify: Callable[[Tensor], Tensor], h: Tensor, y: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Features that start at h and were moved towards the classes y, and which of them are accepted.

        No feature falls below 0, or below the smallest of h where some are negative.
        """
        floor = float(h.min().clamp(max=0)) if len(h) else 0.0
        moved = (h + self.size * _unit(noise)).clamp(min=floor)
        for _ in range(self.steps):
            moved.requires_grad_(True)
            with torch.enable_grad():
                (grad,) = torch.autograd.grad(F.cross_entropy(classify(moved), y, reduction="sum"), [moved])
            moved = (moved.detach() - self.size * _unit(grad)).clamp(min=floor)
        with torch.no_grad():
            sure = classify(moved).softmax(1).gather(1, y[:, None])[:, 0] >= self.accept
        return moved, sure


def _unit(rows: Tensor) -> Tensor:
    """Every row with length 1; a row of zeros stays one."""
    flat = rows.flatten(1)
    return (flat / (flat.norm(dim=1, keepdim=True) + TINY)).view_as(rows)


def wanted(y: Tensor, counts: Tensor, draw: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Which samples of a batch are to be made up for, and from which sample of it each is made.

    A sample of class y is chosen with the probability 1 - n_y / n_max. Its source is drawn with weights
    1 - (n_source - n_y)_+ / n_max, so that it is seldom of a class that has far more samples.
    """
    share = (counts[y] / counts.max()).double().cpu()
    chosen = torch.nonzero(torch.from_numpy(draw.random(len(y))) >= share).flatten()
    weights = 1 - (share[None, :] - share[chosen, None]).clamp(min=0)
    below = weights.cumsum(1) < torch.from_numpy(draw.random(len(chosen)))[:, None] * weights.sum(1, keepdim=True)
    return chosen.to(y.device), below.sum(1).to(y.device)
