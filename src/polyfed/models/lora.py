"""Low-rank adapters: W x + (alpha / rank) B A x on linear layers of any network (Hu et al., LoRA, 2022, eq. 3)."""

from fnmatch import fnmatchcase
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import field_validator
from torch import Tensor, nn

from polyfed.errors import UsageError
from polyfed.registry import Typed, param

HEAD = "head"


class Lora(Typed):
    """Which linear layers of a model have adapters, and how large these are."""

    rank: int = param(0, "rank of the adapters; 0: there are none", ge=0)
    alpha: float = param(8.0, "adapters count alpha / rank times", gt=0)
    on: tuple[str, ...] = param(("*",), "patterns of the names of the linear layers of the body that have one")

    @field_validator("on", mode="before")
    @classmethod
    def _one_or_more(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value


class LowRank(nn.Linear):
    """A linear layer with an adapter; B starts at zero, so that it first answers as without."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float):
        nn.Module.__init__(self)
        self.in_features, self.out_features = base.in_features, base.out_features
        self.weight, self.bias = base.weight, base.bias
        self.scale = alpha / rank
        self.lora_a = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_a, a=5**0.5)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias) + self.scale * F.linear(F.linear(x, self.lora_a), self.lora_b)

    def merged(self) -> nn.Linear:
        """One plain layer that answers alike: W + (alpha / rank) B A."""
        plain = nn.Linear(self.in_features, self.out_features, bias=self.bias is not None, device="meta")
        weight = self.weight.detach().double() + self.scale * (self.lora_b.double() @ self.lora_a.double()).detach()
        plain.weight = nn.Parameter(weight.float(), requires_grad=False)
        if self.bias is not None:
            plain.bias = nn.Parameter(self.bias.detach(), requires_grad=False)
        return plain


def adapt_layers(net: nn.Module, lora: Lora, who: str) -> None:
    """Give linear layers of a network's body adapters, in the order of modules.

    The head has none, because methods read its weight as the whole of it; where it is to be personal, FedPer is there.
    """
    body = [
        name for name, module in net.named_modules() if type(module) is nn.Linear and name.partition(".")[0] != HEAD
    ]
    chosen = [name for name in body if any(fnmatchcase(name, pattern) for pattern in lora.on)]
    if not chosen:
        there = f"it has {', '.join(body)}" if body else "its body has none"
        raise UsageError(f"model.lora.on={list(lora.on)} fits no linear layer in the body of {who}: {there}")
    for name in chosen:
        _exchange(net, name, LowRank(net.get_submodule(name), lora.rank, lora.alpha))  # type: ignore[arg-type]


def merge_layers(net: nn.Module) -> None:
    """Make every adapted layer a plain one that answers alike."""
    adapted = [(name, module) for name, module in net.named_modules() if isinstance(module, LowRank)]
    for name, module in adapted:
        _exchange(net, name, module.merged())


def has_adapters(net: nn.Module) -> bool:
    """Whether a network has any."""
    return any(isinstance(module, LowRank) for module in net.modules())


def _exchange(net: nn.Module, name: str, other: nn.Module) -> None:
    path, _, leaf = name.rpartition(".")
    setattr(net.get_submodule(path), leaf, other)
