"""Experts for groups of classes, and the module that lets them answer together (ECL)."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from polyfed.models.base import Ensemble, Net


def frequency_groups(counts: Tensor, experts: int) -> list[list[int]]:
    """The classes held, most frequent first, cut into groups of nearly equal number; larger groups first."""
    held = [int(c) for c in torch.nonzero(counts).flatten()]
    order = sorted(held, key=lambda c: (-int(counts[c]), c))
    parts = np.array_split(np.array(order, dtype=int), min(experts, max(len(order), 1)))
    return [part.tolist() for part in parts]


class Experts(Ensemble):
    """One trunk, a global branch and an expert per group; a class is answered by its group's expert and the branch."""

    def __init__(
        self, branch: Net, experts: Sequence[Net], groups: Sequence[list[int]], factors: Tensor, lam: float, mask: bool
    ):
        super().__init__()
        self.trunk, self.branch = branch.trunk, nn.Sequential(branch.last, branch.head)
        self.experts = nn.ModuleList(nn.Sequential(e.last, e.head) for e in experts)
        self.groups, self.lam, self.mask = list(groups), lam, mask
        self.register_buffer("factors", factors)  # s_m per class of its group

    def forward(self, x: Tensor) -> Tensor:
        """Logits: every class from its group's expert and the global branch."""
        shared = self.trunk(x)
        z = self.branch(shared)
        out = torch.full_like(z, float("-inf")) if self.mask else z.clone()
        for expert, classes in zip(self.experts, self.groups, strict=True):
            scaled = self.get_buffer("factors")[classes] * expert(shared)[:, classes]
            out[:, classes] = self.lam * scaled + (1 - self.lam) * z[:, classes]  # eq. 6
        return out

    def plan(self) -> dict[str, Any]:
        """What `planned` needs to build it again."""
        classes = len(self.get_buffer("factors"))
        return {"groups": self.groups, "lam": self.lam, "mask": self.mask, "classes": classes}

    @classmethod
    def planned(cls, plan: dict[str, Any], make: Callable[[], Net]) -> "Experts":
        """Build it again from a plan; its weights are loaded afterwards."""
        experts = [make() for _ in plan["groups"]]
        return cls(make(), experts, plan["groups"], torch.ones(plan["classes"]), plan["lam"], plan["mask"])
