"""The one averaging function: all rows in client-id order, one matrix product."""

from collections.abc import Sequence

import torch
from torch import Tensor


def shares(sizes: Sequence[int], weighting: str) -> Tensor:
    """p_k = n_k / sum n, or 1 / |S|."""
    values = [float(n) if weighting == "sample" else 1.0 for n in sizes]
    total = sum(values)
    return torch.tensor([v / total for v in values], dtype=torch.float32)


def average(rows: Sequence[Tensor], weights: Tensor) -> Tensor:
    """sum_k p_k row_k for rows of one shape."""
    stacked = torch.stack([row.reshape(-1) for row in rows])
    return (weights.to(stacked.device) @ stacked).view(rows[0].shape)
