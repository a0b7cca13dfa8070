"""A step is a value that takes batches from a fit and moves the weights.

`sgd` and `adam` are steps; `maml(alpha)`, `moreau(k, lam, lr)` and `private(clip, noise, draw)` make one. All descend
at the rate of the fit.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from torch.optim import adam as torch_adam

from polyfed.errors import UsageError
from polyfed.params import Params, Slice
from polyfed.parts.per_example import clipped_sum

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
        """Take one batch and descend on its gradient."""
        batch = fit.next()
        if batch is not None:
            self.descend(fit, fit.gradient(batch))

    @staticmethod
    def descend(fit: "Fit", d: Grads) -> None:
        """w <- w - lr * d, where d is the clipped gradient with decay and momentum (as torch.optim.SGD)."""
        rule = fit.rule  # d is never changed in place: autograd may give one tensor for two parameters
        if rule.clip is not None:
            d = _clipped(d, rule.clip)
        if rule.weight_decay:
            d = torch._foreach_add(d, fit.values, alpha=rule.weight_decay)
        if rule.momentum:
            torch._foreach_mul_(fit.velocity, rule.momentum)
            torch._foreach_add_(fit.velocity, d)
            d = torch._foreach_add(d, fit.velocity, alpha=rule.momentum) if rule.nesterov else fit.velocity
        torch._foreach_add_(fit.values, d, alpha=-fit.lr)
        fit.moved()


@dataclass(frozen=True)
class Moments:
    """What Adam keeps of each tensor: the first and second moments of its gradient, and the steps it has taken."""

    first: list[Tensor]
    second: list[Tensor]
    steps: list[Tensor]

    @classmethod
    def of(cls, values: list[Tensor]) -> "Moments":
        """Those of tensors that no step has moved."""
        first, second = ([torch.zeros_like(v) for v in values] for _ in range(2))
        return cls(first, second, [v.new_zeros(()) for v in values])


def adam_step(
    values: list[Tensor],
    gradients: list[Tensor],
    moments: Moments,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> None:
    """One step of torch.optim.Adam in place, whose class imports torch's compiler when the first one is made."""
    torch_adam.adam(
        values,
        gradients,
        moments.first,
        moments.second,
        [],
        moments.steps,
        foreach=True,
        amsgrad=False,
        beta1=betas[0],
        beta2=betas[1],
        lr=lr,
        weight_decay=weight_decay,
        eps=eps,
        maximize=False,
    )


@dataclass(frozen=True)
class Adam:
    """Adam as torch.optim.Adam has it, with the decay and clipping of the fit; its moments go on and end with the fit.

    Momentum belongs to `sgd`: here `betas` take its place.
    """

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __call__(self, fit: "Fit") -> None:
        """Take one batch and descend along its gradient's first moment over the root of its second."""
        batch = fit.next()
        if batch is None:
            return
        d = list(fit.gradient(batch))
        moments = Moments(fit.kept("first moment"), fit.kept("second moment"), fit.kept("steps", scalar=True))
        clipped = d if fit.rule.clip is None else list(_clipped(d, fit.rule.clip))
        adam_step(fit.values, clipped, moments, fit.lr, self.betas, self.eps, fit.rule.weight_decay)
        fit.moved()


@dataclass(frozen=True)
class Maml:
    """First-order MAML (Per-FedAvg): w' = w - alpha grad(w) on one batch, then w descends along grad(w') on the next.

    Where the client has a single batch, it is both.
    """

    alpha: float

    def __post_init__(self) -> None:
        _numbers("maml(alpha)", self.alpha)

    def __call__(self, fit: "Fit") -> None:
        """Take two batches and one step."""
        first = fit.next()
        if first is None:
            return
        second = fit.next() or first
        ahead = fit.weights - self.alpha * fit.flat_gradient(first)
        sgd.descend(fit, fit.gradient(second, at=ahead))


