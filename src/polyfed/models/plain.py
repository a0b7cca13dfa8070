"""Networks without shortcuts: the multi-layer perceptron and the small convolutional nets of the five papers."""

from math import prod
from typing import ClassVar

from torch import nn

from polyfed.models.base import Net
from polyfed.models.blocks import AsImage, Flat, Layers, chain, relus
from polyfed.models.zoo import NORMED, PLAIN, BatchNormed, Zoo, family, head_bias
from polyfed.registry import param


@family("mlp", "MAP, Li et al. 2023", PLAIN)
class MLP(Zoo):
    """Flattens any input; two hidden layers of 512."""

    axes = None
    bias: bool = head_bias(False)

    def net(self, shape: tuple[int, ...], classes: int) -> Net:
        into, wide = prod(shape), self.wide(512)
        trunk = chain([("flatten", nn.Flatten())], self._layer(1, into, wide))
        last = chain(self._layer(2, wide, wide))
        net = Net(trunk, last, nn.Linear(wide, classes, bias=self.bias))
        net.listens = relus(net)
        return net

    def _layer(self, i: int, into: int, out: int) -> Layers:
        return [(f"fc{i}", nn.Linear(into, out)), (f"norm{i}", self.normalise(out, 0)), (f"relu{i}", nn.ReLU())]


class ConvNet(Zoo):
    """Blocks of convolution, norm, ReLU and max-pooling by two, flattened, then hidden fully connected layers.

    The norm follows convolutions only. `last` is the last block and the fully connected layers, or these alone.
    A sequence is an image of height 1.
    """

    channels: ClassVar[tuple[int, ...]]
    kernel: ClassVar[int]
    padding: ClassVar[int] = 0
    last_is_hidden: ClassVar[bool] = False

    @property
    def hidden(self) -> tuple[int, ...]:
        """Widths of the hidden fully connected layers."""
        return ()

    def smallest(self, shape: tuple[int, ...]) -> int:
        side = 1
        for _ in self.channels:
            side = 2 * side + self.kernel - 1 - 2 * self.padding
        return side

    def net(self, shape: tuple[int, ...], classes: int) -> Net:
        into, *sides = shape
        blocks: list[Layers] = []
        for i, channels in enumerate(self.channels, 1):
            blocks.append(self._block(i, into, self.wide(channels)))
            into, sides = self.wide(channels), [(side + 2 * self.padding - self.kernel + 1) // 2 for side in sides]
        rows = into * prod(sides)
        end: Layers = [("flatten", Flat())]
        for i, width in enumerate(self.hidden, len(blocks) + 1):
            end += [(f"fc{i}", nn.Linear(rows, self.wide(width))), (f"relu{i}", nn.ReLU())]
            rows = self.wide(width)
        cut = len(blocks) if self.last_is_hidden and self.hidden else len(blocks) - 1
        start: Layers = [("image", AsImage() if self.axes == 2 else None)]
        net = Net(chain(start, *blocks[:cut]), chain(*blocks[cut:], end), nn.Linear(rows, classes, bias=self.bias))
        net.listens = relus(net)
        return net

    def _block(self, i: int, into: int, out: int) -> Layers:
        flat = self.axes == 2
        kernel = (1 if flat else self.kernel, self.kernel)
        padding = (0 if flat else self.padding, self.padding)
        return [
            (f"conv{i}", nn.Conv2d(into, out, kernel, padding=padding)),
            (f"norm{i}", self.normalise(out)),
            (f"relu{i}", nn.ReLU()),
            (f"pool{i}", nn.MaxPool2d((1 if flat else 2, 2))),
        ]


@family("cnn", "MuPFL, Zhang et al. 2024", PLAIN)
class CNN(ConvNet):
    """MuPFL's FMNIST network: two 5x5 convolutions (32, 64), no hidden layer; 1024 features of 28x28."""

    channels, kernel = (32, 64), 5


@family("cnn5", "ECL, Lv et al. 2024", PLAIN)
class CNN5(ConvNet):
    """ECL's FMNIST network, LeNet-5 style: two 5x5 convolutions (6, 16), hidden layers of 120 and 84."""

    channels, kernel, last_is_hidden = (6, 16), 5, True

    @property
    def hidden(self) -> tuple[int, ...]:
        return (120, 84)


@family("lenet", "MAP, Li et al. 2023; LeCun et al. 1998", PLAIN)
class LeNet(ConvNet):
    """MAP's LeNet: two 5x5 convolutions (16, 16), with the original's hidden layers of 120 and 84 or without."""

    channels, kernel, last_is_hidden = (16, 16), 5, True
    bias: bool = head_bias(False)
    hidden_fc: bool = param(True, "hidden layers of 120 and 84; false: the official code's features, 400 of 32x32")

    @property
    def hidden(self) -> tuple[int, ...]:
        return (120, 84) if self.hidden_fc else ()


@family("tfcnn", "MAP, Li et al. 2023; McMahan et al. 2017", PLAIN)
class TFCNN(ConvNet):
    """MAP's CIFAR network: three 3x3 convolutions (32, 64, 64); 1024 features of 32x32."""

    channels, kernel, padding = (32, 64, 64), 3, 1
    bias: bool = head_bias(False)
    fc128: bool = param(False, "a hidden layer of 128 before the head")

    @property
    def hidden(self) -> tuple[int, ...]:
        return (128,) if self.fc128 else ()


@family("conv4", "FedCRC, Wang et al.; FedBABU, Oh et al. 2022", NORMED | {"-bn": BatchNormed})
class Conv4(ConvNet):
    """FedCRC's four 3x3 convolutions of 64; the paper's has BatchNorm, so `conv4-bn` is another name of `conv4`."""

    channels, kernel, padding = (64, 64, 64, 64), 3, 1


@family("har-cnn", "DistFL, Liu et al. 2021", NORMED)
class HarCNN(ConvNet):
    """DistFL's "simple 2-layer CNN" for motion sensors: convolutions of 9 time steps (32, 64); its FC is the head."""

    axes = 2
    channels, kernel = (32, 64), 9
