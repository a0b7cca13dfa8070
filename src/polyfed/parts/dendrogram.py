"""Grouping models by how far their answers diverge, with a dendrogram, as in DistFL (4.3)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from polyfed.message import digest_of
from polyfed.parts.cluster import Labelled

EQUAL = 1e-12  # models whose divergence is not above this differ by rounding alone
FEW, FEW_RATIO = 5, 3.0  # up to FEW clients need a ratio of FEW_RATIO, because chance makes theirs larger
Linkage = Literal["average", "components", "greedy"]
Knowledge = Literal["responses", "bn"]  # what is known of a model: its answers, or the statistics of its BN layers


def proportionate(lengths: Sequence[float], gate: float) -> list[bool]:
    """For each length, whether it is at most `gate` times the median."""
    limit = gate * sorted(lengths)[(len(lengths) - 1) // 2]
    return [length <= limit for length in lengths]


def divergences(responses: Tensor) -> Tensor:
    """Eq. 6: SIM[p, q], mean over inputs of KL(P_p || P_q), symmetrised; responses are probabilities [N, z, C]."""
    log = responses.log()
    own = (responses * log).sum((1, 2))
    cross = responses.flatten(1) @ log.flatten(1).T
    each = (own[:, None] - cross) / responses.shape[1]
    return ((each + each.T) / 2).clamp(min=0).fill_diagonal_(0)


def divergences_from(one: Tensor, others: Tensor) -> Tensor:
    """Eq. 6, symmetrised, of one model's responses [z, C] from each of some others'."""
    return ((one - others) * (one.log() - others.log())).sum((1, 2)) / (2 * len(one))


def gaussian_divergences_from(one: Tensor, others: Tensor) -> Tensor:
    """The symmetric divergence of normal distributions, mean over channels; means and variances [2, channels]."""
    (mean, var), (means, variances) = one, others.unbind(1)
    spread = var / variances + variances / var - 2
    return (spread + (mean - means).square() * (1 / var + 1 / variances)).mean(1) / 4


def gaussian_divergences(statistics: Tensor) -> Tensor:
    """The same between all of them [N, 2, channels]."""
    each = torch.stack([gaussian_divergences_from(one, statistics) for one in statistics])
    return ((each + each.T) / 2).clamp(min=0).fill_diagonal_(0)


MEASURES = {"responses": (divergences, divergences_from), "bn": (gaussian_divergences, gaussian_divergences_from)}


def canonical_order(responses: Tensor) -> list[int]:
    """An order of the models that depends on their responses alone, and not on which client sent them."""
    return sorted(range(len(responses)), key=lambda i: digest_of(responses[i].numpy().tobytes()))


def dendrogram(sim: Tensor, method: Literal["average", "single"] = "average") -> np.ndarray:
    """Scipy's linkage matrix: a row per merger, by height, with the two clusters, the height and the size."""
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    return linkage(squareform(sim.numpy(), checks=False), method) if len(sim) > 1 else np.empty((0, 4))


def height_ratios(heights: Sequence[float]) -> dict[int, float]:
    """r_k = h_{N-k+1} / h_{N-k} for k = 2 .. N/2: how much farther apart k clusters are than their parts.

    There is no r_k where everything in the k clusters is equal: it would be infinite, however near the clusters are.
    """
    count = len(heights) + 1
    steps = {k: (heights[count - k - 1], heights[count - k]) for k in range(2, count // 2 + 1)}
    return {k: above / below for k, (below, above) in steps.items() if below > EQUAL}


def best_first(ratios: dict[int, float]) -> list[int]:
    """Numbers of clusters by falling ratio; of two with the same ratio, the smaller comes first."""
    return sorted(ratios, key=lambda k: (-ratios[k], k))


def automatic_threshold(heights: Sequence[float], min_ratio: float) -> float:
    """The geometric mean of the two heights with the largest ratio; infinite where no ratio is large enough."""
    ratios, count = height_ratios(heights), len(heights) + 1
    needed = max(min_ratio, FEW_RATIO) if count <= FEW else min_ratio
    best = next(iter(best_first(ratios)), 0)
    return math.sqrt(heights[count - best] * heights[count - best - 1]) if ratios.get(best, 0) >= needed else math.inf


def link(sim: Tensor, threshold: float, linkage: Linkage) -> list[int]:
    """Group models closer than the threshold: by mean divergence, by any chain of pairs, or by a greedy pass."""
    if linkage == "greedy":
        return _greedy(sim < threshold)
    from scipy.cluster.hierarchy import fcluster

    tree = dendrogram(sim, "average" if linkage == "average" else "single")
    below = math.nextafter(threshold, 0)  # a pair exactly at the threshold is not linked
    return as_they_come(fcluster(tree, below, "distance").tolist()) if len(tree) else [0] * len(sim)


def _greedy(near: Tensor) -> list[int]:
    """The paper's pass: the first model without a group takes all models near it that have none."""
    labels = [-1] * len(near)
    for i in range(len(near)):
        for j in [i, *near[i].nonzero().flatten().tolist()] if labels[i] < 0 else []:
            labels[j] = i if labels[j] < 0 else labels[j]
    return as_they_come(labels)


def as_they_come(labels: Sequence[int]) -> list[int]:
    """The same groups, numbered from 0 in the order of their first members."""
    numbers = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    return [numbers[label] for label in labels]


@dataclass
class Partition(Labelled):
    """Groups by divergence, with the threshold that separated them and the ratio of every number of clusters."""

    threshold: float
    ratios: dict[int, float] = field(default_factory=dict)  # r_k by number of clusters

    def lines(self) -> list[str]:
        """What the log says about the clusters."""
        sizes = ", ".join(map(str, sorted(map(len, self.members()), reverse=True)))
        said = f"{self.kappa} clusters of {sizes} clients" if self.kappa > 1 else "one cluster: this is FedAvg"
        best = [f"{self.ratios[k]:.2f} at k={k}" for k in best_first(self.ratios)[:2]]
        ratios = f"best ratio {', next '.join(best)}" if best else "too few different models for a ratio"
        lines = [f"{said}; {ratios}; threshold {self.threshold:.3g}"]
        if self.kappa == len(self.labels) > 1:
            lines.append("every client is a cluster of its own: this is local training")
        return lines


def cut(sim: Tensor, threshold: float | Literal["auto"], min_ratio: float, linkage: Linkage) -> Partition:
    """The clusters of a matrix of divergences."""
    heights = dendrogram(sim)[:, 2].tolist()
    limit = automatic_threshold(heights, min_ratio) if threshold == "auto" else threshold
    return Partition(link(sim, limit, linkage), limit, height_ratios(heights))


def partition(
    known: Tensor,
    threshold: float | Literal["auto"],
    min_ratio: float,
    linkage: Linkage,
    knowledge: Knowledge = "responses",
) -> tuple[Partition, Tensor]:
    """The clusters of models by their responses [N, z, C] or statistics, and the divergences they were made from.

    Everything is computed in an order that what is known fixes, so that equal divergences are resolved alike for every
    order of the clients.
    """
    order = canonical_order(known)
    back = np.argsort(order).tolist()
    sim = MEASURES[knowledge][0](known[order])
    found = cut(sim, threshold, min_ratio, linkage)
    return replace(found, labels=as_they_come([found.labels[i] for i in back])), sim[back][:, back]
