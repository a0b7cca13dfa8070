"""The networks of the cells in plain PyTorch: what the limit and the rivals train. They import nothing of polyfed."""

from collections.abc import Callable
from math import prod

import torch
from torch import Tensor, nn

Shape = tuple[int, ...]


def mlp(shape: Shape, classes: int) -> nn.Module:
    """Two hidden layers of 512, a head without bias."""
    hidden = (nn.Linear(prod(shape), 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU())
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(512, classes, bias=False))


def lenet(shape: Shape, classes: int) -> nn.Module:
    """Two 5x5 convolutions of 16, hidden layers of 120 and 84, a head without bias."""
    body = nn.Sequential(*conv_pool(shape[0], 16), *conv_pool(16, 16), nn.Flatten())
    hidden = (nn.Linear(width(body, shape), 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU())
    return nn.Sequential(*body, *hidden, nn.Linear(84, classes, bias=False))


def cnn(shape: Shape, classes: int) -> nn.Module:
    """Two 5x5 convolutions of 32 and 64, no hidden layer."""
    body = nn.Sequential(*conv_pool(shape[0], 32), *conv_pool(32, 64), nn.Flatten())
    return nn.Sequential(*body, nn.Linear(width(body, shape), classes))


def har_cnn(shape: Shape, classes: int) -> nn.Module:
    """Two convolutions of 9 time steps (32, 64) with BatchNorm."""
    first = (nn.Conv1d(shape[0], 32, 9), nn.BatchNorm1d(32), nn.ReLU(), nn.MaxPool1d(2))
    second = (nn.Conv1d(32, 64, 9), nn.BatchNorm1d(64), nn.ReLU(), nn.MaxPool1d(2))
    body = nn.Sequential(*first, *second, nn.Flatten())
    return nn.Sequential(*body, nn.Linear(width(body, shape), classes))


def har_cnn_as_image(shape: Shape, classes: int) -> nn.Module:
    """The same on images of height 1: sequences can then lie channels-last."""
    first = (nn.Conv2d(shape[0], 32, (1, 9)), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d((1, 2)))
    second = (nn.Conv2d(32, 64, (1, 9)), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d((1, 2)))
    body = nn.Sequential(AsImage(), *first, *second, nn.Flatten())
    return nn.Sequential(*body, nn.Linear(width(body, shape), classes))


def resnet8(shape: Shape, classes: int) -> nn.Module:
    """A stem and three residual blocks of 16, 32 and 64 channels with BatchNorm."""
    stem = (nn.Conv2d(shape[0], 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    blocks = (Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2))
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


def conv_pool(into: int, out: int) -> tuple[nn.Module, ...]:
    """A 5x5 convolution, ReLU, max-pooling by two."""
    return nn.Conv2d(into, out, 5), nn.ReLU(), nn.MaxPool2d(2)


def width(body: nn.Module, shape: Shape) -> int:
    """How many features a body gives for one sample."""
    with torch.no_grad():
        return body.eval()(torch.zeros(1, *shape)).shape[1]


class AsImage(nn.Module):
    """Sequences [B, C, L] as images of height 1."""

    def forward(self, x: Tensor) -> Tensor:
        return x.unsqueeze(2)


class Block(nn.Module):
    """Two 3x3 convolutions around a shortcut."""

    def __init__(self, into: int, out: int, stride: int):
        super().__init__()
        self.one = nn.Sequential(nn.Conv2d(into, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU())
        self.two = nn.Sequential(nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out))
        self.stride, self.shortcut = stride, nn.Sequential()
        if stride > 1:
            self.shortcut = nn.Sequential(nn.Conv2d(into, out, 1, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        # pixels are dropped before the 1x1 convolution, not by its stride: the same numbers, and safe in channels-last
        beside = x[:, :, :: self.stride, :: self.stride] if self.stride > 1 else x
        return torch.relu(self.two(self.one(x)) + self.shortcut(beside))


NETS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "mlp": mlp,
    "lenet": lenet,
    "cnn": cnn,
    "har-cnn": har_cnn,
    "resnet8": resnet8,
}
CHANNELS_LAST = NETS | {"har-cnn": har_cnn_as_image}


def build(model: str, shape: Shape, classes: int, channels_last: bool) -> nn.Module:
    """A network in training mode, its convolution weights in one of the two memory formats."""
    if not channels_last:
        return NETS[model](shape, classes).train()
    net = CHANNELS_LAST[model](shape, classes).train()
    return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def formatted(x: Tensor, channels_last: bool) -> Tensor:
    """Samples in that memory format, where they are images or sequences."""
    if channels_last and x.dim() in (3, 4):
        return x.movedim(1, -1).contiguous().movedim(-1, 1)
    return x.contiguous()