@dataclass(frozen=True)
class Moreau:
    """pFedMe: theta descends k times on loss + (lam / 2) |theta - w|^2, then w descends along lam (w - theta).

    theta starts from w in every step; `personal`, where given, holds the model theta after each of them.
    """

    k: int = 5
    lam: float = 15.0
    lr: float = 0.01
    personal: Params | None = None

    def __post_init__(self) -> None:
        _numbers("moreau(k, lam, lr)", self.k, self.lam, self.lr)

    def __call__(self, fit: "Fit") -> None:
        """Take one batch, k inner steps on it, and one step."""
        batch = fit.next()
        if batch is None:
            return
        w = [value.clone() for value in fit.values]
        for _ in range(self.k):
            pull = torch._foreach_sub(fit.values, w)
            d = torch._foreach_add(list(fit.gradient(batch)), pull, alpha=self.lam)
            torch._foreach_add_(fit.values, d, alpha=-self.lr)
        if self.personal is not None:
            self.personal.set(fit.resident.params)
        away = torch._foreach_sub(w, fit.values)
        torch._foreach_copy_(fit.values, w)
        sgd.descend(fit, torch._foreach_mul(away, self.lam))


@dataclass(frozen=True)
class Private:
    """DP-SGD (Abadi et al. 2016): g = (sum_i g_i min(1, C / |g_i|) + N(0, (sigma C)^2)) / (q n), then as `sgd`.

    The norm |g_i| is over all trained weights together. Corrections, momentum and decay act on g, which is private
    already. The guarantee needs Poisson batches: an empty one is a step of noise.
    """

    clip: float  # C
    noise: float  # sigma
    draw: Callable[[Tensor], Tensor]  # standard normal noise of a tensor's shape

    def __post_init__(self) -> None:
        _numbers("private(clip, noise, draw)", self.clip, self.noise)

    def __call__(self, fit: "Fit") -> None:
        """Take one batch and descend on its private gradient."""
        batch = fit.next()
        if batch is None:
            raise UsageError("a private step skips no batch, and batch normalisation would: use a model without it")
        found = clipped_sum(fit, batch, self.clip)
        expected = min(fit.stream.size, len(fit.stream.samples))  # q n
        if self.noise:
            noise = [self.draw(value) for value in found.sums]
            torch._foreach_add_(found.sums, noise, alpha=self.noise * self.clip)
        fit.tally.samples += len(batch)
        fit.last_loss = found.losses.mean() if len(batch) else torch.zeros(())  # nobody's loss: a step of noise
        sgd.descend(fit, fit.corrected(torch._foreach_div(found.sums, expected)))


@dataclass(frozen=True)
class Within:
    """`sgd`, after which a slice of the live model is brought back to a distance from a centre, if it is farther."""

    centre: Params
    part: Slice
    radius: float

    def __call__(self, fit: "Fit") -> None:
        """Take one step, then shorten the way from the centre."""
        sgd(fit)
        live, (middle, _) = fit.resident.params, self.centre.get(self.part)
        away = live.get(self.part)[0] - middle
        length = float(torch.linalg.vector_norm(away))
        if length > self.radius:
            live.put(self.part, middle + away * (self.radius / length))


sgd, adam = Sgd(), Adam()
maml, moreau, private = Maml, Moreau, Private


def _clipped(d: Grads, longest: float) -> Grads:
    length = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(d)))
    return torch._foreach_mul(d, (longest / (length + 1e-6)).clamp(max=1.0))


def _numbers(call: str, *given: float) -> None:
    """Refuse `step=maml`: what a fit calls must be the step that `maml(alpha)` makes."""
    if not all(isinstance(each, int | float) for each in given):
        raise UsageError(f"a step is made by {call} of numbers")


def momentum_reach(steps: int, momentum: float, nesterov: bool = False, pull: float = 0.0) -> float:
    """How many plain steps so many with momentum are worth under a constant gradient: sum_j (1 - rho^j) / (1 - rho).

    FedNova calls it a_k (Wang et al. 2020). With Nesterov's momentum every step is one power ahead. A proximal pull of
    `pull` = lr mu makes all of them shorter: without momentum a <- (1 - pull) a + 1.
    """
    if pull:
        far = velocity = 0.0
        for _ in range(steps):
            gradient = 1 - pull * far
            velocity = momentum * velocity + gradient
            far += gradient + momentum * velocity if nesterov else velocity
        return far
    ahead = momentum if nesterov else 1.0
    return (steps - ahead * momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
