"""Residual networks (He et al. 2016) as the papers use them; `last` is the last stage, then the mean over pixels."""

from typing import ClassVar, Literal

from torch import nn

from polyfed.models.base import Net
from polyfed.models.blocks import BasicBlock, Layers, staged
from polyfed.models.zoo import NORMED, Zoo, family, head_bias
from polyfed.registry import param


class ResNet(Zoo):
    """A stem, then stages of basic blocks, each but the first halving the image."""

    channels: ClassVar[tuple[int, ...]] = (16, 32, 64)
    blocks: ClassVar[int]
    free_shortcut: ClassVar[bool] = False  # parameter-free instead of 1x1 convolution and norm

    def net(self, shape: tuple[int, ...], classes: int) -> Net:
        into = self.wide(self.channels[0])
        stem, stages = self._stem(shape[0], into), []
        for i, channels in enumerate(map(self.wide, self.channels)):
            stages.append((self._stage(into, channels, stride=2 if i else 1), str(self.blocks - 1)))
            into = channels
        return staged(stem, stages, nn.Linear(into, classes, bias=self.bias))

    def _stem(self, into: int, out: int) -> Layers:
        conv = nn.Conv2d(into, out, 3, padding=1, bias=False)
        return [("conv", conv), ("norm", self.normalise(out)), ("relu", nn.ReLU())]

    def _stage(self, into: int, out: int, stride: int) -> nn.Sequential:
        first = BasicBlock(into, out, stride, self.normalise, self.free_shortcut)
        return nn.Sequential(first, *(BasicBlock(out, out, 1, self.normalise) for _ in range(self.blocks - 1)))


@family("resnet8", "MuPFL, Zhang et al. 2024; CReFF, Shang et al. 2022", NORMED)
class ResNet8(ResNet):
    """One block per stage; channels 16, 32, 64 times `width`, which is the paper's scaling."""

    blocks = 1
    width: float = param(4.0, "the paper's scaling of 16, 32, 64 channels; 1 suits a CPU", gt=0, allow_inf_nan=False)


@family("resnet20", "MAP, Li et al. 2023", NORMED)
class ResNet20(ResNet):
    """Three blocks per stage, shortcuts by 1x1 convolution and norm."""

    blocks = 3
    bias: bool = head_bias(False)


@family("resnet56", "MAP, Li et al. 2023", NORMED)
class ResNet56(ResNet):
    """Nine blocks per stage, shortcuts by 1x1 convolution and norm."""

    blocks = 9
    bias: bool = head_bias(False)


@family("resnet32", "ECL, Lv et al. 2024; FedAFA, Lu et al. 2023", NORMED)
class ResNet32(ResNet):
    """Five blocks per stage, shortcuts without parameters: every second pixel, zeros for the new channels."""

    blocks = 5
    free_shortcut = True


@family("resnet18", "FedCRC, Wang et al.; DistFL, Liu et al. 2021", NORMED)
class ResNet18(ResNet):
    """Two blocks in each of four stages (64 to 512 channels), with the stem for small images or that of ImageNet."""

    channels, blocks = (64, 128, 256, 512), 2
    stem: Literal["cifar", "imagenet"] = param("cifar", "3x3; or 7x7 by two and max-pooling, DistFL's code")

    def _stem(self, into: int, out: int) -> Layers:
        if self.stem == "cifar":
            return super()._stem(into, out)
        conv = nn.Conv2d(into, out, 7, 2, padding=3, bias=False)
        pool = nn.MaxPool2d(3, 2, padding=1)
        return [("conv", conv), ("norm", self.normalise(out)), ("relu", nn.ReLU()), ("pool", pool)]
