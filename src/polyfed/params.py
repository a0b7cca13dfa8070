"""A model as one flat float32 vector: weights, then float buffers; integer buffers ride beside it, never averaged."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from math import prod

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

Range = tuple[int, int]


@dataclass(frozen=True)
class Entry:
    """One tensor of the model and where it lies in its vector."""

    name: str
    shape: tuple[int, ...]
    start: int
    kind: str  # "weight", "buffer" or "integer"
    bn: bool

    @property
    def stop(self) -> int:
        """One past its last position."""
        return self.start + prod(self.shape)

    def view(self, flat: Tensor) -> Tensor:
        """This tensor as a view of the vector; convolution kernels lie channels-last, the layout the CPU is fast in."""
        part = flat[self.start : self.stop]
        if len(self.shape) != 4:
            return part.view(self.shape)
        out, into, high, wide = self.shape
        return part.view(out, high, wide, into).permute(0, 3, 1, 2)


@dataclass(frozen=True)
class Slice:
    """A named choice of entries; combine with | & ~."""

    text: str
    test: Callable[[Entry], bool] = field(compare=False, repr=False)

    def __or__(self, other: "Slice") -> "Slice":
        if nothing in (self, other):
            return other if self == nothing else self
        if everything in (self, other):
            return everything
        return Slice(f"({self.text} or {other.text})", lambda e: self.test(e) or other.test(e))

    def __and__(self, other: "Slice") -> "Slice":
        if everything in (self, other):
            return other if self == everything else self
        if nothing in (self, other):
            return nothing
        return Slice(f"({self.text} and {other.text})", lambda e: self.test(e) and other.test(e))

    def __invert__(self) -> "Slice":
        if self in (nothing, everything):
            return everything if self == nothing else nothing
        return Slice(f"not {self.text}", lambda e: not self.test(e))

    def __str__(self) -> str:
        return self.text


everything = Slice("everything", lambda e: True)
nothing = Slice("nothing", lambda e: False)
trunk = Slice("trunk", lambda e: e.name.startswith("trunk."))
last = Slice("last", lambda e: e.name.startswith("last."))
head = Slice("head", lambda e: e.name.startswith("head."))
body = Slice("body", lambda e: e.name.startswith(("trunk.", "last.")))
bn = Slice("bn", lambda e: e.bn)
lora = Slice("lora", lambda e: e.name.endswith((".lora_a", ".lora_b")))  # low-rank adapters
weights = Slice("weights", lambda e: e.kind == "weight")
buffers = Slice("buffers", lambda e: e.kind != "weight")


def named(*patterns: str) -> Slice:
    """The entries whose name fits one of these shell patterns."""
    quoted = " or ".join(f'"{p}"' for p in patterns)  # quoted: "head" is a name, head is the slice
    return Slice(
        f"({quoted})" if len(patterns) > 1 else quoted, lambda e: any(fnmatchcase(e.name, p) for p in patterns)
    )


class Layout:
    """The name map of a model's vectors; every process derives the same one from the same model."""

    def __init__(self, model: nn.Module):
        in_bn = {f"{name}." for name, module in model.named_modules() if isinstance(module, _BatchNorm)}

        def is_bn(name: str) -> bool:
            return any(name.startswith(prefix) for prefix in in_bn)

        floats: list[tuple[str, Tensor, str]] = [(n, p, "weight") for n, p in model.named_parameters()]
        floats += [(n, b, "buffer") for n, b in model.named_buffers() if b.is_floating_point()]
        integers = [(n, b, "integer") for n, b in model.named_buffers() if not b.is_floating_point()]
        self.floats, self.size = _lay_out(floats, is_bn)
        self.integers, self.n_integers = _lay_out(integers, is_bn)
        self.n_weights = sum(prod(e.shape) for e in self.floats if e.kind == "weight")
        self._ranges: dict[tuple[str, bool], tuple[Range, ...]] = {}

    @property
    def entries(self) -> Iterator[Entry]:
        """Every entry, floats first."""
        yield from self.floats
        yield from self.integers

    def ranges(self, part: Slice, integers: bool = False) -> tuple[Range, ...]:
        """Where a slice lies in the float (or integer) vector, neighbours merged."""
        key = (part.text, integers)
        if key not in self._ranges:
            merged: list[Range] = []
            for entry in self.integers if integers else self.floats:
                if not part.test(entry) or entry.stop == entry.start:
                    continue
                if merged and merged[-1][1] == entry.start:
                    merged[-1] = (merged[-1][0], entry.stop)
                else:
                    merged.append((entry.start, entry.stop))
            self._ranges[key] = tuple(merged)
        return self._ranges[key]

    def length(self, part: Slice, integers: bool = False) -> int:
        """How many numbers a slice holds."""
        return sum(stop - start for start, stop in self.ranges(part, integers))

    def is_whole(self, part: Slice) -> bool:
        """Whether a slice is the whole model."""
        return self.length(part) == self.size and self.length(part, integers=True) == self.n_integers

    def digest(self) -> str:
        """Names, shapes and order as one hash: two sites with another layout cannot exchange vectors."""
        text = ";".join(f"{e.name}:{e.shape}:{e.kind}" for e in self.entries)
        return hashlib.sha256(text.encode()).hexdigest()


