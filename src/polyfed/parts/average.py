"""The one averaging function: all rows in client-id order, each read once."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from polyfed.parts.chunks import in_chunks, ranges

BLOCK = 1 << 18  # numbers in a block: the sum stays in the cache while rows are read; stacking them would cost more


def _counted(sizes: Sequence[int], weighting: str) -> list[float]:
    return [float(n) if weighting == "sample" else 1.0 for n in sizes]


def shares(sizes: Sequence[int], weighting: str) -> Tensor:
    """p_k = n_k / sum n, or 1 / |S|."""
    values = _counted(sizes, weighting)
    total = sum(values)
    return torch.tensor([v / total for v in values], dtype=torch.float32)


def mean_number(numbers: Sequence[float], sizes: Sequence[int], weighting: str) -> float:
    """sum_k p_k number_k, in double; the mean of equal whole numbers is that number."""
    values = _counted(sizes, weighting)
    return math.fsum(v * number for v, number in zip(values, numbers, strict=True)) / math.fsum(values)


def average(rows: Sequence[Tensor], weights: Tensor, less: Sequence[Tensor] | None = None) -> Tensor:
    """sum_k p_k row_k for rows of one shape, or for rows minus the rows `less`; block by block, on all cores."""
    flat, each = [row.reshape(-1) for row in rows], weights.tolist()
    start = None if less is None else [row.reshape(-1) for row in less]
    made = torch.empty_like(flat[0])

    def add_up(here: slice) -> None:
        def part(k: int) -> Tensor:
            return flat[k][here] if start is None else flat[k][here] - start[k][here]

        total = torch.mul(part(0), each[0], out=made[here])
        for k in range(1, len(flat)):
            total.add_(part(k), alpha=each[k])

    in_chunks(add_up, ranges(len(made), BLOCK, len(made)))
    return made.view(rows[0].shape)
