"""What every model says of itself: trunk, last and head, its smallest input, and where BAVD may listen."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch.nn.functional as F
from pydantic import field_validator
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from polyfed.errors import UsageError
from polyfed.models.lora import Lora, adapt_layers
from polyfed.registry import Registry, Spec, param


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


class Pixels(Net):
    """A network that answers for every pixel: features are [B, h, w, d], and logits are spread to the input's size."""

    def forward(self, x: Tensor) -> Tensor:
        return spread(self.head(self.features(x)).permute(0, 3, 1, 2), x.shape[2:])


def spread(maps: Tensor, size: Sequence[int]) -> Tensor:
    """Maps [B, C, h, w] at another size, bilinear; it commutes with a linear head."""
    return F.interpolate(maps, size=tuple(size), mode="bilinear", align_corners=False)


class Ensemble(nn.Module):
    """A predictor made of several networks; beside their weights it needs plain data only, so it can be built again."""

    kinds: ClassVar[dict[str, type["Ensemble"]]] = {}

    def __init_subclass__(cls) -> None:
        cls.kinds[cls.__name__.lower()] = cls

    def plan(self) -> dict[str, Any]:
        """What `planned` needs, as plain data."""
        raise TypeError(f"{type(self).__name__} must say how it is built again")

    @classmethod
    def planned(cls, plan: dict[str, Any], make: Callable[[], Net]) -> "Ensemble":
        """One of the same structure, from networks that `make` gives; its weights are still to be loaded."""
        raise TypeError(f"{cls.__name__} must say how it is built again")


def bn_modules(net: nn.Module) -> list[nn.Module]:
    """Every BatchNorm layer, in module order."""
    return [module for module in net.modules() if isinstance(module, _BatchNorm)]


class Model(Spec):
    """A kind of network with its typed parameters; `build` makes one for an input shape and a number of classes."""

    of_pixels: ClassVar[bool] = False  # whether it answers for every pixel of an image (masks), or for the whole

    eats: ClassVar[str] = "numbers"  # what its inputs are: numbers (pixels too), tokens, or categories beside numbers

    lora: Lora = param(Lora(), "low-rank adapters on linear layers: rank, alpha, on")
    per_client: dict[str, Any] = param({}, "models of some clients, by name, id or a pattern of names like site-*")

    @field_validator("per_client", mode="before")
    @classmethod
    def _by_client(cls, given: Any) -> Any:
        """Build the model of each client; it has no clients of its own."""
        if not isinstance(given, Mapping):
            raise ValueError("give a mapping from clients to models, for example {0: lenet, site-*: cnn}")
        return {str(who): _of_client(str(who), one) for who, one in given.items()}

    @property
    def common(self) -> "Model":
        """The model of all clients that have none of their own."""
        return self.model_copy(update={"per_client": {}}) if self.per_client else self

    @property
    def architectures(self) -> list["Model"]:
        """The common model, then those of clients, each once."""
        made: list[Model] = []
        for one in (self.common, *self.per_client.values()):
            if one not in made:
                made.append(one)
        return made

    def suited(self, data: Any) -> "Model":
        """The model for a source: what the config leaves open and the source declares (ids, say) is filled in."""
        own = {who: one.suited(data) for who, one in self.per_client.items()}
        return self.model_copy(update={"per_client": own}) if own else self

    def dump(self) -> dict[str, Any]:
        """Everything needed to build this again; models of clients and adapters only where there are any."""
        values = super().dump()
        del values["per_client"]
        if not self.lora.rank:
            del values["lora"]
        own = {who: one.dump() for who, one in self.per_client.items()}
        return {**values, "per_client": own} if own else values

    def smallest(self, shape: tuple[int, ...]) -> int:
        """The smallest side of an image (or length of a sequence) this network can take."""
        return 1

    def made(self, shape: tuple[int, ...], classes: int) -> Net:
        """The network that is trained: a fresh one, with adapters where there are any."""
        net = self.build(shape, classes)
        if self.lora.rank:
            adapt_layers(net, self.lora, f"model '{self.name}'")
        return net

    def build(self, shape: tuple[int, ...], classes: int) -> Net:
        """A fresh network for inputs of `shape` (channels first, without the batch); draws its weights from torch."""
        raise TypeError(f"{type(self).__name__} must say how it is built")

    def sane(self, shape: tuple[int, ...], classes: int) -> None:
        """Refuse what no network can be built for."""
        if classes < 1:
            raise UsageError(f"model '{self.name}' needs at least one class, the data have {classes}")
        if not shape or min(shape) < 1:
            raise UsageError(f"model '{self.name}' needs samples that are not empty, the data have shape {shape}")


class ByName(Model):
    """A model whose class is made while running: it is pickled as its name and parameters, and found again by them."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _by_name, (self.dump(),)


def _of_client(who: str, given: Any) -> Model:
    """A client's model from its section, or from a module given from Python."""
    from polyfed.models.own import hold

    section = isinstance(given, str | Mapping | Spec)
    made: Model = models.build(given, f"model.per_client.{who}") if section else hold(given)
    if made.per_client:
        raise UsageError(f"model.per_client.{who} is the model of a client, and cannot have a per_client of its own")
    return made


def _by_name(section: dict[str, Any]) -> Any:
    return models.build(section, "model")


class Models(Registry):
    """The zoo, and any nn.Module class, instance or factory a user names by import path."""

    def adopt(self, found: Any) -> Any:
        from polyfed.models.own import own_model

        is_module = isinstance(found, type) and issubclass(found, nn.Module)
        is_factory = callable(found) and not isinstance(found, type)
        return own_model(found) if is_module or is_factory else found


models = Models("model", "polyfed.models", Model)
model = models.register
