"""Terms in samples: a loss takes a batch, by its logits or features, and gives a number to descend."""

import torch.nn.functional as F
from torch import Tensor

from polyfed.parts.resident import Batch


def cross_entropy(batch: Batch) -> Tensor:
    """Plain softmax cross-entropy, mean over the batch."""
    return F.cross_entropy(batch.logits, batch.y)
