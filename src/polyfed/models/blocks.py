"""The pieces networks are made of: named sequences, norms, the residual block."""

from collections.abc import Callable, Iterable
from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from polyfed.models.base import Net

Layers = list[tuple[str, nn.Module | None]]


def chain(*parts: Iterable[tuple[str, nn.Module | None]]) -> nn.Sequential:
    """The named layers one after the other; a layer that is None is left out."""
    sequence = nn.Sequential()
    for name, layer in (pair for part in parts for pair in part):
        if layer is not None:
            sequence.add_module(name, layer)
    return sequence


def relus(net: nn.Module) -> tuple[str, ...]:
    """The names of all ReLU modules: where BAVD listens in a network without blocks."""
    return tuple(name for name, module in net.named_modules() if isinstance(module, nn.ReLU))


def he(net: nn.Module) -> None:
    """Draw every convolution from N(0, 2 / (k^2 out)) (He et al. 2015, fan out) and set its bias to zero."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            high, wide = module.kernel_size
            nn.init.normal_(module.weight, 0.0, sqrt(2 / (high * wide * module.out_channels)))
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def staged(stem: Layers, stages: list[tuple[nn.Sequential, str]], head: nn.Linear) -> Net:
    """A stem, stages (the last is `last`) and the mean over pixels; BAVD listens to one named module per stage."""
    *early, late = [(f"stage{i}", stage) for i, (stage, _) in enumerate(stages, 1)]
    net = Net(chain(stem, early), chain([late], [("mean", MeanOverPixels())]), head)
    he(net)
    where = [f"trunk.{name}" for name, _ in early] + [f"last.{late[0]}"]
    net.listens = tuple(f"{place}.{end}" for place, (_, end) in zip(where, stages, strict=True))
    return net


class _OfBatch(_BatchNorm):
    """BatchNorm by the batch alone; a channel with one single value becomes its shift instead of an error."""

    def __init__(self, channels: int):
        super().__init__(channels, track_running_stats=False)

    def forward(self, x: Tensor) -> Tensor:
        if x.numel() != x.shape[1]:
            return super().forward(x)
        return super().forward(x.expand(2, *x.shape[1:]))[:1]


class BatchNorm1dOfBatch(_OfBatch, nn.BatchNorm1d):
    """For vectors."""


class BatchNorm2dOfBatch(_OfBatch, nn.BatchNorm2d):
    """For images, and sequences as images of height 1."""


def batch_norm(channels: int, spatial: int, running_stats: bool) -> nn.Module:
    """BatchNorm over `spatial` axes, with running statistics for evaluation or without."""
    if running_stats:
        return nn.BatchNorm2d(channels) if spatial == 2 else nn.BatchNorm1d(channels)
    return BatchNorm2dOfBatch(channels) if spatial == 2 else BatchNorm1dOfBatch(channels)


def group_norm(channels: int) -> nn.Module:
    """GroupNorm in as many groups, up to eight, as divide the channels and leave two or more in each."""
    groups = max(g for g in range(1, 9) if channels % g == 0 and (channels >= 2 * g or g == 1))
    return nn.GroupNorm(groups, channels)


class AsImage(nn.Module):
    """A sequence [B, C, L] as an image of height 1: two-dimensional layers are faster on a CPU, channels last."""

    def forward(self, x: Tensor) -> Tensor:
        return x.unsqueeze(2).contiguous(memory_format=torch.channels_last)


class Flat(nn.Module):
    """Images as rows, pixel after pixel: nothing is copied where the channels lie last, nor is the gradient."""

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1).flatten(1)


class MeanOverPixels(nn.Module):
    """Images as rows [B, C]."""

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1).mean((1, 2))  # as [B, H, W, C], for the gradient: see Subsample


class Subsample(nn.Module):
    """The parameter-free shortcut: every stride-th pixel, and zeros for the channels that are new."""

    def __init__(self, stride: int, new: int):
        super().__init__()
        self.stride, self.new = stride, new

    def forward(self, x: Tensor) -> Tensor:
        # sliced as [B, H, W, C] the gradient lies channels last, as the ReLU's output does: ten times faster there
        kept = x.permute(0, 2, 3, 1)[:, :: self.stride, :: self.stride]
        return (F.pad(kept, (0, self.new)) if self.new else kept).permute(0, 3, 1, 2)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut (He et al. 2016), ending in a ReLU, after which BAVD may listen."""

    def __init__(
        self, into: int, out: int, stride: int, norm: Callable[[int], nn.Module | None], free_shortcut: bool = False
    ):
        super().__init__()
        self.conv1 = nn.Conv2d(into, out, 3, stride, padding=1, bias=False)
        self.norm1 = norm(out) or nn.Identity()
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.norm2 = norm(out) or nn.Identity()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or into != out:
            self.shortcut = Subsample(stride, out - into) if free_shortcut else self._project(into, out, stride, norm)
        self.relu2 = nn.ReLU()

    @staticmethod
    def _project(into: int, out: int, stride: int, norm: Callable[[int], nn.Module | None]) -> nn.Sequential:
        # pixels are dropped before the 1x1 convolution, not by its stride: the same numbers, and oneDNN's backward of a
        # strided channels-last 1x1 convolution writes out of bounds for a handful of input channels
        pixels = Subsample(stride, 0) if stride > 1 else None
        return chain([("pixels", pixels), ("conv", nn.Conv2d(into, out, 1, bias=False)), ("norm", norm(out))])

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu1(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        return self.relu2(out + self.shortcut(x))


class Bottleneck(nn.Module):
    """A 3x3 convolution between two of 1x1 around a shortcut, four times as wide as inside (He et al. 2016)."""

    def __init__(self, into: int, inner: int, stride: int, norm: Callable[[int], nn.Module | None]):
        super().__init__()
        out = 4 * inner
        self.conv1 = nn.Conv2d(into, inner, 1, bias=False)
        self.norm1 = norm(inner) or nn.Identity()
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(inner, inner, 3, stride, padding=1, bias=False)
        self.norm2 = norm(inner) or nn.Identity()
        self.relu2 = nn.ReLU()
        self.conv3 = nn.Conv2d(inner, out, 1, bias=False)
        self.norm3 = norm(out) or nn.Identity()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or into != out:
            self.shortcut = BasicBlock._project(into, out, stride, norm)
        self.relu3 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu1(self.norm1(self.conv1(x)))
        out = self.norm3(self.conv3(self.relu2(self.norm2(self.conv2(out)))))
        return self.relu3(out + self.shortcut(x))
