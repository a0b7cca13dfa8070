"""The one averaging function: all rows in client-id order, each read once."""

from collections.abc import Sequence

import torch
from torch import Tensor

from polyfed.parts.chunks import in_chunks, ranges

BLOCK = 1 << 18  # numbers in a block: the sum stays in the cache while rows are read; stacking them would cost more


def shares(sizes: Sequence[int], weighting: str) -> Tensor:
    """p_k = n_k / sum n, or 1 / |S|."""
    values = [float(n) if weighting == "sample" else 1.0 for n in sizes]
    total = sum(values)
    return torch.tensor([v / total for v in values], dtype=torch.float32)


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