def _lay_out(tensors: list[tuple[str, Tensor, str]], is_bn: Callable[[str], bool]) -> tuple[tuple[Entry, ...], int]:
    entries, at = [], 0
    for name, tensor, kind in tensors:
        entries.append(Entry(name, tuple(tensor.shape), at, kind, is_bn(name)))
        at += tensor.numel()
    return tuple(entries), at


class Params:
    """The values of a model: `flat` and `integers` with their layout."""

    __slots__ = ("flat", "integers", "layout")

    def __init__(self, layout: Layout, flat: Tensor, integers: Tensor):
        self.layout, self.flat, self.integers = layout, flat, integers

    @property
    def weights(self) -> Tensor:
        """The trainable part, a view: steps, distances, corrections and control variates act on it."""
        return self.flat[: self.layout.n_weights]

    @property
    def buffers(self) -> Tensor:
        """The float buffers, a view: copied and averaged, never stepped."""
        return self.flat[self.layout.n_weights :]

    def copy(self) -> "Params":
        """Values of their own."""
        return Params(self.layout, self.flat.clone(), self.integers.clone())

    def set(self, other: "Params") -> None:
        """Take another's values, in place."""
        self.flat.copy_(other.flat)
        self.integers.copy_(other.integers)

    def get(self, part: Slice = everything) -> tuple[Tensor, Tensor]:
        """A copy of a slice's values: floats and integers."""
        return _gather(self.flat, self.layout.ranges(part)), _gather(self.integers, self.layout.ranges(part, True))

    def put(self, part: Slice, floats: Tensor, integers: Tensor | None = None) -> None:
        """Write a slice's values, in place; without integers the slice keeps its own."""
        _scatter(self.flat, self.layout.ranges(part), floats)
        if integers is not None:
            _scatter(self.integers, self.layout.ranges(part, True), integers)

    def mix(self, other: "Params", share: float) -> "Params":
        """share * other + (1 - share) * self; integer buffers are self's."""
        return Params(self.layout, torch.lerp(self.flat, other.flat, share), self.integers.clone())

    def digest(self) -> str:
        """A hash of the values, bit for bit."""
        value = hashlib.sha256(self.flat.detach().cpu().numpy().tobytes())
        value.update(self.integers.cpu().numpy().tobytes())
        return value.hexdigest()


def _gather(vector: Tensor, ranges: tuple[Range, ...]) -> Tensor:
    if len(ranges) == 1:
        return vector[ranges[0][0] : ranges[0][1]].clone()
    return torch.cat([vector[a:b] for a, b in ranges]) if ranges else vector[:0].clone()


def _scatter(vector: Tensor, ranges: tuple[Range, ...], values: Tensor) -> None:
    held = sum(b - a for a, b in ranges)
    if values.shape != (held,):
        raise ValueError(f"a slice of {held} numbers cannot take values of shape {list(values.shape)}")
    at = 0
    for a, b in ranges:
        vector[a:b] = values[at : at + b - a]
        at += b - a


def bind(model: nn.Module, layout: Layout, device: torch.device | None = None) -> Params:
    """Move a model's tensors into flat vectors and leave views in their place: the model is live, the vector is it."""
    device = device or torch.device("cpu")
    flat = torch.empty(layout.size, device=device)
    integers = torch.empty(layout.n_integers, dtype=torch.int64, device=device)
    parameters, tensors = dict(model.named_parameters()), dict(model.named_buffers())
    with torch.no_grad():
        for entry in layout.entries:
            view = entry.view(integers if entry.kind == "integer" else flat)
            if entry.kind == "weight":
                view.copy_(parameters[entry.name])
                parameters[entry.name].data = view
            else:
                view.copy_(tensors[entry.name])
                _set_buffer(model, entry.name, view)
    return Params(layout, flat, integers)


def _set_buffer(model: nn.Module, name: str, value: Tensor) -> None:
    path, _, leaf = name.rpartition(".")
    model.get_submodule(path)._buffers[leaf] = value
