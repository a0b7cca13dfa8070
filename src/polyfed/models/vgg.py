"""VGG for small images (Simonyan and Zisserman 2015): convolutions only, then the mean over what is left of the image.

At 32x32 that mean is over one pixel, so the features are those of MAP (flattened) and of DistFL (pooled) alike.
"""

from typing import ClassVar

from torch import nn

from polyfed.models.base import Net
from polyfed.models.blocks import Layers, chain, staged
from polyfed.models.zoo import PLAIN, Zoo, family, head_bias

PAPER = "MAP, Li et al. 2023; DistFL, Liu et al. 2021"


class VGG(Zoo):
    """Stages of 3x3 convolutions, each ending in max-pooling; `last` is the last stage."""

    stages: ClassVar[tuple[tuple[int, ...], ...]]
    bias: bool = head_bias(False)

    def smallest(self, shape: tuple[int, ...]) -> int:
        return 2 ** len(self.stages)

    def net(self, shape: tuple[int, ...], classes: int) -> Net:
        into, stages = shape[0], []
        for channels in self.stages:
            stages.append((self._stage(into, channels), f"relu{len(channels)}"))
            into = self.wide(channels[-1])
        return staged([], stages, nn.Linear(into, classes, bias=self.bias))

    def _stage(self, into: int, channels: tuple[int, ...]) -> nn.Sequential:
        layers: Layers = []
        for i, out in enumerate(map(self.wide, channels), 1):
            conv = nn.Conv2d(into, out, 3, padding=1)
            layers += [(f"conv{i}", conv), (f"norm{i}", self.normalise(out)), (f"relu{i}", nn.ReLU())]
            into = out
        return chain(layers, [("pool", nn.MaxPool2d(2))])


@family("vgg8", PAPER, PLAIN)
class VGG8(VGG):
    """Five convolutions; MAP's smallest."""

    stages = ((64,), (128,), (256,), (512,), (512,))


@family("vgg11", PAPER, PLAIN)
class VGG11(VGG):
    """Eight convolutions; DistFL's is `vgg11-bn` with `bias: true`."""

    stages = ((64,), (128,), (256, 256), (512, 512), (512, 512))


@family("vgg16", PAPER, PLAIN)
class VGG16(VGG):
    """Thirteen convolutions."""

    stages = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
