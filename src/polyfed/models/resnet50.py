"""ResNet-50 (He et al. 2016) with ImageNet's stem; it can start from a file of weights that the user has."""

from pathlib import Path
from typing import Literal

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from polyfed.errors import DataError
from polyfed.files import read_plain
from polyfed.models.base import Net
from polyfed.models.blocks import Bottleneck, staged
from polyfed.models.resnet import ResNet18
from polyfed.models.zoo import NORMED, family
from polyfed.registry import param

BLOCKS = (3, 4, 6, 3)
# torchvision's names, in order, and what takes their place
RENAMED = (
    *(("layer4.", "last.stage4."), ("fc.", "head."), ("downsample.0.", "shortcut.conv.")),
    *(("downsample.1.", "shortcut.norm."), (".bn", ".norm")),
)


@family("resnet50", "DistFL, Liu et al. 2021", NORMED)
class ResNet50(ResNet18):
    """Bottlenecks in four stages (256 to 2048 channels); `weights` names a local file to start from."""

    stem: Literal["cifar", "imagenet"] = param("imagenet", "7x7 by two and max-pooling; or cifar: 3x3")
    weights: Path | None = param(None, "a .safetensors file to start from, with torchvision's names or these")

    def net(self, shape: tuple[int, ...], classes: int) -> Net:
        into = self.wide(64)
        stem, stages = self._stem(shape[0], into), []
        for i, count in enumerate(BLOCKS):
            inner = self.wide(64 * 2**i)
            made = [Bottleneck(into, inner, 2 if i else 1, self.normalise)]
            into = 4 * inner
            made += [Bottleneck(into, inner, 1, self.normalise) for _ in range(count - 1)]
            stages.append((nn.Sequential(*made), str(count - 1)))
        net = staged(stem, stages, nn.Linear(into, classes, bias=self.bias))
        if self.weights is not None and not net.head.weight.is_meta:  # where only sizes are asked for, nothing is read
            start_from(net, self.weights.expanduser())
        return net


def start_from(net: Net, file: Path) -> None:
    """Copy a file's tensors into a network; a head for other classes than the network's stays as it was drawn."""
    try:
        found = {own_name(name): tensor for name, tensor in load(read_plain(file)).items()}
    except (OSError, SafetensorError) as error:
        raise DataError(f"model.weights: cannot read tensors from '{file}': {error}") from None
    wanted = net.state_dict()
    if _shape(found.get("head.weight")) != _shape(wanted["head.weight"]):
        found = {name: tensor for name, tensor in found.items() if not name.startswith("head.")}
        wanted = {name: tensor for name, tensor in wanted.items() if not name.startswith("head.")}
    counters = {name for name in wanted if name.endswith("num_batches_tracked")}  # older files have none
    strange = sorted(set(found) - set(wanted)) or sorted(set(wanted) - set(found) - counters)
    if strange:
        verb = "holds" if strange[0] in found else "lacks"
        raise DataError(f"model.weights: '{file}' {verb} '{strange[0]}', and so is not a ResNet-50 of this kind")
    for name, tensor in found.items():
        if _shape(tensor) != _shape(wanted[name]):
            shapes = f"{_shape(tensor)} where {_shape(wanted[name])} was expected"
            raise DataError(f"model.weights: in '{file}' the tensor '{name}' has the shape {shapes}")
    net.load_state_dict(found, strict=False)


def own_name(name: str) -> str:
    """What a tensor of torchvision's ResNet is called here; other names stay."""
    if name.split(".")[0] in ("trunk", "last", "head"):
        return name
    for theirs, ours in RENAMED:
        name = name.replace(theirs, ours)
    if name.startswith("layer"):
        return "trunk.stage" + name.removeprefix("layer")
    stem = {"conv1": "trunk.conv", "bn1": "trunk.norm"}
    first, _, rest = name.partition(".")
    return f"{stem[first]}.{rest}" if first in stem else name


def _shape(tensor: Tensor | None) -> list[int]:
    return [] if tensor is None else list(tensor.shape)
