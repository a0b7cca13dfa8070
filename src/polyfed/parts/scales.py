"""SGD on factors of the logits, with the gradient written out: where only they are trained, logits stay as they are.

For logits z, factors f and p = softmax(f z), the gradient of the mean cross-entropy by f_c is the mean of (p_c - y_c)
z_c over the batch. The steps are those of `sgd`, up to rounding.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from polyfed.data.samples import Samples
from polyfed.models.base import Net
from polyfed.parts.resident import in_batches
from polyfed.parts.steps import Step, sgd

if TYPE_CHECKING:
    from polyfed.parts.fit import Fit


@dataclass(frozen=True, eq=False)
class Scaling:
    """A step on a factor for each of some classes; the other classes keep theirs, which is 1."""

    logits: Tensor  # of the frozen model, a row per sample
    goals: Tensor  # one-hot labels
    classes: Tensor  # whose factors are trained, in this order
    factors: Tensor  # of every class

    def __call__(self, fit: "Fit") -> None:
        """Take one batch and descend."""
        index = fit.stream.positions(1)
        z, y = self.logits[index], self.goals[index]
        log_p = (z * self.factors.index_copy_(0, self.classes, fit.values[0])).log_softmax(1)
        fit.last_loss = (log_p * y).sum() / -len(index)
        fit.tally.samples += len(index)
        by_factor = log_p.exp_().sub_(y).mul_(z).sum(0)[self.classes]
        sgd.descend(fit, [by_factor.div_(len(index))])


def scaling(net: Net, rows: Samples, classes: Tensor) -> Step:
    """The step that learns factors of these classes on rows of features; plain `sgd` on anything else."""
    if rows.cut != "head":
        return sgd
    logits = in_batches(net.head, rows, 128)
    goals = nn.functional.one_hot(rows.y.long(), logits.shape[1]).to(logits)
    return Scaling(logits, goals, classes.to(logits.device), torch.ones_like(logits[0]))
