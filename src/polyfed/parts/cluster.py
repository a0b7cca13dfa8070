"""Grouping clients by their updates: cosines, and k-means on similarities as in ACMU (MuPFL 3.4)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from polyfed.parts.average import average, shares
from polyfed.parts.chunks import in_chunks, ranges
from polyfed.parts.k_means import k_means, silhouette

PAIRED = 64  # rows whose products are taken together: of 100 rows a quarter of the pairs is then saved
CHUNKS = 16  # chunks of the columns of a Gram matrix, which are summed separately
SHORTEST = 1e-37  # the length of the shortest update that has a direction in float32
ALIKE = 1e-6  # updates whose distance is not above this differ only by rounding in float32


def cosines(rows: Sequence[Tensor] | Tensor, less: Sequence[Tensor] | None = None) -> Tensor:
    """The cosine of every pair of rows, or of rows minus the rows `less`; a zero row has cosine 0, with itself, too."""

    def length(i: int) -> float:
        return float(torch.linalg.vector_norm(rows[i] if less is None else rows[i] - less[i], dtype=torch.double))

    found = torch.tensor(in_chunks(length, range(len(rows))), dtype=torch.double)
    products = inner_products(rows, less=less, times=found.clamp(min=SHORTEST).reciprocal().float())
    lengths = products.diag().sqrt().clamp(min=torch.finfo(torch.float64).tiny)
    return products / lengths[:, None] / lengths


def inner_products(
    rows: Sequence[Tensor] | Tensor,
    centred: bool = False,
    side: int = 1 << 13,
    less: Sequence[Tensor] | None = None,
    times: Tensor | None = None,
) -> Tensor:
    """The Gram matrix of the rows, or of rows minus the rows `less`, each times a factor, without copying them all.

    Some columns are taken at a time, and only the pairs above the diagonal. Cores share the columns. Products are
    taken in floats, which are exact enough for so few columns, and added up in doubles.
    """
    common = less is not None and all(each is less[0] for each in less)

    def over(columns: slice) -> Tensor:
        found = torch.zeros(len(rows), len(rows), dtype=torch.double)
        room = torch.empty(len(rows) * side)  # reused: fresh memory costs as much as copying
        for start in range(columns.start, columns.stop, side):
            here = slice(start, min(start + side, columns.stop))
            some = room[: len(rows) * (here.stop - here.start)].view(len(rows), -1)
            torch.stack([row[here] for row in rows], out=some)
            if less is not None:
                some -= less[0][here] if common else torch.stack([row[here] for row in less])
            if times is not None:
                some *= times[:, None]
            if centred:
                some -= some.mean(0)
            for i in range(0, len(rows), PAIRED):
                found[i : i + PAIRED, i:] += some[i : i + PAIRED] @ some[i:].T
        return found

    total, *others = in_chunks(over, ranges(len(rows[0]), side, CHUNKS))
    for found in others:
        total += found
    return total.triu() + total.triu(1).T


def similarity(updates: Tensor, maps: Tensor | None, alpha: float) -> Tensor:
    """Eq. 8, from cosines: alpha cos(dw_i, dw_j) + (1 - alpha) cos(M_i, M_j); without maps only the updates count."""
    return updates if maps is None else alpha * updates + (1 - alpha) * maps


def spread(cosines: Tensor) -> list[float]:
    """Smallest, mean, largest and standard deviation of the cosines of different clients; empty for a single client."""
    apart = cosines[tuple(torch.triu_indices(len(cosines), len(cosines), 1))]
    return torch.stack([apart.min(), apart.mean(), apart.max(), apart.std(correction=0)]).tolist() if len(apart) else []


def embedding(gram: Tensor) -> np.ndarray:
    """Points X with |X_i - X_j|^2 = 2 d(i, j), d = 1 - sim: k-means on them is k-means under the paper's distance."""
    values, vectors = torch.linalg.eigh((gram + gram.T) / 2)
    return (vectors * values.clamp(min=0).sqrt()).numpy()


def plane(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Rows as points on their first two principal components, and the share of the variance each of the two has."""
    values, vectors = torch.linalg.eigh(inner_products(rows, centred=True))
    lengths, places = values.clamp(min=0).flip(0), vectors.flip(1)[:, :2]
    # signs are chosen so that the farthest point is on the positive side
    farthest = places.gather(0, places.abs().argmax(0, keepdim=True))
    total = lengths.sum().clamp(min=torch.finfo(torch.double).tiny)
    return places * farthest.sign() * lengths[:2].sqrt(), lengths[:2] / total


@dataclass
class Labelled:
    """A group label for every client."""

    labels: list[int]

    @property
    def kappa(self) -> int:
        """How many groups there are."""
        return len(set(self.labels))

    def members(self) -> list[list[int]]:
        """The positions of the members of each group."""
        return [[i for i, label in enumerate(self.labels) if label == one] for one in sorted(set(self.labels))]


@dataclass
class Grouping(Labelled):
    """Groups by k-means, and how good each number of them was."""

    scores: dict[int, float] = field(default_factory=dict)  # S_k by number of clusters tried


def group_adaptively(gram: Tensor, least: int, most: int, seed: int) -> Grouping:
    """Eqs. 9-13: the number of clusters with the best silhouette; one where nothing separates."""
    count = len(gram)
    distances = (1 - gram).clamp(min=0).fill_diagonal_(0)
    scores: dict[int, float] = {}
    found = {0: [0] * count}
    if count > 2 and distances.max() > ALIKE:
        points = embedding(gram)
        for k in range(least, min(most, count - 1) + 1):
            labels = k_means(points, k, seed)
            if 1 < len(set(labels)) < count:
                found[k], scores[k] = labels, silhouette(distances, labels)
    # one cluster scores 0: a grouping with a lower silhouette separates nothing
    best = max(found, key=lambda k: (scores.get(k, 0.0), -k))
    return Grouping(found[best], scores)


def group_fixed(points: np.ndarray, k: int, seed: int) -> Grouping:
    """Group the points into k clusters, or into one fewer than there are points, if that is fewer."""
    k = min(k, max(len(points) - 1, 1))
    return Grouping(k_means(points, k, seed) if k > 1 else [0] * len(points))


def group(
    gram: Tensor, points: np.ndarray, kappa: int | Literal["adaptive"], least: int, most: int, seed: int
) -> Grouping:
    """Group the points into `kappa` clusters, or into as many as give the best silhouette of the similarities."""
    return group_adaptively(gram, least, most, seed) if kappa == "adaptive" else group_fixed(points, kappa, seed)


def cluster_update(starts: Sequence[Tensor], trained: Sequence[Tensor], grouping: Grouping) -> list[Tensor]:
    """Eq. 14: every model moves from its start by the mean update of its cluster, instead of its own.

    Members of a cluster that started from the same tensor share the result.
    """
    moved = list(starts)
    for members in grouping.members():
        mine = [moved[i] for i in members]
        mean = average([trained[i] for i in members], shares([1] * len(members), "uniform"), less=mine)
        made: dict[int, Tensor] = {}
        for i, start in zip(members, mine, strict=True):
            if id(start) not in made:
                made[id(start)] = start + mean
            moved[i] = made[id(start)]
    return moved
