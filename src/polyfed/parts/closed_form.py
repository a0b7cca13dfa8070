"""SGD on rows under a linear head, with the gradient written out: for tiny steps autograd costs more than arithmetic.

For logits z = x W^T + b and p = softmax(z + shift), the gradient of a LogitLoss by z is d = ((1 + weight) p - goal) /
B, so W descends along d^T x and b along the column sums of d. The steps are those of `sgd`, up to rounding.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from polyfed.parts.losses import LogitLoss

if TYPE_CHECKING:
    from polyfed.parts.fit import Fit


def applies(fit: "Fit") -> bool:
    """Whether a fit trains just a linear head, on its own rows, by plain or momentum SGD on a LogitLoss."""
    head, rule = fit.resident.model.head, fit.rule
    return (
        isinstance(fit.loss, LogitLoss)
        and fit.stream.samples.cut == "head"
        and fit.correct is None
        and isinstance(head, nn.Linear)
        and {id(p) for p in fit.parameters} == {id(p) for p in head.parameters()}
        and rule.clip is None
        and not rule.nesterov
    )


def descend(fit: "Fit", steps: int) -> None:
    """Take that many steps; the fit counts them as it counts any other."""
    head, loss = fit.resident.model.head, fit.loss
    assert isinstance(head, nn.Linear)
    assert isinstance(loss, LogitLoss)
    block = _Block(fit, loss, head.out_features, steps)
    moves = dict(zip(map(id, fit.parameters), _moves(fit), strict=True))
    weight, bias = moves[id(head.weight)], None if head.bias is None else moves[id(head.bias)]
    w, column = weight.value, None if bias is None else bias.value[:, None]
    shift = None if loss.shift is None else loss.shift[:, None]
    while steps > 0:
        # what can be done for many batches at once is done by the block; a step is left with four operators
        said = []
        for scale, x, columns, aim, ones in block.gathered(steps):
            # a column per sample: softmax over ten rows is ten times as fast as over ten columns
            z = torch.mm(w, columns) if column is None else torch.addmm(column, w, columns)
            if shift is not None:
                z += shift
            d = torch.softmax(z, 0)
            d -= aim
            weight.by_product(d, x, scale)
            if bias is not None:
                bias.by_product(d, ones, scale)
            said.append(z)
        fit.took(block.losses(torch.cat(said, 1)), len(block.rows))
        steps -= len(said)


Rows = tuple[float, Tensor, Tensor, Tensor, Tensor]  # of a batch: factor of d, x, x and goals transposed, ones


class _Block:
    """Some batches of the stream: features, goals and constants lie side by side, so that one gather brings them all.

    It is gathered into the same memory every time: that stays in the cache, and its batches are views made once. Where
    epochs are short it holds several whole ones, for what is done once in a while is slow: it comes with a cold cache.
    """

    def __init__(self, fit: "Fit", loss: LogitLoss, classes: int, steps: int):
        self.stream, self.loss, self.classes = fit.stream, loss, classes
        samples = fit.stream.samples
        x, _ = samples.take(torch.arange(len(samples), device=samples.rows.device))
        goals, constants = loss.goals(samples, classes)
        # d = (1 + weight) (p - goal / (1 + weight)): the factor goes into the length of the step
        self.total = 1 + loss.weight
        parts = [x, goals.div_(self.total)] if constants is None else [x, goals.div_(self.total), constants[:, None]]
        self.width, self.table = x.shape[1], torch.cat(parts, 1)
        most, epoch = fit.stream.batches_in_cache(self.table), fit.stream.per_epoch
        self.most = min(steps, max(most // epoch * epoch, min(most, epoch)))
        self.room = torch.empty(self.most * fit.stream.size, self.table.shape[1], device=x.device)
        self.ones = torch.ones(fit.stream.size, device=x.device)
        self._cut([])

    def gathered(self, steps: int) -> list[Rows]:
        """The next batches, at most so many."""
        index: list[Tensor] = []
        lengths: list[int] = []
        while len(lengths) < min(steps, self.most):
            index.append(self.stream.positions(min(steps, self.most) - len(lengths)))
            whole, rest = divmod(len(index[-1]), self.stream.size)
            lengths += [self.stream.size] * whole + [rest] * (rest > 0)
        if lengths != self.lengths:
            self._cut(lengths)
        torch.index_select(self.table, 0, torch.cat(index), out=self.rows)
        return self.batches

    def _cut(self, lengths: list[int]) -> None:
        """Let the next batches have these lengths."""
        self.lengths, self.rows = lengths, self.room[: sum(lengths)]
        self.counts = torch.tensor(lengths, device=self.room.device)
        self.batches = [self._views(rows) for rows in self.rows.split(lengths)] if lengths else []

    def _views(self, rows: Tensor) -> Rows:
        x, goals = rows[:, : self.width], rows[:, self.width : self.width + self.classes]
        return self.total / len(rows), x, x.t(), goals.t(), self.ones[: len(rows)]

    def losses(self, z: Tensor) -> list[Tensor]:
        """The mean loss of each gathered batch, from the logits of all."""
        log_p = torch.log_softmax(z, 0)
        if self.loss.shift is not None:  # a class that left the softmax has log p = -inf and is nobody's goal
            log_p = log_p.clamp(min=torch.finfo(log_p.dtype).min)
        each = (log_p.t() * self.rows[:, self.width : self.width + self.classes]).sum(1) * -self.total
        if self.loss.teacher is not None:
            each += self.rows[:, -1]
        return list(torch.segment_reduce(each, "mean", lengths=self.counts).unbind())


def _moves(fit: "Fit") -> list["_Move"]:
    velocities: Sequence[Tensor | None] = fit.velocity or [None] * len(fit.values)
    return [_Move(fit, value, velocity) for value, velocity in zip(fit.values, velocities, strict=True)]


class _Move:
    """One parameter and how it descends: w <- w - lr (g + decay w), or along a velocity."""

    def __init__(self, fit: "Fit", value: Tensor, velocity: Tensor | None):
        self.value, self.velocity, self.lr = value, velocity, fit.lr
        self.decay, self.momentum = fit.rule.weight_decay, fit.rule.momentum
        self.product = Tensor.addmm_ if value.dim() == 2 else Tensor.addmv_

    def by_product(self, left: Tensor, right: Tensor, scale: float) -> None:
        """Descend along scale * (left @ right), which is the gradient."""
        if self.velocity is None:
            self.product(self.value, left, right, beta=1 - self.lr * self.decay, alpha=-self.lr * scale)
            return
        self.product(self.velocity, left, right, beta=self.momentum, alpha=scale)
        if self.decay:
            self.velocity.add_(self.value, alpha=self.decay)
        self.value.add_(self.velocity, alpha=-self.lr)
