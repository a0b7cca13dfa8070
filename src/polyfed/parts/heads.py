"""What is done to a linear head without training it: its rows get other lengths."""

import torch
from torch import Tensor

from polyfed.models.base import Net


def scale_head(net: Net, rows: Tensor, bias: Tensor | float) -> Net:
    """The same network, changed in place: each class's row of the head, and its bias, times a factor."""
    with torch.no_grad():
        net.get_parameter("head.weight").mul_(rows[:, None])
        if getattr(net.head, "bias", None) is not None:
            net.get_parameter("head.bias").mul_(bias)
    return net


def row_factors(weight: Tensor, tau: float) -> Tensor:
    """1 / |w_c|^tau of every row: with it a row has the length |w_c|^(1 - tau); a row of zeros stays one."""
    return weight.norm(dim=1).clamp(min=torch.finfo(weight.dtype).tiny) ** -tau


def mean_recall(logits: Tensor, y: Tensor) -> float:
    """The share of samples that are answered rightly, per class that is there, as their mean."""
    right = (logits.argmax(1) == y).double()
    counts = torch.bincount(y)
    held = counts > 0
    return float((torch.bincount(y, weights=right)[held] / counts[held]).mean())
