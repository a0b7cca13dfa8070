"""Grouping clients: ACMU's adaptive k-means on cosine similarities, and DistFL's threshold on divergences."""

import math
import warnings
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor


def cosines(rows: Tensor) -> Tensor:
    """Cosine of every pair of rows; 0 with a zero row."""
    lengths = rows.norm(dim=1, keepdim=True)
    unit = torch.where(lengths > 0, rows / lengths.clamp(min=torch.finfo(rows.dtype).tiny), torch.zeros_like(rows))
    return unit @ unit.T


def similarity(updates: Tensor, maps: Tensor | None, alpha: float) -> Tensor:
    """Eq. 8: alpha cos(dw_i, dw_j) + (1 - alpha) cos(M_i, M_j); without maps only the updates count."""
    if maps is None:
        return cosines(updates.double())
    return alpha * cosines(updates.double()) + (1 - alpha) * cosines(maps.double())


def embedding(gram: Tensor) -> np.ndarray:
    """Points X with |X_i - X_j|^2 = 2 d(i, j), d = 1 - sim: k-means on them is k-means under the paper's distance."""
    values, vectors = torch.linalg.eigh((gram + gram.T) / 2)
    return (vectors * values.clamp(min=0).sqrt()).numpy()


@dataclass
class Grouping:
    """Who belongs together, and how it was found."""

    labels: list[int]
    scores: dict[int, float] = field(default_factory=dict)  # silhouette by number of clusters

    @property
    def kappa(self) -> int:
        """How many groups there are."""
        return len(set(self.labels))

    def members(self) -> list[list[int]]:
        """Positions by group."""
        return [[i for i, label in enumerate(self.labels) if label == one] for one in sorted(set(self.labels))]


def k_means(points: np.ndarray, k: int, seed: int) -> list[int]:
    """Labels of k-means++ with ten restarts; equal points cannot fill k groups, then there are fewer."""
    from sklearn.cluster import KMeans

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fewer distinct points than clusters is handled here
        return KMeans(k, n_init=10, random_state=seed).fit(points).labels_.tolist()


def group_adaptively(gram: Tensor, least: int, most: int, seed: int) -> Grouping:
    """Eqs. 9-13: the number of clusters with the best silhouette; one where nothing separates."""
    from sklearn.metrics import silhouette_score

    count = len(gram)
    distances = (1 - gram).clamp(min=0).fill_diagonal_(0).numpy()
    alone = Grouping([0] * count)
    if count <= 2 or distances.max() <= 1e-12:
        return alone
    points, found = embedding(gram), {}
    for k in range(least, min(most, count - 1) + 1):
        labels = k_means(points, k, seed)
        if 1 < len(set(labels)) < count:
            alone.scores[k] = float(silhouette_score(distances, labels, metric="precomputed"))
            found[k] = labels
    best = max(found, key=lambda k: (alone.scores[k], -k), default=None)
    if best is None or alone.scores[best] <= 0:
        return alone
    return Grouping(found[best], alone.scores)


def group_fixed(points: np.ndarray, k: int, seed: int) -> Grouping:
    """Exactly k clusters, or as many as fewer points allow."""
    k = min(k, max(len(points) - 1, 1))
    return Grouping(k_means(points, k, seed) if k > 1 else [0] * len(points))


# ---- DistFL


def divergences(responses: Tensor) -> Tensor:
    """SIM[p, q]: mean over inputs of KL(P_p || P_q), symmetrised; responses are probabilities [N, z, C]."""
    log = responses.log()
    own = (responses * log).sum((1, 2))
    cross = responses.flatten(1) @ log.flatten(1).T
    each = (own[:, None] - cross) / responses.shape[1]
    return ((each + each.T) / 2).fill_diagonal_(0)


@dataclass
class Threshold:
    """Where similar ends; infinite for a single cluster."""

    value: float
    gap: float = 0.0
    second: float = 0.0
    warning: str = ""


def automatic_threshold(sim: Tensor, min_log_gap: float) -> Threshold:
    """The widest gap between sorted log-divergences that leaves everybody a partner and can isolate one client."""
    count = len(sim)
    pairs = sim[tuple(torch.triu_indices(count, count, 1))].clamp(min=1e-12).log().sort().values
    first, last = math.ceil(count / 2), len(pairs) - (count - 1)  # values below and above the cut
    gaps = [(float(pairs[i] - pairs[i - 1]), i) for i in range(first, last + 1) if 0 < i < len(pairs)]
    gaps.sort(reverse=True)
    if gaps and gaps[0][0] >= min_log_gap:
        at = gaps[0][1]
        middle = math.exp(float(pairs[at - 1] + pairs[at]) / 2)
        return Threshold(middle, gaps[0][0], gaps[1][0] if len(gaps) > 1 else 0.0)
    spread = math.exp(float(pairs[-1] - pairs[0])) if len(pairs) else 1.0
    text = f"no gap between divergences, one cluster, though they differ {spread:.0f}-fold" if spread > 10 else ""
    return Threshold(math.inf, gaps[0][0] if gaps else 0.0, gaps[1][0] if len(gaps) > 1 else 0.0, text)


def link(sim: Tensor, threshold: float, greedy: bool) -> list[int]:
    """Groups of those closer than the threshold: connected components, or the paper's greedy pass."""
    near = sim < threshold
    labels = [-1] * len(sim)
    for i in range(len(sim)):
        if labels[i] >= 0:
            continue
        group = [j for j in range(len(sim)) if labels[j] < 0 and (j == i or near[i, j])] if greedy else _reach(near, i)
        for j in group:
            labels[j] = i
    names = {label: n for n, label in enumerate(sorted(set(labels)))}
    return [names[label] for label in labels]


def _reach(near: Tensor, start: int) -> list[int]:
    found, edge = {start}, [start]
    while edge:
        new = set(torch.nonzero(near[edge].any(0)).flatten().tolist()) - found
        found |= new
        edge = sorted(new)
    return sorted(found)
