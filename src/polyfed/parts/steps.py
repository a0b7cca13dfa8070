"""A step is a value that takes batches from a fit and moves the weights; `sgd` takes one."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from polyfed.parts.fit import Fit

Grads = tuple[Tensor, ...] | list[Tensor]


class Step(Protocol):
    """Anything that moves the weights of a fit by one step."""

    def __call__(self, fit: "Fit") -> None:
        """Take what batches it needs and step."""


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent with the momentum, decay and clipping of the fit, in place on the live values."""

    def __call__(self, fit: "Fit") -> None:
        batch = fit.next()
        if batch is not None:
            self.descend(fit, fit.gradient(batch))

    @staticmethod
    def descend(fit: "Fit", d: Grads) -> None:
        """w <- w - lr * d, where d is the clipped gradient with decay and momentum (as torch.optim.SGD)."""
        rule = fit.rule  # d is never changed in place: autograd may give one tensor for two parameters
        if rule.clip is not None:
            length = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(d)))
            d = torch._foreach_mul(d, (rule.clip / (length + 1e-6)).clamp(max=1.0))
        if rule.weight_decay:
            d = torch._foreach_add(d, fit.values, alpha=rule.weight_decay)
        if rule.momentum:
            torch._foreach_mul_(fit.velocity, rule.momentum)
            torch._foreach_add_(fit.velocity, d)
            d = torch._foreach_add(d, fit.velocity, alpha=rule.momentum) if rule.nesterov else fit.velocity
        torch._foreach_add_(fit.values, d, alpha=-fit.lr)
        fit.moved()


sgd = Sgd()
