"""Robust averages as pure functions: rules that weigh rows by their Gram matrix, and rules on blocks of coordinates.

Rows are models (or slices of one) as vectors of equal length, in the order of client ids. A tie is won by the row that
comes first. A weighing rule turns the n x n Gram matrix into n weights, so that nothing as large as the n rows is made.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from polyfed.parts.average import average
from polyfed.parts.chunks import in_chunks, ranges

Array = np.ndarray
BLOCK = 1 << 14  # coordinates that are sorted together: a block of 50 rows stays in the cache
FITTED = 2000  # coordinates to which IRLS fits lines together
STEPS = 100  # the most steps of Weiszfeld's algorithm
STILL = 1e-9  # it has converged when no weight moves by more than this


# ---- distances and rows nearest to each other


def distances(gram: Array) -> Array:
    """The squared distance of every pair of rows, from their Gram matrix."""
    lengths = gram.diagonal()
    found = np.maximum(lengths[:, None] + lengths - 2 * gram, 0.0)
    np.fill_diagonal(found, 0.0)
    return found


def nearest_neighbours(gram: Array, f: int) -> Array:
    """NNM (Allouah et al. 2023): the matrix M whose row i averages the n - f rows nearest row i, itself included."""
    n = len(gram)
    order = np.argsort(distances(gram), axis=1, kind="stable")[:, : n - f]
    mix = np.zeros((n, n))
    np.put_along_axis(mix, order, 1 / (n - f), axis=1)
    return mix


# ---- rules that weigh rows


def krum_scores(gram: Array, neighbours: int) -> Array:
    """The sum of the squared distances of each row to its `neighbours` nearest rows (Blanchard et al. 2017)."""
    others = np.sort(distances(gram) + np.diag(np.full(len(gram), np.inf)), axis=1)
    return others[:, :neighbours].sum(1)


def krum(gram: Array, f: int) -> Array:
    """All the weight for the row with the smallest score over n - f - 2 neighbours."""
    return multi_krum(gram, f, 1)


def multi_krum(gram: Array, f: int, m: int) -> Array:
    """Equal weights for the m rows with the smallest scores."""
    order = np.argsort(krum_scores(gram, len(gram) - f - 2), kind="stable")
    return share_among(order[:m].tolist(), np.ones(len(gram)))


def bulyan_choice(gram: Array, f: int) -> list[int]:
    """The n - 2f rows that Krum chooses one after the other, each time among those left (El Mhamdi et al. 2018)."""
    left, chosen = list(range(len(gram))), []
    for _ in range(len(gram) - 2 * f):
        scores = krum_scores(gram[np.ix_(left, left)], max(1, len(left) - f - 2))
        chosen.append(left.pop(int(np.argmin(scores))))
    return sorted(chosen)


def geometric_median(gram: Array, p: Array, nu: float = 1e-6) -> Array:
    """Weights of the point with the least weighted sum of distances to the rows (Weiszfeld; Pillutla et al. 2022)."""
    a = p / p.sum()
    for _ in range(STEPS):
        squares = gram.diagonal() - 2 * gram @ a + a @ gram @ a
        moved = p / np.maximum(np.sqrt(np.maximum(squares, 0)), nu)
        moved /= moved.sum()
        arrived = np.abs(moved - a).max() <= STILL
        a = moved
        if arrived:
            break
    return a


def clipped(lengths: Array, tau: float) -> Array:
    """The factor that shortens each length to tau, where it is longer."""
    return np.minimum(1.0, np.divide(tau, lengths, out=np.ones_like(lengths), where=lengths > 0))


def limit_of(tau: float | str, lengths: Array) -> float:
    """The number, or the median of the lengths."""
    return float(np.median(lengths)) if isinstance(tau, str) else tau


def norm_clip(gram: Array, p: Array, tau: float | str) -> Array:
    """Weights of updates, each of which is no longer than tau once it is shortened."""
    lengths = np.sqrt(gram.diagonal())
    return p * clipped(lengths, limit_of(tau, lengths))


def centred_clipping(gram: Array, p: Array, tau: float | str, steps: int) -> Array:
    """Coefficients of the centre v (Karimireddy et al. 2021); the first belongs to the centre it starts from.

    The Gram matrix is of the starting centre and the updates, in this order.
    """
    n = len(gram) - 1
    v = np.eye(n + 1)[0]
    for _ in range(steps):
        apart = np.hstack([np.zeros((n, 1)), np.eye(n)]) - v
        lengths = np.sqrt(np.maximum(np.einsum("ki,ij,kj->k", apart, gram, apart), 0.0))
        v = v + (p * clipped(lengths, limit_of(tau, lengths))) @ apart
    return v


def trust(products: Array, lengths: Array, own: float) -> Array:
    """t_k of FLTrust (Cao et al. 2021): the cosine of each update and the server's own, and 0 below 0."""
    sizes = lengths * own
    return np.maximum(np.divide(products, sizes, out=np.zeros_like(products), where=sizes > 0), 0.0)


def outlying(columns: Array, drop: int) -> list[int]:
    """The rows with the largest squared projections on the top direction of the centred columns (DnC)."""
    apart = columns.astype(np.float64) - columns.mean(0, dtype=np.float64)
    values, vectors = np.linalg.eigh(apart @ apart.T)
    return np.argsort(-values[-1] * vectors[:, -1] ** 2, kind="stable")[:drop].tolist()


