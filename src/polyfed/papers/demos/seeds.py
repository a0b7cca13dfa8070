"""What pictures of demos share: a line of means over seeds, and what the first seed found."""

from collections.abc import Sequence

import numpy as np

from polyfed.papers.demos import Shown
from polyfed.report.charts import Line


def first_seed(shown: Sequence[Shown]) -> Shown:
    """What is drawn of one seed alone is of the first."""
    return min(shown, key=lambda one: one.seed)


def mean_line(name: str, tint: int, x: Sequence[float], curves: Sequence[np.ndarray]) -> Line:
    """The mean of some curves, one of each seed, with their spread."""
    values = np.stack(curves)
    spread = values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(len(x))
    return Line(name, tint, list(x), values.mean(axis=0).tolist(), spread.tolist(), [len(values)] * len(x))
