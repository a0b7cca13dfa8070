"""Grouping clients: ACMU's k-means on similarities, DistFL's threshold on divergences, and who has which model."""

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from polyfed.message import State
from polyfed.params import Params
from polyfed.parts.average import average, shares

PAIRED = 128  # rows whose products are taken together

# ---- ACMU (MuPFL 3.4)


def cosines(rows: Sequence[Tensor] | Tensor) -> Tensor:
    """Cosine of every pair of rows; 0 with a zero row, its own too."""
    products = inner_products(rows)
    lengths = products.diag().sqrt().clamp(min=torch.finfo(torch.float64).tiny)
    return products / lengths[:, None] / lengths


def inner_products(rows: Sequence[Tensor] | Tensor, centred: bool = False, side: int = 1 << 12) -> Tensor:
    """The Gram matrix in doubles: some columns at a time, and only the pairs above the diagonal."""
    found = torch.zeros(len(rows), len(rows), dtype=torch.double)
    room = torch.empty(len(rows), side, dtype=torch.double)  # reused: fresh memory costs as much as copying
    for start in range(0, len(rows[0]), side):
        some = room[:, : len(rows[0]) - start]
        for here, row in zip(some, rows, strict=True):
            here.copy_(row[start : start + side])
        if centred:
            some -= some.mean(0)
        for i in range(0, len(rows), PAIRED):
            found[i : i + PAIRED, i:].addmm_(some[i : i + PAIRED], some[i:].T)
    return found.triu() + found.triu(1).T


def similarity(updates: Sequence[Tensor] | Tensor, maps: Tensor | None, alpha: float) -> Tensor:
    """Eq. 8: alpha cos(dw_i, dw_j) + (1 - alpha) cos(M_i, M_j); without maps only the updates count."""
    return cosines(updates) if maps is None else alpha * cosines(updates) + (1 - alpha) * cosines(maps)


def embedding(gram: Tensor) -> np.ndarray:
    """Points X with |X_i - X_j|^2 = 2 d(i, j), d = 1 - sim: k-means on them is k-means under the paper's distance."""
    values, vectors = torch.linalg.eigh((gram + gram.T) / 2)
    return (vectors * values.clamp(min=0).sqrt()).numpy()


