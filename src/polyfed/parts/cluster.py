"""Grouping clients: ACMU's k-means on similarities, DistFL's dendrogram of divergences, and who has which model."""

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from polyfed.message import State, digest_of
from polyfed.params import Params
from polyfed.parts.average import average, shares
from polyfed.parts.chunks import in_chunks, ranges

PAIRED = 128  # rows whose products are taken together
CHUNKS = 16  # of the columns of a Gram matrix; each has a sum of its own
EQUAL = 1e-12  # models whose divergence is not above this are the same but for rounding
FEW, FEW_RATIO = 5, 3.0  # so few clients need so large a ratio: by chance theirs are larger
PATIENCE = 5  # one cluster so often in a row ends the search for more
Linkage = Literal["average", "components", "greedy"]

# ---- ACMU (MuPFL 3.4)


def cosines(rows: Sequence[Tensor] | Tensor, less: Sequence[Tensor] | None = None) -> Tensor:
    """Cosine of every pair of rows, or of what they are more than others; 0 with a zero row, its own too."""
    products = inner_products(rows, less=less)
    lengths = products.diag().sqrt().clamp(min=torch.finfo(torch.float64).tiny)
    return products / lengths[:, None] / lengths


def inner_products(
    rows: Sequence[Tensor] | Tensor,
    centred: bool = False,
    side: int = 1 << 12,
    less: Sequence[Tensor] | None = None,
) -> Tensor:
    """The Gram matrix in doubles, of the rows or of the differences from others, without a copy of them all.

    Some columns are taken at a time, and only the pairs above the diagonal. Cores share the columns.
    """

    def over(columns: slice) -> Tensor:
        found = torch.zeros(len(rows), len(rows), dtype=torch.double)
        room = torch.empty(len(rows), side, dtype=torch.double)  # reused: fresh memory costs as much as copying
        for start in range(columns.start, columns.stop, side):
            here = slice(start, min(start + side, columns.stop))
            some = room[:, : here.stop - here.start]
            for i, row in enumerate(rows):
                some[i] = row[here] if less is None else row[here] - less[i][here]
            if centred:
                some -= some.mean(0)
            for i in range(0, len(rows), PAIRED):
                found[i : i + PAIRED, i:].addmm_(some[i : i + PAIRED], some[i:].T)
        return found

    total, *others = in_chunks(over, ranges(len(rows[0]), side, CHUNKS))
    for found in others:
        total += found
    return total.triu() + total.triu(1).T


def similarity(updates: Tensor, maps: Tensor | None, alpha: float) -> Tensor:
    """Eq. 8, from cosines: alpha cos(dw_i, dw_j) + (1 - alpha) cos(M_i, M_j); without maps only the updates count."""
    return updates if maps is None else alpha * updates + (1 - alpha) * maps


def spread(cosines: Tensor) -> list[float]:
    """Smallest, mean, largest and standard deviation of the cosines of different clients; nothing of a single one."""
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


def cluster_update(starts: Sequence[Tensor], trained: Sequence[Tensor], grouping: Grouping) -> list[Tensor]:
    """Eq. 14: every model moves from its start by the mean update of its cluster, instead of its own.

    Members of a cluster that started from one tensor share what they become.
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


def divergences_from(one: Tensor, others: Tensor) -> Tensor:
    """Eq. 6, symmetrised, of one model's responses [z, C] from each of some others'."""
    return ((one - others) * (one.log() - others.log())).sum((1, 2)) / (2 * len(one))


def canonical_order(responses: Tensor) -> list[int]:
    """An order of the models that their responses alone decide, whoever's they are."""
    return sorted(range(len(responses)), key=lambda i: digest_of(responses[i].numpy().tobytes()))


def dendrogram(sim: Tensor, method: Literal["average", "single"] = "average") -> np.ndarray:
    """Scipy's tree of mergers, a row each in order of height: two clusters, the height, the size."""
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    return linkage(squareform(sim.numpy(), checks=False), method) if len(sim) > 1 else np.empty((0, 4))


