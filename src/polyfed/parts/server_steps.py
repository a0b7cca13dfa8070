"""How a server moves when it takes the mean change of its clients for a gradient, g = w - mean (FedOpt, FedNova).

All write the new weights where the mean was. What a server remembers is given and given back, never changed in place.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Adapting = Literal["adam", "yogi", "adagrad"]


def momentum_step(before: Tensor, mean: Tensor, velocity: Tensor | None, lr: float, momentum: float) -> Tensor | None:
    """v <- momentum v + lr g, w <- w - v; gives v, None where nothing needs to be remembered.

    It is written so that lr 1 without momentum leaves the mean as it is, bit for bit.
    """
    if not momentum:
        mean.lerp_(before, 1 - lr)
        return None
    pushed = torch.zeros_like(before) if velocity is None else velocity * momentum
    moved = torch.add(pushed, before - mean, alpha=lr)
    mean.lerp_(before, 1 - lr).sub_(pushed)
    return moved


@dataclass(frozen=True)
class AdaptiveStep:
    """Reddi et al. 2021, algorithm 2: w <- w - lr m / (sqrt(v) + tau), where m and v are moments of g."""

    kind: Adapting
    lr: float
    betas: tuple[float, float]
    tau: float

    def begin(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The moments before the first step: m = 0 and v = tau^2."""
        return torch.zeros_like(weights), torch.full_like(weights, self.tau**2)

    def __call__(self, before: Tensor, mean: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Take a step; gives the new moments."""
        g = before - mean
        m = torch.lerp(g, m, self.betas[0])
        v = self._second(v, g.square())
        torch.addcdiv(before, m, v.sqrt().add_(self.tau), value=-self.lr, out=mean)
        return m, v

    def _second(self, v: Tensor, square: Tensor) -> Tensor:
        if self.kind == "adagrad":
            return v + square
        if self.kind == "yogi":
            return v - (1 - self.betas[1]) * square * torch.sign(v - square)
        return torch.lerp(square, v, self.betas[1])
