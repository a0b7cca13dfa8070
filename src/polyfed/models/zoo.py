"""What the networks of the zoo share: they check their input, scale their width, and come with a choice of norm."""

import inspect
from collections.abc import Callable
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import create_model
from torch import nn

from polyfed.errors import UsageError
from polyfed.models.base import ByName, Net, models
from polyfed.models.blocks import batch_norm, group_norm
from polyfed.registry import param

KINDS = {1: "vectors", 2: "sequences (channels, time)", 3: "images (channels, height, width)"}
INSTEAD = {1: "model=mlp", 2: "model=har-cnn or model=mlp", 3: "model=cnn or model=resnet8"}


def head_bias(default: bool) -> Any:
    """The parameter `bias`, with the default of the paper the network belongs to."""
    return param(default, "whether the head has a bias; MAP's networks have none")


class Zoo(ByName):
    """A network that says what it takes (the number of axes of a sample) and is built by `net` once that is checked."""

    axes: ClassVar[Literal[2, 3] | None] = 3  # 3: images, 2: sequences, None: anything, flattened
    norm: ClassVar[Literal["none", "bn", "gn"]] = "none"
    width: float = param(1.0, "multiplies every hidden width (never below 2)", gt=0, allow_inf_nan=False)
    bias: bool = head_bias(True)

    def net(self, shape: tuple[int, ...], classes: int) -> Net:
        """The network itself, for a shape that was checked."""
        raise TypeError(f"{type(self).__name__} must say how it is built")

    def build(self, shape: tuple[int, ...], classes: int) -> Net:
        self.sane(shape, classes)
        if self.axes is not None:
            self._fits(tuple(shape))
        return self.net(tuple(shape), classes)

    def _fits(self, shape: tuple[int, ...]) -> None:
        if len(shape) != self.axes:
            instead = INSTEAD.get(len(shape), "model=mlp")
            raise UsageError(
                f"model '{self.name}' needs {KINDS[self.axes or 3]}, the data have shape {shape}; set {instead}"
            )
        least, sides = self.smallest(shape), shape[1:]
        if min(sides) >= least:
            return
        if self.axes == 2:
            needs, has, how = f"sequences of at least {least} steps", f"have {sides[0]}", "give longer windows"
        else:
            needs, has = f"images of at least {least}x{least} pixels", f"are {sides[0]}x{sides[1]}"
            how = f"set data.size={least}"
        raise UsageError(f"model '{self.name}' needs {needs}, the data {has}; {how} or model=mlp")

    def wide(self, channels: int) -> int:
        """A hidden width, scaled; two at least, so that GroupNorm always has something to compare."""
        return max(2, round(channels * self.width))

    def normalise(self, channels: int, spatial: int = 2) -> nn.Module | None:
        """The norm after a convolution over `spatial` axes (0: after a fully connected layer), if there is one."""
        return None


class Unnormed(Zoo):
    """Without normalisation."""


class BatchNormed(Zoo):
    """With BatchNorm."""

    norm: ClassVar[Literal["none", "bn", "gn"]] = "bn"
    bn_running_stats: bool = param(True, "evaluate by running statistics; false: by the batch, FedBABU's original")

    def normalise(self, channels: int, spatial: int = 2) -> nn.Module | None:
        return batch_norm(channels, spatial, self.bn_running_stats)


class GroupNormed(Zoo):
    """With GroupNorm."""

    norm: ClassVar[Literal["none", "bn", "gn"]] = "gn"

    def normalise(self, channels: int, spatial: int = 2) -> nn.Module | None:
        return group_norm(channels)


# x has no norm, x-bn and x-gn have one
PLAIN: dict[str, type[Zoo]] = {"": Unnormed, "-bn": BatchNormed, "-gn": GroupNormed}
# x is the paper's, which has BatchNorm
NORMED: dict[str, type[Zoo]] = {"": BatchNormed, "-gn": GroupNormed}
Z = TypeVar("Z", bound=Zoo)


def family(name: str, paper: str, norms: dict[str, type[Zoo]]) -> Callable[[type[Z]], type[Z]]:
    """Class decorator: register one model per norm, named `name` + suffix; the class itself is their common part."""

    def enter(cls: type[Z]) -> type[Z]:
        for suffix, norm in norms.items():
            models.register(name + suffix, paper)(_with(norm, cls))
        return cls

    return enter


def _with(norm: type[Zoo], cls: type[Zoo]) -> type[Zoo]:
    doc = f"{inspect.getdoc(cls)} {norm.__doc__}"
    # cls first: pydantic takes a field from the first base that has it, and cls may have defaults of its own
    return create_model(cls.__name__, __base__=(cls, norm), __module__=cls.__module__, __doc__=doc)
