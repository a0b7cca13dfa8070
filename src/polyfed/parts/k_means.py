"""K-means and its silhouette for the points of a round; scikit-learn's take a second to import."""

import numpy as np
import torch
from torch import Tensor

RESTARTS = 10
MOST = 300  # steps of one search


def k_means(points: np.ndarray, k: int, seed: int) -> list[int]:
    """Labels of the best of ten searches from k-means++; equal points cannot fill k groups, then there are fewer."""
    x = torch.from_numpy(points).double()
    draws = torch.rand(RESTARTS, k, dtype=torch.double, generator=torch.Generator().manual_seed(seed))
    centres, labels = _scattered(x, draws), torch.full((RESTARTS, len(x)), -1)
    for _ in range(MOST):
        near, found = _squares(x, centres).min(2)
        if torch.equal(found, labels):
            break
        labels, centres = found, _means(x, found, near, k)
    return labels[near.sum(1).argmin()].tolist()


def silhouette(distances: Tensor, labels: list[int]) -> float:
    """The mean of (b - a) / max(a, b): a is the mean distance to one's own group, b to the next one (eqs. 11-12).

    Who is alone in a group counts 0, and so does who has no distance to anybody.
    """
    members = _members(torch.tensor(labels)).to(distances.dtype)
    counts, sums = members.sum(0), distances @ members
    own = members.bool()
    a = sums[own] / (counts.expand_as(sums)[own] - 1).clamp(min=1)
    b = (sums / counts).masked_fill(own, torch.inf).amin(1)
    each = ((b - a) / torch.maximum(a, b)).nan_to_num(0.0)
    return float(each.masked_fill(members @ counts == 1, 0.0).mean())


def _members(labels: Tensor) -> Tensor:
    """A column per group that somebody is in."""
    return labels[:, None] == labels.unique()


def _squares(x: Tensor, centres: Tensor) -> Tensor:
    """Squared distances of points [n, d] from the centres [searches, k, d] of every search."""
    products = (centres.flatten(0, 1) @ x.T).view(*centres.shape[:2], len(x)).mT
    return (x.square().sum(1)[:, None] - 2 * products + centres.square().sum(2)[:, None]).clamp_(min=0)


def _scattered(x: Tensor, draws: Tensor) -> Tensor:
    """K-means++ for every search: a point is drawn as the next centre by its squared distance from those before."""
    first, *others = draws.unbind(1)
    chosen = [(first * len(x)).long()]
    apart = torch.full((len(draws), len(x)), torch.inf, dtype=x.dtype)
    for draw in others:
        apart = torch.minimum(apart, _squares(x, x[chosen[-1]][:, None])[..., 0])
        upto = apart.cumsum(1)
        place = torch.searchsorted(upto, (draw * upto[:, -1])[:, None], right=True)
        chosen.append(place[:, 0].clamp(max=len(x) - 1))
    return x[torch.stack(chosen, 1)]


def _means(x: Tensor, labels: Tensor, near: Tensor, k: int) -> Tensor:
    """The mean of every group of every search; an empty group starts again at the point farthest from its centre."""
    members = torch.nn.functional.one_hot(labels, k).mT.to(x.dtype)
    counts = members.sum(2, keepdim=True)
    centres = members @ x / counts.clamp(min=1)
    for search, group in (counts[..., 0] == 0).nonzero().tolist():
        centres[search, group] = x[near[search].argmax()]
        near[search, near[search].argmax()] = 0  # the next empty group has another
    return centres
