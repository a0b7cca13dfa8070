"""A user's own nn.Module: its last linear layer is the head unless named, everything before it is the trunk.

A class or a factory is called for every build (with `shape` and `classes` if its signature names them), so its weights
come from the seeded generator. An instance is copied for every build: its own weights are the initial model. `last` of
such a model is empty; a module that wants one, for ECL, is written as a `Net`, which is taken as it is.
"""

import copy
import hashlib
import importlib
import inspect
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from polyfed.errors import DataError, UsageError
from polyfed.models.base import ByName, Model, Net, model, models
from polyfed.registry import param


class Wrapped(Net):
    """A user's module as a Net: the trunk is the module without its head, `last` does nothing."""

    def __init__(self, module: nn.Module, head: str, listens: tuple[str, ...] = ()):
        linear = module.get_submodule(head)
        parent, _, leaf = head.rpartition(".")
        if head:
            setattr(module.get_submodule(parent), leaf, nn.Identity())
        trunk = module if head else nn.Identity()  # a bare linear layer is all head
        super().__init__(trunk, nn.Identity(), linear, tuple(f"trunk.{name}" for name in listens))


class Own(ByName):
    """What a user's modules have in common, however they were given."""

    head: str | None = param(None, "dotted name of the linear layer that is the head; by default the last one")
    listens: tuple[str, ...] = param((), "dotted names of the modules whose output BAVD may mask")

    def source(self) -> Any:
        """The class, factory or instance."""
        raise TypeError(f"{type(self).__name__} must say where its module comes from")

    def build(self, shape: tuple[int, ...], classes: int) -> Net:
        self.sane(shape, classes)
        module = self._module(shape, classes)
        x = torch.linspace(0, 1, 2 * prod(shape)).reshape(2, *shape)  # not all zero: two answers can be told apart
        logits = self._logits(module, x)  # also lets lazy layers take shape
        net = module if isinstance(module, Net) else Wrapped(module, self._head(module), self._listens(module))
        self._check_split(net, x, logits)
        if logits.ndim != 2 or logits.shape[1] != classes:
            raise UsageError(
                f"{self._who()} gives outputs of shape {tuple(logits.shape)} for two samples, expected (2, {classes}), "
                f"a number per class; make its last layer {classes} wide, or let it take `classes`"
            )
        if net is module and (self.head or self.listens):
            raise UsageError(f"{self._who()} is a Net and names its own parts; leave out model.head and model.listens")
        return net.train()

    def _who(self) -> str:
        return f"model '{self.name}'"

    def _module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        source = self.source()
        if isinstance(source, nn.Module):
            return _copy(source, self._who())
        try:
            names = set(inspect.signature(source).parameters)
        except ValueError:
            names = set()  # it is written in C, and its parameters are unknown
        given = {name: value for name, value in (("shape", shape), ("classes", classes)) if name in names}
        try:
            module = source(**given)
        except Exception as error:
            raise UsageError(
                f"{self._who()} could not be made, called with {', '.join(given) or 'no arguments'} "
                f"(only `shape` and `classes` are ever passed): {_first_line(error)}"
            ) from error
        if not isinstance(module, nn.Module):
            raise UsageError(f"{self._who()} must be an nn.Module or make one, it made a {type(module).__name__}")
        return module

    def _logits(self, net: nn.Module, x: Tensor) -> Tensor:
        """What the module answers in eval mode."""
        try:
            with torch.no_grad():
                out = net.eval()(x)
        except Exception as error:
            raise UsageError(
                f"{self._who()} fails on inputs of shape {tuple(x.shape)}: {_first_line(error)}"
            ) from error
        if not isinstance(out, Tensor):
            raise UsageError(f"{self._who()} must return one tensor of logits, it returned a {type(out).__name__}")
        return out

    def _head(self, module: nn.Module) -> str:
        linear = [name for name, part in module.named_modules() if isinstance(part, nn.Linear)]
        if not linear:
            raise UsageError(f"{self._who()} has no linear layer to be its head; end it with an nn.Linear")
        if self.head is None:
            return linear[-1]
        if self.head not in linear:
            raise UsageError(
                f"'model.head': {self._who()} has no linear layer '{self.head}'; it has: {', '.join(linear)}"
            )
        return self.head

    def _listens(self, module: nn.Module) -> tuple[str, ...]:
        parts = {name for name, _ in module.named_modules()}
        for name in self.listens:
            if name not in parts:
                raise UsageError(f"'model.listens': {self._who()} has no module '{name}'")
        return self.listens

    def _check_split(self, net: Net, x: Tensor, logits: Tensor) -> None:
        """The head must come last: head(trunk(x)) must be what the whole module answers."""
        tied = {id(p) for p in net.trunk.parameters()} & {id(p) for p in net.head.parameters()}
        try:
            again = self._logits(net, x)
        except UsageError:
            again = logits.new_empty(0)
        if tied or again.shape != logits.shape or not torch.allclose(again, logits, equal_nan=True):
            raise UsageError(
                f"{self._who()} does more with its head than end in it (softmax or a layer after it, shared weights, "
                "several uses); return the head's logits, or name the right layer by model.head"
            )


