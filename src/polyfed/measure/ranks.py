"""Ranks over many data sets and seeds, and how far apart they must be to count (Demsar 2006)."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import numpy as np

FEWEST = 3  # rows below which a ranking says nothing
LEVEL = 0.05


@dataclass(frozen=True)
class Ranking:
    """The mean rank of each row, best first; p of Friedman's test; the difference that Nemenyi's test asks for."""

    ranks: dict[str, float]
    blocks: int
    p: float
    critical: float

    def groups(self) -> list[list[str]]:
        """The largest sets of neighbours that do not differ; none of a single row."""
        names = list(self.ranks)
        found: list[list[str]] = []
        for first in range(len(names)):
            inside = [n for n in names[first:] if self.ranks[n] - self.ranks[names[first]] <= self.critical]
            if len(inside) > 1 and not (found and inside[-1] == found[-1][-1]):
                found.append(inside)
        return found


def ranking(scores: Mapping[str, Mapping[Hashable, float]]) -> Ranking | None:
    """Rank rows in every block (a seed of a data set) that all of them have a score in; the largest score is first.

    Rows that tie share the mean of their ranks. None with fewer than three rows or two blocks.
    """
    from scipy.stats import friedmanchisquare, rankdata, studentized_range

    blocks = list(dict.fromkeys(block for each in scores.values() for block in each))
    blocks = [block for block in blocks if all(block in each for each in scores.values())]
    if len(scores) < FEWEST or len(blocks) < 2:
        return None
    table = np.array([[each[block] for block in blocks] for each in scores.values()])  # [row, block]
    means = rankdata(-table, axis=0).mean(axis=1)
    k, n = len(scores), len(blocks)
    order = sorted(range(k), key=lambda row: (means[row], row))
    names = list(scores)
    tied = bool((table == table[0]).all())  # then the statistic is nothing divided by nothing
    p = 1.0 if tied else float(friedmanchisquare(*table).pvalue)
    q = float(studentized_range.ppf(1 - LEVEL, k, np.inf)) / np.sqrt(2)
    critical = float(q * np.sqrt(k * (k + 1) / (6 * n)))
    return Ranking({names[row]: float(means[row]) for row in order}, n, p, critical)
