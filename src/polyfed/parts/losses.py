"""Terms in samples: a loss takes a batch, by its logits or features, and gives a number to descend."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from polyfed.data.samples import BACKGROUND, Samples
from polyfed.parts.distil import kl
from polyfed.parts.resident import Batch, Frozen


@dataclass(frozen=True, eq=False)
class LogitLoss:
    """Cross-entropy of logits and labels, on shifted logits or with a teacher beside the labels.

    It is a loss like any other. Because its gradient is known, a linear head that is trained on rows of features
    descends on it without autograd (see parts/closed_form.py).
    """

    shift: Tensor | None = None  # added to the logits, a number per class
    teacher: Frozen | None = None
    weight: float = 0.0  # of KL(teacher || student)

    def __call__(self, batch: Batch) -> Tensor:
        """The mean loss of a batch."""
        loss = nll(batch.logits if self.shift is None else batch.logits + self.shift, batch)
        return loss if self.teacher is None else loss + self.weight * kl(self.teacher.logits(batch), batch.logits)

    def goals(self, on: Samples, classes: int) -> tuple[Tensor, Tensor | None]:
        """What the gradient aims at, a row per sample: d loss / d logits = ((1 + weight) p - goal) / B.

        The second value is the part of each sample's loss that does not depend on the student, or None.
        """
        goals = F.one_hot(on.y, classes).float()
        if self.teacher is None:
            return goals, None
        log_q = F.log_softmax(self.teacher.table("logits", on), 1)
        q = log_q.exp()
        return goals.add_(q, alpha=self.weight), self.weight * (q * log_q).sum(1)


def nll(logits: Tensor, batch: Batch) -> Tensor:
    """The mean over rows of -log p(label), by these logits of a batch.

    A pixel of the background belongs to some class that its client does not own, so that p is the sum over those
    (FedSeg, Miao et al. 2023; O_k are the client's classes, not those of the batch, and nothing is added in the log).
    """
    y, owned = batch.y, batch.on.owned
    if owned is None:
        return F.cross_entropy(logits, y)
    others = torch.ones(logits.shape[1], dtype=torch.bool, device=logits.device).index_fill(0, owned, False)
    behind = y == BACKGROUND
    own = logits.gather(1, y.masked_fill(behind, 0)[:, None])[:, 0]
    aim = torch.where(behind, logits[:, others].logsumexp(1), own) if others.any() else own
    return (logits.logsumexp(1) - aim).mean()


cross_entropy = LogitLoss()  # plain softmax cross-entropy, mean over the batch


def balanced_cross_entropy(counts: Tensor) -> LogitLoss:
    """Balanced softmax: the log of the class counts is added; a class without samples leaves the softmax."""
    return LogitLoss(shift=counts.to(torch.float32).log())


def calibrated_cross_entropy(counts: Tensor, tau: float) -> LogitLoss:
    """FedLC's calibration: tau n_c^(-1/4) is taken from the logits; a class without samples counts as 1e-8 of one."""
    return LogitLoss(shift=-tau * counts.to(torch.float32).clamp(min=1e-8).pow(-0.25))


def spreadout(rows: Tensor, margin: float) -> Tensor:
    """FedAwS's regulariser: the mean over pairs of max(0, margin - d)^2, d = (1 - cos) / 2 their distance."""
    directions = F.normalize(rows, dim=1)
    near = (margin - (1 - directions @ directions.t()) / 2).clamp(min=0).square()
    return (near.sum() - near.diagonal().sum()) / max(len(rows) * (len(rows) - 1), 1)


def restricted(logits: Tensor, factors: Tensor) -> Tensor:
    """FedRS's restricted softmax: each class's logit times its factor."""
    return logits * factors
