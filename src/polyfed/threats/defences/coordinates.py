"""Rules that look at every coordinate by itself: the median, the trimmed mean, lines fitted to sorted values (IRLS)."""

import numpy as np

from polyfed.registry import param
from polyfed.threats import robust
from polyfed.threats.defences.base import Case, Defence, Verdict, defence


@defence("median", paper="Yin et al. 2018")
class Median(Defence):
    """The median of every coordinate."""

    def judge(self, case: Case) -> Verdict:
        return Verdict(robust.by_blocks(case.rows, robust.median, case.mix))


@defence("trimmed-mean", paper="Yin et al. 2018")
class TrimmedMean(Defence):
    """The mean of every coordinate without its f smallest and f largest values."""

    by_count = True

    def judge(self, case: Case) -> Verdict:
        return Verdict(robust.by_blocks(case.rows, lambda columns: robust.trimmed_mean(columns, case.f), case.mix))


@defence("irls", paper="Fu et al. 2019")
class IRLS(Defence):
    """Values far from a line through the sorted values move onto it, and their clients weigh less."""

    lam: float = param(2.0, "how far from the line a value is trusted", gt=0)

    def judge(self, case: Case) -> Verdict:
        if case.n < 4:
            return Verdict(robust.by_blocks(case.rows, robust.median, case.mix))
        mean, found = robust.irls(case.rows, case.n_weights, self.lam, case.mix)
        weights = case.unmixed(found)
        return Verdict(mean, weights, np.flatnonzero(weights < 0.1 * weights.max()).tolist())
