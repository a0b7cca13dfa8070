"""The four ways papers draw a Dirichlet partition (docs/data.md), each drawn once; sizes are repaired afterwards."""

import numpy as np

from polyfed.data.repair import repair
from polyfed.data.strata import Indices, grouped, parts_of

BLOCK = 10  # FedDF divides blocks of ten workers


def class_wise(labels: np.ndarray, clients: int, classes: int, alpha: float, rng: np.random.Generator) -> list[Indices]:
    """D1: every class is cut by one p ~ Dir(alpha) over the clients."""
    sizes = np.bincount(labels, minlength=classes)
    counts = np.stack([_cut(_shares(rng, alpha, clients), n) for n in sizes])
    return _dealt(labels, counts, rng)


def capped(labels: np.ndarray, clients: int, classes: int, alpha: float, rng: np.random.Generator) -> list[Indices]:
    """D1b: as D1, but a client that already holds N/K samples gets no more; classes come in random order."""
    sizes = np.bincount(labels, minlength=classes)
    counts = np.zeros((classes, clients), np.int64)
    held = np.zeros(clients, np.int64)
    for c in rng.permutation(classes):
        share = _shares(rng, alpha, clients) * (held * clients < len(labels))
        if share.sum() <= 0:  # only clients that are already full drew a share
            share = (held * clients < len(labels)).astype(float)
        counts[c] = _cut(share, sizes[c])
        held += counts[c]
    return _dealt(labels, counts, rng)


def client_wise(
    labels: np.ndarray, clients: int, classes: int, alpha: float, rng: np.random.Generator
) -> list[Indices]:
    """D3: every client draws q ~ Dir(alpha) over the classes; a class is shared in proportion to the q of all."""
    sizes = np.bincount(labels, minlength=classes)
    wishes = np.stack([_shares(rng, alpha, classes) for _ in range(clients)])
    counts = np.stack([_cut(wishes[:, c], n, nearest=True) for c, n in enumerate(sizes)])
    return _dealt(labels, counts, rng)


def feddf(
    labels: np.ndarray, clients: int, classes: int, alpha: float, rng: np.random.Generator, least: int | None
) -> tuple[list[Indices], int]:
    """D2: D1b and the size repair inside blocks of ten workers; then all is strung together and cut into equal parts.

    The second value is the number of samples the repair moved.
    """
    shuffled = rng.permutation(len(labels))
    workers = np.diff([*range(0, clients, BLOCK), clients])
    bounds = np.rint(np.cumsum(workers)[:-1] * len(labels) / clients).astype(int)
    strung, moved = [], 0
    for block, size in zip(np.split(shuffled, bounds), workers, strict=True):
        here = labels[block]
        parts = capped(here, int(size), classes, alpha, rng)
        moved += repair(parts, here, max(1, least if least is not None else int(0.5 * len(block) / size)))
        strung += [block[part[np.argsort(here[part], kind="stable")]] for part in parts]
    return [np.sort(part) for part in np.array_split(np.concatenate(strung), clients)], moved


def _shares(rng: np.random.Generator, alpha: float, n: int) -> np.ndarray:
    """One draw of Dir(alpha); where alpha is so small that it underflows, all goes to one."""
    share = rng.dirichlet(np.full(n, alpha))
    if np.isfinite(share).all() and share.sum() > 0:
        return share
    return np.eye(n)[rng.integers(n)]


def _cut(share: np.ndarray, n: int, nearest: bool = False) -> np.ndarray:
    """n things cut at the cumulative shares; the counts add up to n."""
    whole = share.sum()
    share = share / whole if whole > 0 else np.full(len(share), 1 / len(share))
    cuts = np.cumsum(share)[:-1] * n
    cuts = np.minimum(np.rint(cuts) if nearest else np.floor(cuts), n).astype(np.int64)
    return np.diff(cuts, prepend=0, append=n)


def _dealt(labels: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> list[Indices]:
    """Parts in which client k has counts[c, k] random samples of class c."""
    classes, clients = counts.shape
    owner = np.empty(len(labels), np.int64)
    owner[grouped(labels, rng)] = np.repeat(np.tile(np.arange(clients), classes), counts.ravel())
    return parts_of(owner, clients)
