"""A step is a value that takes batches from a fit and moves the weights; `sgd` takes one."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from polyfed.parts.fit import Fit


class Step(Protocol):
    """Anything that moves the weights of a fit by one step."""

    def __call__(self, fit: "Fit") -> None:
        """Take what batches it needs and step."""


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent with the momentum, decay and clipping of the fit, in place on the flat vector."""

    def __call__(self, fit: "Fit") -> None:
        batch = fit.next()
        if batch is not None:
            fit.gradient(batch)
            self.descend(fit)

    @staticmethod
    def descend(fit: "Fit") -> None:
        """w <- w - lr * d, where d is the clipped gradient with decay and momentum (as torch.optim.SGD)."""
        rule = fit.rule
        parts = [(fit.weights[a:b], fit.grad[a:b]) for a, b in fit.ranges]
        if rule.clip is not None:
            length = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for _, g in parts]))
            scale = (rule.clip / (length + 1e-6)).clamp(max=1.0)
            for _, g in parts:
                g.mul_(scale)
        for where, (w, g) in zip(fit.ranges, parts, strict=True):
            if rule.weight_decay:
                g.add_(w, alpha=rule.weight_decay)
            direction = g
            if rule.momentum:
                velocity = fit.velocity.get(where)
                velocity = g.clone() if velocity is None else velocity.mul_(rule.momentum).add_(g)
                fit.velocity[where] = velocity
                direction = g.add_(velocity, alpha=rule.momentum) if rule.nesterov else velocity
            w.add_(direction, alpha=-fit.lr)
        fit.moved()


sgd = Sgd()
