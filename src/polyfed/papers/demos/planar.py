"""MAP's LeNet for pictures: its last hidden layer has two units, so that features are points of a plane."""

from torch import nn

from polyfed.models.base import Net
from polyfed.models.plain import LeNet

WITH_RELU, WITHOUT = f"{__name__}:with_relu", f"{__name__}:without_relu"  # as a config names them


class Planar(LeNet):
    """Hidden layers of 120 and 2."""

    @property
    def hidden(self) -> tuple[int, ...]:
        """Their widths."""
        return (120, 2)


def with_relu(shape: tuple[int, ...], classes: int) -> Net:
    """With a ReLU before the head."""
    return Planar().net(shape, classes)


def without_relu(shape: tuple[int, ...], classes: int) -> Net:
    """Without a ReLU before the head: features may be negative."""
    net = with_relu(shape, classes)
    assert isinstance(net.last, nn.Sequential)
    return Net(net.trunk, net.last[:-1], net.head)
