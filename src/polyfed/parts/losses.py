"""Terms in samples: a loss takes a batch, by its logits or features, and gives a number to descend."""

import torch.nn.functional as F
from torch import Tensor

from polyfed.parts.resident import Batch


def cross_entropy(batch: Batch) -> Tensor:
    """Plain softmax cross-entropy, mean over the batch."""
    return F.cross_entropy(batch.logits, batch.y)


def restricted(logits: Tensor, factors: Tensor) -> Tensor:
    """FedRS's restricted softmax: each class's logit times its factor."""
    return logits * factors


def balanced_cross_entropy(logits: Tensor, y: Tensor, counts: Tensor) -> Tensor:
    """Balanced softmax: the log of the class counts is added; a class without samples leaves the softmax."""
    return F.cross_entropy(logits + counts.to(logits.dtype).log(), y)
