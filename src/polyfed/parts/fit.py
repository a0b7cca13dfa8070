"""The one training loop: batches x step."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from polyfed.config import Train
from polyfed.data.samples import Samples
from polyfed.params import Slice
from polyfed.parts.resident import Batch, Resident
from polyfed.parts.steps import Grads, Step

Loss = Callable[[Batch], Tensor]
Augment = Callable[[Tensor], Tensor]
Correct = Callable[[Tensor], None]
Draw = Callable[[int], np.random.Generator]
Order = Callable[[Samples, np.random.Generator], Tensor]
GATHER = 1 << 21  # bytes copied out of the pool at a time: few enough to stay in the cache, many enough to be cheap


def shuffled(samples: Samples, rng: np.random.Generator) -> Tensor:
    """Every sample once, in random order."""
    return torch.from_numpy(rng.permutation(len(samples)))


def balanced(samples: Samples, rng: np.random.Generator) -> Tensor:
    """As many samples as there are, drawn so that every class present is equally likely."""
    y = samples.y.cpu().numpy()
    counts = np.bincount(y)
    return torch.from_numpy(rng.choice(len(y), size=len(y), p=(1 / counts[y]) / np.count_nonzero(counts)))


@dataclass
class Tally:
    """What a client's fits did, for its report."""

    steps: int = 0
    samples: int = 0
    skipped_batches: int = 0
    eval_mode_steps: int = 0
    travelled: float = 0.0
    losses: list[Tensor] = field(default_factory=list)  # of every step; read when all are taken, not in between

    def numbers(self) -> dict[str, float]:
        """As plain numbers; the loss is the mean over steps."""
        return {
            "loss": math.fsum(map(float, self.losses)) / len(self.losses) if self.losses else math.nan,
            "steps": self.steps,
            "samples": self.samples,
            "skipped_batches": self.skipped_batches,
            "eval_mode_steps": self.eval_mode_steps,
        }


class Stream:
    """An endless run of batches over samples: a fresh keyed order each epoch, gathered in blocks, then sliced."""

    def __init__(self, samples: Samples, size: int, order: Order, draw: Draw, augment: Augment | None):
        self.samples, self.size, self.order, self.draw, self.augment = samples, size, order, draw, augment
        self.per_epoch = math.ceil(len(samples) / size)
        self._batches = self._run()

    def __next__(self) -> tuple[Tensor, Tensor, Tensor]:
        return next(self._batches)

    def _run(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        epoch = 0
        block = max(1, GATHER // (4 * self.samples.pool.x[0].numel() * self.size)) * self.size
        while True:
            order = self.order(self.samples, self.draw(epoch)).to(self.samples.rows.device)
            for positions in order.split(block):
                parts = (part.split(self.size) for part in (*self.samples.take(positions), positions))
                for x, y, index in zip(*parts, strict=True):
                    yield self._augmented(x), y, index
            epoch += 1

    def _augmented(self, x: Tensor) -> Tensor:
        return self.augment(x) if self.augment is not None and self.samples.cut is None else x


class Fit:
    """One fit under way; a step asks it for batches and gradients and moves its weights."""

    def __init__(
        self,
        resident: Resident,
        loss: Loss,
        stream: Stream,
        rule: Train,
        lr: float,
        train: Slice,
        bn: str,
        correct: Correct | None,
        tally: Tally,
        velocities: dict[str, Tensor],
    ):
        self.resident, self.loss, self.stream, self.rule, self.lr = resident, loss, stream, rule, lr
        self.correct, self.tally = correct, tally
        chosen = resident.choose(train, bn)
        self.parameters = [p for _, p, _ in chosen]
        self.values = [p.detach() for p in self.parameters]  # the same memory, outside of autograd
        self.grad, self._grads = resident.grad, [view for _, _, view in chosen]
        moving = chosen if rule.momentum else []
        self.velocity = [velocities.setdefault(e.name, torch.zeros_like(view)) for e, _, view in moving]
        self._norms = resident.norms_in_training()
        self._loss = torch.tensor(math.nan)
        if correct is not None:
            self.grad.zero_()  # a correction may touch what is not trained; let it start from nothing

    def run(self, steps: int, step: Step) -> int:
        """Take that many steps; how many were really taken."""
        before = self.tally.steps
        if self.parameters:
            for _ in range(steps):
                step(self)
        return self.tally.steps - before

    def next(self) -> Batch | None:
        """The next batch; None for a lone sample that BN cannot learn from while others can (methods.md 0.3)."""
        x, y, index = next(self.stream)
        if len(y) == 1 and self._norms:
            if self.stream.per_epoch > 1 and self.stream.size > 1:
                self.tally.skipped_batches += 1
                return None
            self.tally.eval_mode_steps += 1
            for norm in self._norms:
                norm.eval()
        return Batch(self.resident.model, x, y, index, self.stream.samples)

    def gradient(self, batch: Batch) -> Grads:
        """The corrected gradient of the loss at the current weights; a correction sees it as one flat vector.

        Nobody keeps it: the next one takes its place in memory, where the processor's cache still has it.
        """
        loss = self.loss(batch)
        found = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        self._loss = loss.detach()
        self.tally.samples += len(batch)
        if any(g is None for g in found):
            found = tuple(torch.zeros_like(p) if g is None else g for p, g in zip(self.parameters, found, strict=True))
        if self.correct is not None:
            torch._foreach_copy_(self._grads, found)
            self.correct(self.grad)
            return self._grads
        return found

    def moved(self) -> None:
        """Count a step and tell the layers that listen."""
        self.tally.steps += 1
        self.tally.travelled += self.lr
        self.tally.losses.append(self._loss)
        for listener in self.resident.listeners:
            listener.after_step(self._loss)  # type: ignore[operator]