def share_among(chosen: Sequence[int], p: Array) -> Array:
    """The weights p of some of the rows, so that they add up to 1; 0 for the others."""
    weights = np.zeros(len(p))
    weights[list(chosen)] = p[list(chosen)]
    return weights / weights.sum()


def weighted(rows: Sequence[Tensor], weights: Array) -> Tensor:
    """The weighted mean, computed relative to the row that weighs most, so that equal rows give exactly that row."""
    anchor = rows[int(np.argmax(weights))]
    return average(rows, torch.from_numpy(weights), [anchor] * len(rows)).add_(anchor)


# ---- rules on blocks of coordinates


def by_blocks(rows: Sequence[Tensor], rule: Callable[[Array], Array], mix: Array | None = None) -> Tensor:
    """A rule on columns [n, b] over all coordinates, on all cores; with `mix`, on mixed rows."""
    made = torch.empty_like(rows[0])

    def over(here: slice) -> None:
        columns = np.stack([row[here].numpy() for row in rows])
        made[here] = torch.from_numpy(rule(columns if mix is None else mix @ columns)).to(made.dtype)

    in_chunks(over, ranges(len(made), BLOCK, len(made)))
    return made


def median(columns: Array) -> Array:
    """The median of every column; of an even number of values, the mean of the two in the middle."""
    n, ordered = len(columns), np.sort(columns, axis=0)
    return (ordered[(n - 1) // 2].astype(np.float64) + ordered[n // 2]) / 2


def trimmed_mean(columns: Array, f: int) -> Array:
    """The mean of every column without its f smallest and its f largest values (Yin et al. 2018)."""
    return np.sort(columns, axis=0)[f : len(columns) - f].mean(0, dtype=np.float64)


def nearest_median(columns: Array, f: int) -> Array:
    """Bulyan's second stage: the mean of the n - 2f values of a column that are nearest its median."""
    ordered = np.sort(columns, axis=0).astype(np.float64)
    width = len(columns) - 2 * f
    apart = np.abs(ordered - median(columns))
    sums = np.stack([apart[s : s + width].sum(0) for s in range(2 * f + 1)])
    means = np.stack([ordered[s : s + width].mean(0) for s in range(2 * f + 1)])
    return np.take_along_axis(means, np.argmin(sums, axis=0)[None], axis=0)[0]


# ---- IRLS


def irls(rows: Sequence[Tensor], scored: int, lam: float = 2.0, mix: Array | None = None) -> tuple[Tensor, Array]:
    """Fu et al. 2019: lines fitted to sorted values; far values move onto the line, and their rows weigh less.

    Gives the mean and the weights of the rows, which follow from the first `scored` coordinates.
    """
    length, n = len(rows[0]), len(rows)
    lines = np.empty((2, length))  # slope and intercept of each coordinate: they cost the most

    def columns(here: slice) -> Array:
        found = np.stack([row[here].numpy() for row in rows]).astype(np.float64)
        return found if mix is None else mix @ found

    def score(here: slice) -> Array:
        y = columns(here)
        lines[:, here] = _repeated_median(np.sort(y, axis=0))
        trusted, _ = _confidence(y, lines[:, here], lam)
        counted = np.arange(here.start, here.stop) < scored
        return (trusted * trusted.std(0, ddof=1))[:, counted].sum(1)

    pieces = ranges(length, FITTED, length)
    scores = np.sum(in_chunks(score, pieces), axis=0)
    weights = np.ones(n) if scores.max() <= 0 else (scores / scores.max()) ** 2
    weights /= weights.sum()
    made = torch.empty_like(rows[0])

    def correct(here: slice) -> None:
        y = columns(here)
        trusted, fitted = _confidence(y, lines[:, here], lam)
        made[here] = torch.from_numpy(weights @ np.where(trusted < 0.1, fitted, y)).to(made.dtype)

    in_chunks(correct, pieces)
    return made, weights


def _repeated_median(ordered: Array) -> Array:
    """Slope and intercept of a line through sorted values against their ranks; the line passes both medians."""
    n = len(ordered)
    ranks = np.arange(n, dtype=np.float64)
    slopes = np.empty_like(ordered)
    for i in range(n):
        others = np.delete(ordered, i, axis=0) - ordered[i]
        slopes[i] = np.median(others / (np.delete(ranks, i) - i)[:, None], axis=0, overwrite_input=True)
    slope = np.median(slopes, axis=0)
    return np.stack([slope, np.median(ordered, axis=0) - slope * (n - 1) / 2])


def _confidence(y: Array, line: Array, lam: float) -> tuple[Array, Array]:
    """omega of every value, and the value that the line has in its place."""
    n = len(y)
    ranks = np.empty(y.shape)
    np.put_along_axis(ranks, np.argsort(y, axis=0, kind="stable"), np.arange(n, dtype=float)[:, None], axis=0)
    fitted = line[1] + line[0] * ranks
    residuals = y - fitted
    scale = 1.4826 * (1 + 5 / (n - 1)) * np.median(np.sort(np.abs(residuals), axis=0)[1:], axis=0) + 1e-7
    e = residuals / scale
    leverage = 1 / n + (ranks - (n - 1) / 2) ** 2 / ((n**3 - n) / 12)
    root, kappa = np.sqrt(1 - leverage), lam * np.sqrt(2 / n)
    with np.errstate(divide="ignore", invalid="ignore"):
        trusted = root / e * np.clip(e / root, -kappa, kappa)
    return np.where(np.isnan(trusted), 1.0, trusted), fitted
