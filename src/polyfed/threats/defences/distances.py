"""Rules that look at the distances between uploads, which the Gram matrix of the updates holds."""

from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor

from polyfed.parts.cluster import embedding, group_fixed
from polyfed.registry import param
from polyfed.threats import robust
from polyfed.threats.defences.base import Case, Defence, Verdict, Weighing, Weighted, defence, without_say
from polyfed.threats.robust import Array


@defence("krum", paper="Blanchard et al. 2017")
class Krum(Weighing):
    """The one upload that is nearest its n - f - 2 nearest neighbours."""

    by_count = True

    def most(self, n: int) -> int:
        return (n - 3) // 2

    def weigh(self, gram: Array, case: Case) -> Array:
        return robust.krum(gram, case.f)


@defence("multi-krum", paper="Blanchard et al. 2017")
class MultiKrum(Krum, Weighted):
    """The mean of the m uploads that Krum scores best."""

    m: Annotated[int, Ge(1)] | None = param(None, "how many uploads are averaged; by default all but f")

    def weigh(self, gram: Array, case: Case) -> Array:
        m = case.n - case.f if self.m is None else min(self.m, case.n)
        return robust.share_among(np.flatnonzero(robust.multi_krum(gram, case.f, m)).tolist(), case.p)


@defence("bulyan", paper="El Mhamdi et al. 2018")
class Bulyan(Defence):
    """The uploads that Krum chooses one by one; of each coordinate, the mean of the values nearest the median."""

    by_count = True

    def most(self, n: int) -> int:
        return (n - 3) // 4

    def judge(self, case: Case) -> Verdict:
        chosen = robust.bulyan_choice(case.gram, case.f)
        mix = None if case.mix is None else case.mix[chosen]
        rows = case.weights if mix is not None else [case.weights[i] for i in chosen]
        mean = robust.by_blocks(rows, lambda columns: robust.nearest_median(columns, case.f), mix)
        weights = case.unmixed(robust.share_among(chosen, np.ones(case.n)))
        return Verdict(torch.cat([mean, case.median_buffers()]), weights, without_say(weights))


@defence("geometric-median", paper="Pillutla et al. 2022 (RFA)")
class GeometricMedian(Weighing, Weighted):
    """The point with the smallest sum of distances to the uploads."""

    names_suspects = False
    nu: float = param(1e-6, "distances are taken to be at least this", gt=0)

    def weigh(self, gram: Array, case: Case) -> Array:
        return robust.geometric_median(gram, case.p, self.nu)


@defence("dnc", paper="Shejwalkar and Houmansadr 2021")
class DivideAndConquer(Weighted):
    """The mean of the uploads that never stick out along the direction in which random coordinates vary most."""

    by_count = True
    times: int = param(5, "how often coordinates are drawn", ge=1)
    coordinates: int = param(10_000, "how many coordinates are drawn each time", ge=1)
    drops: float = param(1.0, "how many uploads are dropped each time, in multiples of f", gt=0)

    def judge(self, case: Case) -> Verdict:
        kept = set(range(case.n))
        for time in range(self.times):
            kept -= set(robust.outlying(self.columns(case, time), int(self.drops * case.f)))
        if not kept:
            case.say("defence=dnc dropped every upload: the coordinate median is taken")
            return Verdict(robust.by_blocks(case.rows, robust.median, case.mix))
        weights = case.unmixed(robust.share_among(sorted(kept), case.p))
        return Verdict(robust.weighted(case.rows, weights), weights, without_say(weights))

    def columns(self, case: Case, time: int) -> Array:
        """Some coordinates of the updates, or all if there are few."""
        chosen = slice(None)
        if case.n_weights > self.coordinates:
            drawn = case.draw("dnc", case.call, time).choice(case.n_weights, self.coordinates, replace=False)
            chosen = torch.from_numpy(np.sort(drawn))  # type: ignore[assignment]
        rows = [(row[chosen] - start[chosen]).numpy() for row, start in zip(case.weights, case.starts, strict=True)]
        found = np.stack(rows).astype(np.float64)
        return found if case.mix is None else case.mix @ found


@defence("gra", paper="Yu and Wu 2020")
class GRA(Defence):
    """Uploads are grouped by k-means; each group gives its median, and the groups are combined. Approximate."""

    approximate = True
    groups: int = param(2, "number of groups", ge=1)
    combine: Literal["size", "largest"] = param("size", "groups count by their size, or only the largest does")

    def judge(self, case: Case) -> Verdict:
        points, seed = embedding(torch.from_numpy(case.gram)), int(case.draw("gra", case.call).integers(2**32))
        members = group_fixed(points, self.groups, seed).members()
        members.sort(key=lambda group: (-len(group), group[0]))
        if self.combine == "largest":
            members = members[:1]
        medians = [self.median_of(case, group) for group in members]
        sizes = np.array([len(group) for group in members], dtype=np.float64)
        return Verdict(robust.weighted(medians, sizes / sizes.sum()))

    def median_of(self, case: Case, group: list[int]) -> Tensor:
        """The coordinate median of a group."""
        if case.mix is None:
            return robust.by_blocks([case.rows[i] for i in group], robust.median)
        return robust.by_blocks(case.rows, robust.median, case.mix[group])
