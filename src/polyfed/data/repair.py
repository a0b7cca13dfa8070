"""Minimum client sizes without a rejection loop: draw once, then move as few samples as needed (docs/data.md)."""

import heapq

import numpy as np

from polyfed.data.strata import Indices
from polyfed.errors import UsageError


def repair(parts: list[Indices], labels: np.ndarray, least: int) -> int:
    """Bring every part to `least` samples in place; the number of samples moved.

    While a part is too small, the largest part (tie: lower id) gives a sample of its most frequent class (tie: lower
    label; its last one) to the smallest part (tie: lower id). Whoever gives stays above `least`, because the mean is
    at least that, so givers and takers never change places.
    """
    total = sum(map(len, parts))
    if total < least * len(parts):
        raise UsageError(too_few(total, len(parts), least))
    takers = [(len(part), k) for k, part in enumerate(parts) if len(part) < least]
    if not takers:
        return 0
    givers = [(-len(part), k) for k, part in enumerate(parts)]
    heapq.heapify(takers)
    heapq.heapify(givers)
    stocks: dict[int, _Stock] = {}
    gifts: dict[int, list[int]] = {k: [] for _, k in takers}
    moved = 0
    while takers:
        size, taker = takers[0]
        minus, giver = givers[0]
        if giver not in stocks:
            stocks[giver] = _Stock(parts[giver], labels)
        gifts[taker].append(stocks[giver].give())
        heapq.heapreplace(givers, (minus + 1, giver))
        moved += 1
        if size + 1 < least:
            heapq.heapreplace(takers, (size + 1, taker))
        else:
            heapq.heappop(takers)
    for taker, positions in gifts.items():
        parts[taker] = np.concatenate([parts[taker], positions]).astype(np.int64)
    for giver, stock in stocks.items():
        parts[giver] = parts[giver][~np.isin(parts[giver], stock.given)]
    return moved


def too_few(total: int, clients: int, least: int) -> str:
    """The sentence for a minimum size that cannot hold."""
    return (
        f"{clients} clients with at least {least} samples each need {clients * least} samples, but there are {total}; "
        f"possible: at most {total // max(least, 1)} clients, or a minimum of {total // clients}"
    )


class _Stock:
    """What a giving part still has, by class."""

    def __init__(self, part: Indices, labels: np.ndarray):
        self.by_class = {int(c): part[labels[part] == c].tolist() for c in np.unique(labels[part])}
        self.frequent = [(-len(rows), c) for c, rows in self.by_class.items()]
        heapq.heapify(self.frequent)
        self.given: list[int] = []

    def give(self) -> int:
        """The last sample of the most frequent class."""
        minus, c = self.frequent[0]
        heapq.heapreplace(self.frequent, (minus + 1, c))
        self.given.append(self.by_class[c].pop())
        return self.given[-1]
