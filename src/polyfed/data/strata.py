"""Choosing and dealing samples class by class: what the long tail, the partitions and the local splits share."""

import itertools

import numpy as np

Indices = np.ndarray  # int64 positions


def grouped(labels: np.ndarray, rng: np.random.Generator) -> Indices:
    """All positions, sorted by label and shuffled within each label."""
    shuffled = rng.permutation(len(labels))
    return shuffled[np.argsort(labels[shuffled], kind="stable")]


def pick(labels: np.ndarray, keep: np.ndarray, rng: np.random.Generator) -> Indices:
    """`keep[c]` random positions of every class c (all of them where it has fewer), in ascending order."""
    order = grouped(labels, rng)
    sizes = np.bincount(labels, minlength=len(keep))
    starts = np.cumsum(sizes) - sizes
    rank = np.arange(len(order)) - np.repeat(starts, sizes)
    return np.sort(order[rank < np.repeat(keep, sizes)])


def parts_of(owner: np.ndarray, clients: int) -> list[Indices]:
    """The positions each client owns, ascending; an owner of -1 is nobody."""
    order = np.argsort(owner, kind="stable")
    bounds = np.searchsorted(owner[order], np.arange(clients + 1))
    return [order[start:end] for start, end in itertools.pairwise(bounds)]


def shares(total: int, weights: np.ndarray, room: np.ndarray) -> np.ndarray:
    """`total` things divided in proportion to integer weights by largest remainder, never beyond the room."""
    weights = weights.astype(np.int64)
    whole = max(int(weights.sum()), 1)
    given = np.minimum(total * weights // whole, room)
    order = np.argsort(-(total * weights % whole), kind="stable")
    left = min(total, int(room.sum())) - int(given.sum())
    while left > 0:
        open_ones = order[given[order] < room[order]][:left]
        given[open_ones] += 1
        left -= len(open_ones)
    return given


def hold_out(labels: np.ndarray, count: int, rng: np.random.Generator) -> tuple[Indices, Indices]:
    """Positions kept and held out: `count` of them, stratified, no class losing its last kept sample if avoidable."""
    sizes = np.bincount(labels)
    room = np.maximum(sizes - 1, 0)
    gentle = min(count, int(room.sum()))
    take = shares(gentle, np.where(room > 0, sizes, 0), room)
    if count > gentle:  # say, two samples of two classes and one of them must be tested
        take = take + shares(count - gentle, sizes - take, sizes - take)
    held = pick(labels, take, rng)
    return np.setdiff1d(np.arange(len(labels)), held, assume_unique=True), held


def deal(labels: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> list[Indices]:
    """Deal every class to the clients in proportion to counts[client, class]; a class nobody has stays undealt."""
    clients, classes = counts.shape
    sizes = np.bincount(labels, minlength=classes)
    owner = np.full(len(labels), -1)
    order, start = grouped(labels, rng), 0
    for c, size in enumerate(sizes):
        if size and counts[:, c].any():
            given = shares(int(size), counts[:, c], np.full(clients, size))
            owner[order[start : start + size]] = np.repeat(np.arange(clients), given)
        start += int(size)
    return parts_of(owner, clients)
