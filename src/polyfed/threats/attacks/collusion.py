"""Attacks that attackers agree on once they know the updates of others."""

from collections.abc import Sequence
from statistics import NormalDist
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from polyfed.parts.chunks import in_chunks, ranges
from polyfed.registry import param
from polyfed.threats.attacks.base import Attack, attack
from polyfed.threats.robust import BLOCK


class Collusion(Attack):
    """An attack that attackers agree on when they know the updates of others."""

    colludes = True
    knows: Literal["all", "own"] = param("all", "the honest updates, or only those the attackers trained themselves")

    def plan(self, updates: Sequence[Tensor], n: int, m: int) -> list[Tensor]:
        """The updates that attackers take turns to send, where m of n uploads are theirs."""
        return []


@attack("ipm", paper="Xie et al. 2020 (inner product manipulation)")
class InnerProduct(Collusion):
    """Attackers send the mean of the honest updates backwards."""

    eps: float = param(0.5, "factor of the mean", ge=0)

    def plan(self, updates: Sequence[Tensor], n: int, m: int) -> list[Tensor]:
        return [-self.eps * _by_blocks(updates, lambda block: block.mean(0))]


@attack("alie", paper="Baruch et al. 2019 (a little is enough)")
class LittleIsEnough(Collusion):
    """Attackers send an update just inside the spread of the honest ones."""

    z: Annotated[float, Ge(0)] | Literal["auto"] = param("auto", "how many deviations from the mean of the honest ones")

    def plan(self, updates: Sequence[Tensor], n: int, m: int) -> list[Tensor]:
        z = alie_z(n, m) if self.z == "auto" else float(self.z)
        return [_by_blocks(updates, lambda block: block.mean(0) - z * block.std(0, correction=0))]


def alie_z(n: int, m: int) -> float:
    """The largest z at which enough honest clients are farther from the mean than the m attackers among n."""
    supporters = n // 2 + 1 - m
    share = (n - m - supporters) / (n - m)
    return NormalDist().inv_cdf(min(max(share, 0.5), 0.99))


@attack("mimic", paper="Karimireddy et al. 2022")
class Mimic(Collusion):
    """Attackers copy an honest update, which then counts too much."""

    target: Literal["first", "spread"] = param("first", "copy the first honest client, or each another one")

    def plan(self, updates: Sequence[Tensor], n: int, m: int) -> list[Tensor]:
        return list(updates[:1] if self.target == "first" else updates[:m])


def _by_blocks(rows: Sequence[Tensor], rule: Any) -> Tensor:
    """Apply a rule, in double precision, to the columns of all coordinates, block by block and on all cores."""
    made = torch.empty_like(rows[0])

    def over(here: slice) -> None:
        made[here] = rule(torch.stack([row[here] for row in rows]).double()).to(made.dtype)

    in_chunks(over, ranges(len(made), BLOCK, len(made)))
    return made
