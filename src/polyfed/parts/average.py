"""The one averaging function: all rows in client-id order, each read once."""

from collections.abc import Sequence

import torch
from torch import Tensor

BLOCK = 1 << 18  # numbers: the sum stays in the cache, rows are read at full speed; stacking them would cost more


def shares(sizes: Sequence[int], weighting: str) -> Tensor:
    """p_k = n_k / sum n, or 1 / |S|."""
    values = [float(n) if weighting == "sample" else 1.0 for n in sizes]
    total = sum(values)
    return torch.tensor([v / total for v in values], dtype=torch.float32)


def average(rows: Sequence[Tensor], weights: Tensor) -> Tensor:
    """sum_k p_k row_k for rows of one shape; a block at a time, so that the sum stays in the cache."""
    flat, each = [row.reshape(-1) for row in rows], weights.tolist()
    made = torch.empty_like(flat[0])
    for start in range(0, len(made), BLOCK):
        here = slice(start, start + BLOCK)
        total = torch.mul(flat[0][here], each[0], out=made[here])
        for row, weight in zip(flat[1:], each[1:], strict=True):
            total.add_(row[here], alpha=weight)
    return made.view(rows[0].shape)
