"""MobileNetV3-small with LR-ASPP (Howard et al. 2019): an answer for every pixel, which is a row.

`trunk` ends at stride 8 (`low`); `last` goes on to stride 16 and puts both beside each other, [B, h, w, d]; the head is
one linear layer on these rows: the official two 1x1 classifiers, whose biases add up. BatchNorm moves by 0.1, not by
the official 0.01, because a few local steps would hardly move it.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from polyfed.models.base import Net, Pixels, spread
from polyfed.models.blocks import chain, he
from polyfed.models.zoo import NORMED, Zoo, family
from polyfed.registry import param

Make = Callable[..., nn.Sequential]


class Row(NamedTuple):
    """One block of the backbone's table."""

    kernel: int
    expand: int
    out: int
    squeeze: bool
    act: Literal["relu", "hswish"]
    stride: int = 1
    dilation: int = 1


TABLE = (
    Row(3, 16, 16, True, "relu", stride=2),
    Row(3, 72, 24, False, "relu", stride=2),
    Row(3, 88, 24, False, "relu"),
    Row(5, 96, 40, True, "hswish", stride=2),
    Row(5, 240, 40, True, "hswish"),
    Row(5, 240, 40, True, "hswish"),
    Row(5, 120, 48, True, "hswish"),
    Row(5, 144, 48, True, "hswish"),
    Row(5, 288, 96, True, "hswish", stride=2, dilation=2),
    Row(5, 576, 96, True, "hswish", dilation=2),
    Row(5, 576, 96, True, "hswish", dilation=2),
)
LOW = 2  # blocks of the trunk
LISTENED = 8  # the block behind whose depthwise convolution BAVD listens, beside the last one's
END = 576  # channels of the 1x1 convolution that ends the whole backbone


def round8(value: float) -> int:
    """The nearest multiple of eight, at least eight, and not more than a tenth below the value."""
    near = max(8, int(value + 4) // 8 * 8)
    return near + 8 if near < 0.9 * value else near


class Squeeze(nn.Module):
    """Squeeze and excitation: every channel times a number from 0 to 1 that all channels' means decide."""

    def __init__(self, channels: int):
        super().__init__()
        inner = round8(channels / 4)
        self.down, self.up = nn.Conv2d(channels, inner, 1), nn.Conv2d(inner, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        means = x.mean((2, 3), keepdim=True)
        return x * nn.functional.hardsigmoid(self.up(torch.relu(self.down(means))))


class Block(nn.Module):
    """Widen, a depthwise convolution, squeeze, narrow; the input is added where the shape is the same."""

    def __init__(self, into: int, row: Row, wide: Callable[[int], int], conv: Make):
        super().__init__()
        expand, out = wide(row.expand), wide(row.out)
        stride = 1 if row.dilation > 1 else row.stride
        self.widen = conv(into, expand, 1, row.act) if expand != into else nn.Identity()
        self.depthwise = conv(expand, expand, row.kernel, row.act, stride, row.dilation, expand)
        self.squeeze = Squeeze(expand) if row.squeeze else nn.Identity()
        self.narrow = conv(expand, out, 1, None)
        self.added = row.stride == 1 and into == out

    def forward(self, x: Tensor) -> Tensor:
        out = self.narrow(self.squeeze(self.depthwise(self.widen(x))))
        return x + out if self.added else out


class LowAndHigh(nn.Module):
    """What follows `low`, and LR-ASPP: `high`, gated by its own mean, is spread to low's size and put beside it."""

    def __init__(self, blocks: nn.Sequential, channels: int, inner: int, conv: Make):
        super().__init__()
        self.blocks = blocks
        self.reduce = conv(channels, inner, 1, "relu")
        self.gate = nn.Conv2d(channels, inner, 1, bias=False)

    def forward(self, low: Tensor) -> Tensor:
        high = self.blocks(low)
        gated = self.reduce(high) * torch.sigmoid(self.gate(high.mean((2, 3), keepdim=True)))
        return torch.cat([low, spread(gated, low.shape[2:])], 1).permute(0, 2, 3, 1)


@family("lraspp", "MuPFL, Zhang et al. 2024; Howard et al. 2019", NORMED)
class LRASPP(Zoo):
    """MobileNetV3-small with LR-ASPP, for masks: a class for every pixel."""

    of_pixels = True
    inner: int = param(128, "channels of LR-ASPP", ge=1)
    blocks: int = param(len(TABLE), "blocks of the backbone; all of them end in a 1x1 convolution", ge=4, le=len(TABLE))

    def smallest(self, shape: tuple[int, ...]) -> int:
        return 8

    def wide(self, channels: int) -> int:
        return round8(channels * self.width)

    def net(self, shape: tuple[int, ...], classes: int) -> Net:
        stem = self.wide(16)
        blocks, into = [], stem
        for number, row in enumerate(TABLE[: self.blocks], 1):
            blocks.append((f"block{number}", Block(into, row, self.wide, self._conv)))
            into = self.wide(row.out)
        end = self._conv(into, self.wide(END), 1, "hswish") if self.blocks == len(TABLE) else None
        trunk = chain([("stem", self._conv(shape[0], stem, 3, "hswish", 2))], blocks[:LOW])
        rest, channels = chain(blocks[LOW:], [("end", end)]), into if end is None else self.wide(END)
        last = LowAndHigh(rest, channels, self.inner, self._conv)
        head = nn.Linear(self.wide(TABLE[LOW - 1].out) + self.inner, classes, bias=self.bias)
        net = Pixels(trunk, last, head, self._listens())
        he(net)
        return net

    def _listens(self) -> tuple[str, ...]:
        deep = sorted({min(LISTENED, self.blocks), self.blocks})
        return ("trunk.stem", *(f"last.blocks.block{number}.depthwise" for number in deep), "last.reduce")

    def _conv(
        self, into: int, out: int, kernel: int, act: str | None, stride: int = 1, dilation: int = 1, groups: int = 1
    ) -> nn.Sequential:
        """A convolution without bias, its norm and its activation."""
        padding = (kernel - 1) // 2 * dilation
        conv = nn.Conv2d(into, out, kernel, stride, padding, dilation, groups, bias=False)
        norm = self.normalise(out)
        if isinstance(norm, nn.BatchNorm2d):
            norm.eps = 1e-3
        active = {"relu": nn.ReLU, "hswish": nn.Hardswish}[act]() if act else None
        return chain([("conv", conv), ("norm", norm), ("act", active)])


@family("lraspp-small", "after MuPFL, Zhang et al. 2024", NORMED)
class SmallLRASPP(LRASPP):
    """The first eight blocks at half the width with 64 channels of LR-ASPP, for masks on a CPU."""

    width: float = param(0.5, "multiplies every number of channels, to multiples of eight", gt=0, allow_inf_nan=False)
    inner: int = param(64, "channels of LR-ASPP", ge=1)
    blocks: int = param(8, "blocks of the backbone; all of them end in a 1x1 convolution", ge=4, le=len(TABLE))