def plane(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Rows as points on their first two principal components, and the share of the variance each of the two has."""
    values, vectors = torch.linalg.eigh(inner_products(rows, centred=True))
    lengths, places = values.clamp(min=0).flip(0), vectors.flip(1)[:, :2]
    farthest = places.gather(0, places.abs().argmax(0, keepdim=True))  # its side is the positive one
    total = lengths.sum().clamp(min=torch.finfo(torch.double).tiny)
    return places * farthest.sign() * lengths[:2].sqrt(), lengths[:2] / total


@dataclass
class Labelled:
    """Who belongs together."""

    labels: list[int]

    @property
    def kappa(self) -> int:
        """How many groups there are."""
        return len(set(self.labels))

    def members(self) -> list[list[int]]:
        """Positions by group."""
        return [[i for i, label in enumerate(self.labels) if label == one] for one in sorted(set(self.labels))]


@dataclass
class Grouping(Labelled):
    """Groups by k-means, and how good each number of them was."""

    scores: dict[int, float] = field(default_factory=dict)  # S_k by number of clusters tried


def k_means(points: np.ndarray, k: int, seed: int) -> list[int]:
    """Labels of k-means++ with ten restarts; equal points cannot fill k groups, then there are fewer."""
    from sklearn.cluster import KMeans

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fewer distinct points than clusters is handled here
        return KMeans(k, n_init=10, random_state=seed % 2**32).fit(points).labels_.tolist()


def group_adaptively(gram: Tensor, least: int, most: int, seed: int) -> Grouping:
    """Eqs. 9-13: the number of clusters with the best silhouette; one where nothing separates."""
    from sklearn.metrics import silhouette_score

    count = len(gram)
    distances = (1 - gram).clamp(min=0).fill_diagonal_(0).numpy()
    scores: dict[int, float] = {}
    found = {0: [0] * count}
    if count > 2 and distances.max() > 1e-12:
        points = embedding(gram)
        for k in range(least, min(most, count - 1) + 1):
            labels = k_means(points, k, seed)
            if 1 < len(set(labels)) < count:
                found[k], scores[k] = labels, float(silhouette_score(distances, labels, metric="precomputed"))
    best = max(found, key=lambda k: (scores.get(k, 0.0), -k))  # one cluster counts 0: who is worse separates nothing
    return Grouping(found[best], scores)


def group_fixed(points: np.ndarray, k: int, seed: int) -> Grouping:
    """Exactly k clusters, or one less than there are points where that is fewer."""
    k = min(k, max(len(points) - 1, 1))
    return Grouping(k_means(points, k, seed) if k > 1 else [0] * len(points))


def group(
    gram: Tensor, points: np.ndarray, kappa: int | Literal["adaptive"], least: int, most: int, seed: int
) -> Grouping:
    """A number of clusters of the points, or the number that the silhouette of the similarities likes best."""
    return group_adaptively(gram, least, most, seed) if kappa == "adaptive" else group_fixed(points, kappa, seed)


def cluster_update(starts: Sequence[Tensor], updates: Sequence[Tensor], grouping: Grouping) -> list[Tensor]:
    """Eq. 14: every model moves by the mean update of its cluster, instead of its own."""
    moved = list(starts)
    for members in grouping.members():
        mean = average([updates[i] for i in members], shares([1] * len(members), "uniform"))
        for i in members:
            moved[i] = starts[i] + mean
    return moved


# ---- DistFL (4.3)


def proportionate(lengths: Sequence[float], gate: float) -> list[bool]:
    """Which of these are at most so many medians long."""
    limit = gate * sorted(lengths)[(len(lengths) - 1) // 2]
    return [length <= limit for length in lengths]


def divergences(responses: Tensor) -> Tensor:
    """Eq. 6: SIM[p, q], mean over inputs of KL(P_p || P_q), symmetrised; responses are probabilities [N, z, C]."""
    log = responses.log()
    own = (responses * log).sum((1, 2))
    cross = responses.flatten(1) @ log.flatten(1).T
    each = (own[:, None] - cross) / responses.shape[1]
    return ((each + each.T) / 2).clamp(min=0).fill_diagonal_(0)


@dataclass
class Threshold:
    """Where similar ends; infinite for a single cluster."""

    value: float
    gap: float = 0.0
    second: float = 0.0
    spread: float = 1.0  # largest over smallest divergence


def automatic_threshold(sim: Tensor, min_log_gap: float) -> Threshold:
    """The widest gap between sorted log-divergences that leaves everybody a partner and can isolate one client."""
    count = len(sim)
    if count < 2:
        return Threshold(math.inf)
    pairs = sim[tuple(torch.triu_indices(count, count, 1))].clamp(min=1e-12).log().sort().values
    least, most = math.ceil(count / 2), len(pairs) - (count - 1)  # how many values may lie below the cut
    gaps = sorted(((float(pairs[i] - pairs[i - 1]), i) for i in range(least, most + 1)), reverse=True)
    (gap, at), (second, _) = (*gaps, (0.0, 0), (0.0, 0))[:2]
    spread = math.exp(float(pairs[-1] - pairs[0]))
    wide = at > 0 and gap >= min_log_gap
    return Threshold(math.exp(float(pairs[at - 1] + pairs[at]) / 2) if wide else math.inf, gap, second, spread)


def link(sim: Tensor, threshold: float, greedy: bool) -> list[int]:
    """Groups of those closer than the threshold: connected components, or the paper's greedy pass."""
    near = sim < threshold
    labels = [-1] * len(sim)
    for i in range(len(sim)):
        if labels[i] < 0:
            number = max(labels) + 1
            for j in near[i].nonzero().flatten().tolist() if greedy else _reach(near, i):
                labels[j] = number if labels[j] < 0 else labels[j]
            labels[i] = number
    return labels


def _reach(near: Tensor, start: int) -> list[int]:
    found, edge = {start}, [start]
    while edge:
        edge = sorted(set(near[edge].any(0).nonzero().flatten().tolist()) - found)
        found.update(edge)
    return sorted(found)


@dataclass
class Partition(Labelled):
    """Groups by divergence, where the line was drawn, and what to say about it."""

    threshold: Threshold

    @property
    def doubtful(self) -> bool:
        """Whether all are together for want of a wide gap, though their divergences differ."""
        return self.threshold.value == math.inf and self.threshold.spread > 10

    def lines(self) -> list[str]:
        """For the log."""
        limit = self.threshold
        said = [f"{self.kappa} clusters; threshold {limit.value:.3g}, log-gap {limit.gap:.2f}, next {limit.second:.2f}"]
        if self.doubtful:
            said.append(f"one cluster, though divergences differ {limit.spread:.0f}-fold: no gap between them is wide")
        if self.kappa == len(self.labels) > 1:
            said.append("every client is a cluster of its own: this is local training")
        return said


def partition(
    sim: Tensor, threshold: float | Literal["auto"], min_log_gap: float, linkage: Literal["components", "greedy"]
) -> Partition:
    """The clusters of a matrix of divergences."""
    limit = automatic_threshold(sim, min_log_gap)
    if threshold != "auto":
        limit = replace(limit, value=threshold)
    return Partition(link(sim, limit.value, linkage == "greedy"), limit)


# ---- who has which model


class Clusters:
    """Which client is given which model, kept in the server's state. `placed` is who was there when it was decided."""

    def __init__(self, state: State):
        self.state = state

    @staticmethod
    def begin(state: State, params: Params, clients: int) -> None:
        """One cluster, everybody's."""
        state.model_0, state.opened = params, 1
        state.assigned = torch.zeros(clients, dtype=torch.int64)
        state.placed = torch.ones(clients, dtype=torch.int64)
        state.partition = torch.full((clients,), -1)  # as it was found last; -1 for who was absent
        state.clustered = state.stable = 0

    def of(self, client: int) -> int:
        """The number of a client's cluster."""
        return int(self.state.assigned[client])

    def model(self, client: int) -> Params:
        """The model a client is given."""
        return self[self.of(client)]

    def __getitem__(self, number: int) -> Params:
        return self.state[f"model_{number}"]

    def __setitem__(self, number: int, params: Params) -> None:
        self.state[f"model_{number}"] = params

    def known(self) -> list[int]:
        """The clusters somebody was placed in."""
        return sorted({int(g) for g in self.state.assigned[self.state.placed == 1]})

    def place(self, client: int, number: int) -> None:
        """Put a client into a cluster."""
        self.state.assigned[client], self.state.placed[client] = number, 1

    def open(self, clients: Iterable[int], params: Params) -> None:
        """A new cluster, which starts with this model."""
        number = self.state.opened
        self[number], self.state.opened = params, number + 1
        for client in clients:
            self.place(client, number)

    def quarantine(self, client: int) -> None:
        """Leave a client alone with the model it had, until it can be placed."""
        self.open([client], self.model(client))
        self.state.placed[client] = 0

    def regroup(self, groups: Sequence[Sequence[int]]) -> None:
        """These groups from now on; who is in none keeps what it has until it can be placed.

        A group that alone comes from an old cluster goes on as that cluster: its absent members stay with it.
        """
        self.state.placed = torch.zeros_like(self.state.placed)
        came = [{self.of(client) for client in group} for group in groups]
        for group, before in zip(groups, came, strict=True):
            if len(before) == 1 and sum(bool(before & other) for other in came) == 1:
                for client in group:
                    self.place(client, *before)
            else:
                self.open(group, self.model(group[0]))

    def settle(self, clients: Sequence[int], found: Partition) -> None:
        """Take up a partition of these clients; it is stable when it is the one before and not for want of a gap."""
        self.regroup([[clients[i] for i in members] for members in found.members()])
        now = torch.full_like(self.state.partition, -1)
        now[list(clients)] = torch.tensor(found.labels)
        self.state.stable = int(torch.equal(now, self.state.partition) and not found.doubtful)
        self.state.partition, self.state.threshold, self.state.clustered = now, found.threshold.value, 1

    def forget(self) -> list[int]:
        """Drop the models nobody is given; the numbers of the others."""
        used = self.state.assigned.unique().tolist()
        for name in [n for n in self.state if n.startswith("model_") and int(n[6:]) not in used]:
            del self.state[name]
        return used
