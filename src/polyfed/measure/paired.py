"""Paired tests: whether two methods differ over the seeds, or over the clients of one seed."""

from collections.abc import Mapping
from statistics import fmean

LEVEL = 0.05
FEWEST_SEEDS = 5  # with fewer pairs a t-test says nothing


def differences(ours: Mapping[int, float], theirs: Mapping[int, float]) -> list[float]:
    """Ours minus theirs wherever both are there, in order of seed or client."""
    return [ours[key] - theirs[key] for key in sorted(ours) if key in theirs]


def by_seed(ours: Mapping[int, float], theirs: Mapping[int, float]) -> float | None:
    """p of the paired t-test over seeds (two-sided); None under five pairs."""
    pairs = differences(ours, theirs)
    if len(pairs) < FEWEST_SEEDS:
        return None
    if not any(pairs):
        return 1.0
    if min(pairs) == max(pairs):
        return 0.0  # the same difference in every seed: no spread to divide by
    from scipy.stats import ttest_rel

    common = [seed for seed in sorted(ours) if seed in theirs]
    return float(ttest_rel([ours[s] for s in common], [theirs[s] for s in common]).pvalue)


def by_client(ours: Mapping[int, float], theirs: Mapping[int, float]) -> tuple[float, float] | None:
    """Mean difference over clients and p of Wilcoxon's signed-rank test (two-sided); None without common clients."""
    pairs = differences(ours, theirs)
    if not pairs:
        return None
    if not any(pairs):
        return 0.0, 1.0
    from scipy.stats import wilcoxon

    return fmean(pairs), float(wilcoxon(pairs).pvalue)
