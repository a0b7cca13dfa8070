"""The one training loop: batches x step."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields

import numpy as np
import torch
from torch import Tensor

from polyfed.config import Train
from polyfed.data.samples import Samples
from polyfed.errors import UsageError
from polyfed.params import Params, Slice
from polyfed.parts import closed_form
from polyfed.parts.resident import Batch, Resident
from polyfed.parts.steps import Grads, Step, sgd
from polyfed.parts.trained import of_model, of_tensors

Loss = Callable[[Batch], Tensor]
Augment = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # a batch, and its labels: a mask moves along
Correct = Callable[[Tensor], None]
Draw = Callable[[int], np.random.Generator]
Order = Callable[[Samples, np.random.Generator], Tensor]
GATHER = 1 << 21  # bytes copied out of the pool at a time: few enough to stay in the cache, many enough to be cheap


def shuffled(samples: Samples, rng: np.random.Generator) -> Tensor:
    """Every sample once, in random order."""
    return torch.from_numpy(rng.permutation(len(samples)))


def balanced(samples: Samples, rng: np.random.Generator) -> Tensor:
    """As many samples as there are, drawn so that every class present is equally likely."""
    if samples.masks:
        raise UsageError("batches of balanced classes are drawn by the labels of whole samples, and here are masks")
    y = samples.y.cpu().numpy()
    counts = np.bincount(y)
    return torch.from_numpy(rng.choice(len(y), size=len(y), p=(1 / counts[y]) / np.count_nonzero(counts)))


def poisson(samples: Samples, rng: np.random.Generator) -> Tensor:
    """Not an order: every batch holds each sample with the same chance, whatever the others hold (see `Poisson`)."""
    raise TypeError("batches=poisson are drawn one by one and have no order")


@dataclass
class Tally:
    """What a client's fits did, for its report."""

    steps: int = 0
    samples: int = 0
    skipped_batches: int = 0
    eval_mode_steps: int = 0
    travelled: float = 0.0
    losses: list[Tensor] = field(default_factory=list)  # of every step; read when all are taken, not in between

    def add(self, other: "Tally") -> None:
        """Add the counts of another tally."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def numbers(self) -> dict[str, float]:
        """The counts as plain numbers; the loss is the mean over steps."""
        return {
            "loss": math.fsum(torch.stack(self.losses).tolist()) / len(self.losses) if self.losses else math.nan,
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
        self._epoch, self._order, self._at = 0, torch.empty(0), 0
        self._rows: tuple[Tensor, ...] = (torch.empty(0),)  # gathered ahead, from this position of the order on
        self._from = 0

    def __next__(self) -> tuple[Tensor, Tensor, Tensor]:
        index = self.positions(1)
        x, y = self._gathered(self._at - len(index), self._at)
        if self.samples.anew is not None:
            x = self.samples.anew(self.samples.rows[index])
        if self.augment is not None and self.samples.cut is None:
            x, y = self.augment(x, y)
        return x, y, index

    def positions(self, most: int) -> Tensor:
        """The positions of the next batches in one piece: at most so many, fewer where the epoch ends."""
        if self._at == len(self._order):
            self._order = self.order(self.samples, self.draw(self._epoch)).to(self.samples.rows.device)
            self._epoch, self._at, self._rows = self._epoch + 1, 0, (torch.empty(0),)
        found = self._order[self._at : self._at + most * self.size]
        self._at += len(found)
        return found

    def batches_in_cache(self, rows: Tensor) -> int:
        """How many batches of such rows are gathered at a time, at least one."""
        return max(1, GATHER // (4 * rows[0].numel() * self.size))

    def _gathered(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        if not self._from <= start < self._from + len(self._rows[0]):
            ahead = self.batches_in_cache(self.samples.pool.x) * self.size
            self._rows, self._from = self.samples.take(self._order[start : start + ahead]), start
        here = slice(start - self._from, stop - self._from)
        x, y = self._rows
        return x[here], y[here]


def on_plateau(losses: Sequence[Tensor], first: int, patience: int) -> bool:
    """Whether so many losses came since the last look, or since the `first`, and their mean is not the lowest yet."""
    taken = len(losses) - first
    if taken % patience or taken < 2 * patience:
        return False
    means = torch.stack(list(losses[first:])).view(-1, patience).mean(1)
    return bool(means[-1] >= means[:-1].min())


class Poisson(Stream):
    """Batches for private steps: every sample is in each with the chance q = min(1, B / n), by a mask keyed by step.

    A batch may be empty.
    """

    def __init__(self, samples: Samples, size: int, draw: Draw, augment: Augment | None):
        super().__init__(samples, size, poisson, draw, augment)
        self.chance = sampling_rate(len(samples), size)

    def positions(self, most: int) -> Tensor:
        """The positions of the next batch."""
        mask = self.draw(self._epoch).random(len(self.samples)) < self.chance
        self._epoch += 1
        return torch.from_numpy(np.flatnonzero(mask)).to(self.samples.rows.device)

    def __next__(self) -> tuple[Tensor, Tensor, Tensor]:
        index = self.positions(1)
        x, y = self.samples.take(index)
        if self.augment is not None and self.samples.cut is None and len(index) > 0:
            x, y = self.augment(x, y)
        return x, y, index


def sampling_rate(n: int, batch: int) -> float:
    """q: the chance with which a sample is in a Poisson batch that holds so many on average."""
    return min(1.0, batch / n)


class Fit:
    """One fit under way; a step asks it for batches and gradients and moves its weights."""

    def __init__(
        self,
        resident: Resident,
        loss: Loss,
        stream: Stream,
        rule: Train,
        lr: float,
        train: Slice | Sequence[Tensor],
        bn: str,
        correct: Correct | None,
        tally: Tally,
        kept: dict[str, Tensor],
    ):
        self.resident, self.loss, self.stream, self.rule, self.lr = resident, loss, stream, rule, lr
        self.correct, self.tally, self._kept = correct, tally, kept
        self.trained = of_model(resident, train, bn) if isinstance(train, Slice) else of_tensors(resident, train)
        self.parameters = self.trained.parameters
        self.values = [p.detach() for p in self.parameters]  # the same memory, outside of autograd
        self.velocity = self.kept("velocity") if rule.momentum else []
        self._norms = resident.norms_in_training()
        self._listeners = [layer for layer in resident.listeners if layer.training]
        self.last_loss = torch.tensor(math.nan)

    @property
    def weights(self) -> Tensor:
        """A copy of what is fitted as one flat vector: all weights of the model, or the tensors given instead."""
        return self.trained.weights

    def kept(self, what: str, scalar: bool = False) -> list[Tensor]:
        """A tensor (or a number) per parameter, zero at first, that a step keeps from one step to the next.

        It is kept by a fit that goes on (`go_on`), and dropped otherwise.
        """
        keys = [f"{what} {name}" for name in self.trained.names]
        for key, view in zip(keys, self.trained.views, strict=True):
            if key not in self._kept:
                self._kept[key] = view.new_zeros(()) if scalar else torch.zeros_like(view)
        return [self._kept[key] for key in keys]

    def run(self, steps: int, step: Step, patience: int | None = None) -> int:
        """Take that many steps, or as many as lower the loss; return how many were really taken."""
        before, first = self.tally.steps, len(self.tally.losses)
        if self.parameters and step is sgd and patience is None and closed_form.applies(self):
            closed_form.descend(self, steps)
        elif self.parameters:
            for _ in range(steps):
                step(self)
                if patience is not None and on_plateau(self.tally.losses, first, patience):
                    break
        self.trained.release()
        return self.tally.steps - before

    def next(self) -> Batch | None:
        """The next batch; None for a lone sample, which BN cannot learn from, where the client has other batches.

        Masks in which no pixel has a label are passed over, too.
        """
        x, y, index = next(self.stream)
        if len(y) == 1 and self._norms:
            if self.stream.per_epoch > 1 and self.stream.size > 1:
                self.tally.skipped_batches += 1
                return None
            self.tally.eval_mode_steps += 1
            for norm in self._norms:
                norm.eval()
        batch = Batch(self.resident.model, x, y, index, self.stream.samples)
        if batch.masks and not batch.y.numel():  # not a pixel has a label
            self.tally.skipped_batches += 1
            return None
        return batch

    def gradient(self, batch: Batch, at: Tensor | Params | None = None) -> Grads:
        """The corrected gradient of the loss, a tensor per parameter; a correction sees it as one flat vector.

        It is taken at the live weights, or at others: a flat vector like `weights`, or a whole model. A correction
        finds those others live; afterwards every live value, buffers included, is what it was. Nobody keeps the
        gradient: the next one takes its place in memory, where the processor's cache still has it.
        """
        if at is None:
            return self._gradient(batch)
        with self._placed(at):
            return self._gradient(batch)

    def flat_gradient(self, batch: Batch, at: Tensor | Params | None = None) -> Tensor:
        """The same as one flat vector of its own, like `weights`; zero where nothing is trained."""
        found = self.gradient(batch, at)
        if found is not self.trained.views:
            self.trained.gather(found)
        return self.trained.grad.clone()

    @contextmanager
    def _placed(self, at: Tensor | Params) -> Iterator[None]:
        live, weights = self.resident.params, self.weights
        before = live.copy()
        try:
            live.set(at) if isinstance(at, Params) else self.trained.place(at)
            yield
        finally:
            live.set(before)
            self.trained.place(weights)

    def _gradient(self, batch: Batch) -> Grads:
        batch.forget()  # for a step that asks for a second gradient
        loss = self.loss(batch)
        found = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        self.last_loss = loss.detach()
        self.tally.samples += len(batch)
        if any(g is None for g in found):
            found = tuple(torch.zeros_like(p) if g is None else g for p, g in zip(self.parameters, found, strict=True))
        return self.corrected(found)

    def corrected(self, found: Grads) -> Grads:
        """A gradient with the terms in parameters added."""
        if self.correct is None:
            return found
        self.trained.gather(found)
        self.correct(self.trained.grad)
        return self.trained.views

    def moved(self) -> None:
        """Count a step and tell the layers in training that listen."""
        self.took([self.last_loss])

    def took(self, losses: Sequence[Tensor], samples: int = 0) -> None:
        """Count steps by their losses, with samples not counted yet, and tell the layers in training that listen."""
        self.tally.steps += len(losses)
        self.tally.samples += samples
        self.tally.travelled += len(losses) * self.lr
        self.tally.losses += losses
        for listener in self._listeners:
            for loss in losses:
                listener.after_step(loss)  # type: ignore[operator]
