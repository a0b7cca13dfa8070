"""A long tail: class c keeps IF^(-c/(C-1)) of the largest class, in label order (docs/data.md)."""

import numpy as np

from polyfed.data.strata import Indices, pick
from polyfed.errors import UsageError


def long_tail(
    labels: np.ndarray, classes: int, factor: float, rng: np.random.Generator, at_least_one: bool = False
) -> Indices:
    """Positions that remain, a random subset of each class; factor 1 keeps all, and no class gets more than it has.

    A factor that would leave a class without a sample is refused, or such a class keeps one.
    """
    if factor < 1:
        raise UsageError(f"split.longtail={factor:g} must be at least 1: it is the largest class over the smallest one")
    if factor == 1 or classes == 1:
        return np.arange(len(labels))
    largest = int(np.bincount(labels, minlength=classes).max(initial=0))
    if largest < factor and not at_least_one:
        raise UsageError(
            f"split.longtail={factor:g} would leave the last class without a sample, because the largest class has "
            f"{largest}; at most {largest} is possible"
        )
    return pick(labels, tail_sizes(largest, classes, factor), rng)


def tail_sizes(largest: int, classes: int, factor: float) -> np.ndarray:
    """How many samples each class keeps."""
    sizes = [int(largest * factor ** (-c / (classes - 1))) for c in range(classes)]
    return np.maximum(sizes, 1)  # 49 * 49**-1.0 is a hair below 1


def limited(labels: np.ndarray, classes: int, limit: int | None, rng: np.random.Generator) -> Indices:
    """Positions that remain when at most `limit` random samples are kept per class."""
    return np.arange(len(labels)) if limit is None else pick(labels, np.full(classes, limit), rng)
