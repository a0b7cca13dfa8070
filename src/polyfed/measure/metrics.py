"""Metrics from confusion counts; every number has one name (docs/commands.md)."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

Numbers = dict[str, float | None]
GROUPS = ("head", "mid", "tail")


def accuracy(counts: np.ndarray) -> float:
    """Share of samples answered rightly; nan without samples."""
    total = counts.sum()
    return float(np.trace(counts) / total) if total else math.nan


def recalls(counts: np.ndarray) -> np.ndarray:
    """Per true class, the share answered rightly; nan where there is no sample."""
    totals = counts.sum(1)
    return np.divide(np.diagonal(counts), totals, out=np.full(len(counts), np.nan), where=totals > 0)


def balanced(counts: np.ndarray) -> float:
    """Mean recall over the classes that are there."""
    return _mean(recalls(counts))


def ious(counts: np.ndarray) -> np.ndarray:
    """Per class, the pixels found rightly over all that are of this class or were taken for it; nan where none is."""
    found, true = np.diagonal(counts), counts.sum(1)
    union = true + counts.sum(0) - found
    return np.divide(found, union, out=np.full(len(counts), np.nan), where=true > 0)


def miou(counts: np.ndarray) -> float:
    """Mean IoU over the classes that are there."""
    return _mean(ious(counts))


def class_groups(training_counts: Sequence[int]) -> dict[str, list[int]]:
    """Head, mid and tail: classes by training count over the federation, cut in three, larger groups first."""
    order = sorted(range(len(training_counts)), key=lambda c: (-training_counts[c], c))
    cut = [part.tolist() for part in np.array_split(np.array(order, dtype=int), 3)]
    return dict(zip(GROUPS, cut, strict=True))


def group_recalls(counts: np.ndarray, groups: Mapping[str, list[int]]) -> Numbers:
    """Mean recall over the classes of each group."""
    found = recalls(counts)
    return {name: none_if_nan(_mean(found[members])) for name, members in groups.items()}


def global_numbers(counts: np.ndarray | None, groups: Mapping[str, list[int]], masks: bool = False) -> Numbers | None:
    """What is said of one model on one test set; of masks also mIoU."""
    if counts is None or counts.sum() == 0:
        return None
    return {
        "accuracy": accuracy(counts),
        "balanced": none_if_nan(balanced(counts)),
        **({"miou": none_if_nan(miou(counts))} if masks else {}),
        **group_recalls(counts, groups),
    }


def client_numbers(
    tables: Mapping[int, np.ndarray], groups: Mapping[str, list[int]], masks: bool = False
) -> Numbers | None:
    """What is said of many clients: the unweighted mean over those that have test samples, and its spread."""
    measured = [t for t in tables.values() if t.sum()]
    if not measured:
        return None
    return {
        **_spread(np.array([accuracy(t) for t in measured])),
        "balanced": none_if_nan(_mean(np.array([balanced(t) for t in measured]))),
        **({"miou": none_if_nan(_mean(np.array([miou(t) for t in measured])))} if masks else {}),
        **group_recalls(np.sum(measured, axis=0), groups),
    }


def class_numbers(
    tables: Mapping[int, np.ndarray],
    observed: Mapping[int, Sequence[int]],
    groups: Mapping[str, list[int]],
    masks: bool = False,
) -> Numbers | None:
    """PA_cls: recall on the global test set, averaged over each client's own classes O_k, then over clients.

    Of masks also mIoU, in the same way.
    """

    def per_client(members: Sequence[int] | None) -> np.ndarray:
        own = {k: [c for c in observed[k] if members is None or c in members] for k in tables}
        return np.array([_mean(recalls(t)[own[k]]) for k, t in tables.items()])

    each = per_client(None)
    if np.isnan(each).all():
        return None
    own_ious = [_mean(ious(table)[list(observed[k])]) for k, table in tables.items()]
    return {
        **_spread(each[~np.isnan(each)]),
        "balanced": none_if_nan(_mean(each)),
        **({"miou": none_if_nan(_mean(np.array(own_ious)))} if masks else {}),
        **{name: none_if_nan(_mean(per_client(members))) for name, members in groups.items()},
    }


def _spread(each: np.ndarray) -> Numbers:
    """Mean and spread over clients; worst10 and best10 are means over the ceil(10 %) of them."""
    tenth, ordered = math.ceil(len(each) / 10), np.sort(each)
    return {
        "accuracy": float(each.mean()),
        "std": float(each.std()),
        "worst10": float(ordered[:tenth].mean()),
        "best10": float(ordered[-tenth:].mean()),
    }


def round_of_arrival(curve: Sequence[tuple[int, float]], level: float) -> int | None:
    """RoA@x: the first evaluated round whose metric is at least x; None if never (ranks last, never replaced by T)."""
    return next((at for at, value in curve if value >= level), None)


def none_if_nan(value: float) -> float | None:
    """JSON has no nan: what was not measured is null."""
    return None if math.isnan(value) else float(value)


def _mean(values: np.ndarray) -> float:
    there = values[~np.isnan(values)]
    return float(there.mean()) if len(there) else math.nan