def height_ratios(heights: Sequence[float]) -> dict[int, float]:
    """r_k = h_{N-k+1} / h_{N-k} for k = 2 .. N/2: how much farther apart k clusters are than what they are made of.

    There is no r_k where everything in the k clusters is equal: it would be infinite, however near the clusters are.
    """
    count = len(heights) + 1
    steps = {k: (heights[count - k - 1], heights[count - k]) for k in range(2, count // 2 + 1)}
    return {k: above / below for k, (below, above) in steps.items() if below > EQUAL}


def best_first(ratios: dict[int, float]) -> list[int]:
    """Numbers of clusters by falling ratio; the smaller of two with the same."""
    return sorted(ratios, key=lambda k: (-ratios[k], k))


def automatic_threshold(heights: Sequence[float], min_ratio: float) -> float:
    """Between the two heights with the largest ratio, as a geometric mean; infinite where no ratio is large enough."""
    ratios, count = height_ratios(heights), len(heights) + 1
    needed = max(min_ratio, FEW_RATIO) if count <= FEW else min_ratio
    best = next(iter(best_first(ratios)), 0)
    return math.sqrt(heights[count - best] * heights[count - best - 1]) if ratios.get(best, 0) >= needed else math.inf


def link(sim: Tensor, threshold: float, linkage: Linkage) -> list[int]:
    """Groups of those closer than the threshold: by mean divergence, by any chain of pairs, or by a greedy pass."""
    if linkage == "greedy":
        return _greedy(sim < threshold)
    from scipy.cluster.hierarchy import fcluster

    tree = dendrogram(sim, "average" if linkage == "average" else "single")
    below = math.nextafter(threshold, 0)  # who is exactly at the threshold is not closer
    return as_they_come(fcluster(tree, below, "distance").tolist()) if len(tree) else [0] * len(sim)


def _greedy(near: Tensor) -> list[int]:
    """The paper's pass: the first model that is left takes everyone near it who is left."""
    labels = [-1] * len(near)
    for i in range(len(near)):
        for j in [i, *near[i].nonzero().flatten().tolist()] if labels[i] < 0 else []:
            labels[j] = i if labels[j] < 0 else labels[j]
    return as_they_come(labels)


def as_they_come(labels: Sequence[int]) -> list[int]:
    """The same groups, numbered from 0 in order of appearance."""
    numbers = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    return [numbers[label] for label in labels]


@dataclass
class Partition(Labelled):
    """Groups by divergence, where the line was drawn, and how clear it was."""

    threshold: float
    ratios: dict[int, float] = field(default_factory=dict)  # r_k by number of clusters

    def lines(self) -> list[str]:
        """For the log."""
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
    responses: Tensor, threshold: float | Literal["auto"], min_ratio: float, linkage: Linkage
) -> tuple[Partition, Tensor]:
    """The clusters of models by their responses [N, z, C], and the divergences they were made from.

    Everything is computed in an order that the responses fix, so that equal divergences are resolved alike for every
    order of the clients.
    """
    order = canonical_order(responses)
    back = np.argsort(order).tolist()
    sim = divergences(responses[order])
    found = cut(sim, threshold, min_ratio, linkage)
    return replace(found, labels=as_they_come([found.labels[i] for i in back])), sim[back][:, back]


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
        state.partition = torch.full((clients,), -1)  # as it was found last; -1 for who was absent, and in one cluster
        state.clustered = state.stable = state.undivided = 0  # the last: one cluster how often in a row

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

    def settle(self, clients: Sequence[int], responses: Tensor, found: Partition) -> None:
        """Take up a partition of these clients and keep their responses, for those who come later."""
        self.regroup([[clients[i] for i in members] for members in found.members()])
        state, now, one = self.state, torch.full_like(self.state.partition, -1), found.kappa == 1
        if not one:
            now[list(clients)] = torch.tensor(found.labels)
        state.undivided = state.undivided + 1 if one else 0
        state.stable = int(state.undivided >= PATIENCE or agree(now, state.partition))
        state.partition, state.threshold, state.clustered = now, found.threshold, 1
        state.responses = responses.new_ones(len(now), *responses.shape[1:])
        state.responses[list(clients)] = responses

    def nearest(self, responses: Tensor) -> int | None:
        """The cluster from whose members these responses diverge least, in the mean; None where that is too much."""
        here = self.state.placed == 1
        apart = divergences_from(responses, self.state.responses[here])
        means = {n: float(apart[self.state.assigned[here] == n].mean()) for n in self.known()}
        near = [n for n in means if means[n] < self.state.threshold]
        return min(near, key=lambda n: means[n], default=None)

    def join(self, client: int, responses: Tensor, params: Params) -> None:
        """Place a client that was absent: in the nearest cluster, or in one of its own that starts with its model."""
        number = self.nearest(responses)
        if number is None:
            self.open([client], params)
        else:
            self.place(client, number)
        self.state.responses[client] = responses

    def forget(self) -> list[int]:
        """Drop the models nobody is given; the numbers of the others."""
        used = self.state.assigned.unique().tolist()
        for name in [n for n in self.state if n.startswith("model_") and int(n[6:]) not in used]:
            del self.state[name]
        return used


def agree(one: Tensor, other: Tensor) -> bool:
    """Whether two partitions group the clients alike that both know (-1: unknown); one such client is no evidence."""
    both = (one >= 0) & (other >= 0)
    one, other = one[both], other[both]
    return len(one) > 1 and torch.equal(one[:, None] == one, other[:, None] == other)
