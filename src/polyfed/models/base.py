"""What every model says of itself: trunk, last and head, its smallest input, and where BAVD may listen."""

from typing import Any

from torch import Tensor, nn

from polyfed.registry import Registry, Spec


class Net(nn.Module):
    """A classifier in three callable pieces; features are rows of width d and the head is linear on rows."""

    def __init__(self, trunk: nn.Module, last: nn.Module, head: nn.Module, listens: tuple[str, ...] = ()):
        super().__init__()
        self.trunk, self.last, self.head = trunk, last, head
        self.listens = listens  # names of the modules whose output BAVD may mask

    def features(self, x: Tensor) -> Tensor:
        """The rows the head sees."""
        return self.last(self.trunk(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


class Model(Spec):
    """A kind of network with its typed parameters; `build` makes one for an input shape and a number of classes."""

    def smallest(self, shape: tuple[int, ...]) -> int:
        """The smallest side of an image (or length of a sequence) this network can take."""
        return 1

    def build(self, shape: tuple[int, ...], classes: int) -> Net:
        """A fresh network for inputs of `shape` (channels first, without the batch); draws its weights from torch."""
        raise TypeError(f"{type(self).__name__} must say how it is built")


class Models(Registry):
    """The zoo, and any nn.Module class a user names by import path."""

    def adopt(self, found: Any) -> Any:
        from polyfed.models.own import own_model

        return own_model(found) if isinstance(found, type) and issubclass(found, nn.Module) else found


models = Models("model", "polyfed.models", Model)
model = models.register