def own_model(given: Any) -> type[Model]:
    """A model class from an nn.Module class, factory or instance that has an import path; `hold` is for all others."""

    class Given(Own):
        __doc__ = inspect.getdoc(given) or "A user's own module."

        def source(self) -> Any:
            return given

    Given.name, Given.kind = getattr(given, "__qualname__", type(given).__qualname__), models.kind
    return Given


_held: dict[str, Any] = {}


@model("own")
class Held(Own):
    """A module given as a Python object: it lives in this process, the description only knows its key."""

    key: str = param(..., "which of the objects given in this process; made by polyfed, not by hand")

    def source(self) -> Any:
        if self.key not in _held:
            raise DataError(
                f"model '{self.key}' was given as a Python object and this process does not have it; pass it again, "
                "or name its class by import path (model=package.module:Class or file.py:Class)"
            )
        return _held[self.key]

    def _who(self) -> str:
        return f"model '{self.key}'"


def given(key: str) -> Any:
    """The object of this process that a key stands for."""
    return models.build({"name": Held.name, "key": key}, "model").source()


def give(key: str, source: Any) -> None:
    """Register an object of another process here, under the key it has there."""
    _held[key] = source


def hold(source: Any, head: str | None = None, listens: tuple[str, ...] = ()) -> Model:
    """The description of a module given from Python: an instance, a class or a factory.

    What can be imported again is described by its import path; all else is kept here, under a key. The key of an
    instance is a digest of its structure and weights, so the same object given again, later, is recognised.
    """
    if not callable(source) or (isinstance(source, type) and not issubclass(source, nn.Module)):
        raise UsageError(f"a model must be a name, an nn.Module, or a function that makes one, not {source!r}")
    path = _import_path(source)
    parts = {"head": head, "listens": listens}
    if path is not None:
        found = models.build({"name": path, **parts}, "model")
        if found.source() is source:  # not an older one, from before its file was loaded again
            return found
    return models.build({"name": Held.name, "key": _keep(source), **parts}, "model")


def _import_path(source: Any) -> str | None:
    module, name = getattr(source, "__module__", None), getattr(source, "__qualname__", "")
    if isinstance(source, nn.Module) or module is None or module.startswith(("__main__", "polyfed_user_")):
        return None  # instances, the script itself, and files that were loaded by path
    try:
        return f"{module}:{name}" if getattr(importlib.import_module(module), name, None) is source else None
    except ImportError:
        return None


def _keep(source: Any) -> str:
    if isinstance(source, nn.Module):
        key = f"{type(source).__qualname__}-{_digest(source)}"
        # a copy: what the user trains later must not change what the key stands for
        _held[key] = _copy(source, f"model '{key}'")
        return key
    plain = getattr(source, "__qualname__", type(source).__qualname__)
    key, count = plain, 1
    while _held.setdefault(key, source) is not source:  # another lambda, say
        count += 1
        key = f"{plain}#{count}"
    return key


def _digest(module: nn.Module) -> str:
    """Twelve digits of a module's structure, plain attributes, weights and buffers."""
    state = hashlib.blake2b(repr(module).encode(), digest_size=6)
    for name, part in module.named_modules():
        plain = {k: v for k, v in vars(part).items() if isinstance(v, bool | int | float | str | tuple)}
        plain.pop("training")  # a network is built to be trained, whatever mode it came in
        state.update(f"{name} {sorted(plain.items())}".encode())
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        state.update(f"{name} {tensor.requires_grad}".encode())
        if not nn.parameter.is_lazy(tensor):
            state.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return state.hexdigest()


def _copy(module: nn.Module, who: str) -> nn.Module:
    try:
        return copy.deepcopy(module)
    except Exception as error:
        raise UsageError(f"{who} cannot be copied ({_first_line(error)}); give its class instead") from error


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
