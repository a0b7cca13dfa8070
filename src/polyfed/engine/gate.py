"""What every upload passes before it may touch the global model: declared keys, shapes, finite, and not too long."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from polyfed.message import Field, Message, Wire
from polyfed.params import Layout
from polyfed.parts.average import BLOCK


class Gate:
    """Checks messages against a method's wire; a reason means rejected."""

    def __init__(self, wire: Wire, layout: Layout, dims: Mapping[str, int], norm: float):
        self.wire, self.layout, self.dims, self.norm = wire, layout, dims, norm
        self._declared = set(wire.up) | {f"{n}.integers" for n, f in wire.up.items() if f.part is not None}
        self._last: tuple[Tensor, float] | None = None

    def reason(self, up: Message, down: Message) -> tuple[str, str] | None:
        """Why this upload is rejected, as (kind, sentence), or None."""
        free: dict[str, int] = {}
        for name in up:
            if name not in self._declared:
                return "undeclared", f"'{name}' is not declared by the method"
        for name, field in self.wire.up.items():
            if name not in up:
                if field.optional:
                    continue
                return "missing", f"'{name}' is missing"
            fault = self._shape(name, field, up, free) or self._content(name, field, up, down)
            if fault:
                return fault
        return None

    def _shape(self, name: str, field: Field, up: Message, free: dict[str, int]) -> tuple[str, str] | None:
        value = up[name]
        if field.kind == "number":
            return None if _is_number(value) else ("type", f"'{name}' is not a number")
        if not isinstance(value, Tensor):
            return "type", f"'{name}' is not a tensor"
        right = torch.float32 if field.kind == "float" else torch.int64
        if value.dtype != right:
            return "type", f"'{name}' holds {value.dtype}, not {right}"
        want = (self.layout.length(field.part),) if field.part is not None else self._rows(field, value, free)
        if tuple(value.shape) != want:
            return "shape", f"'{name}' has shape {tuple(value.shape)}, expected {want}"
        if field.part is None:
            return None
        return self._integers(f"{name}.integers", up, (self.layout.length(field.part, integers=True),))

    def _integers(self, name: str, up: Message, want: tuple[int, ...]) -> tuple[str, str] | None:
        """The integer buffers that ride beside a slice."""
        value = up.get(name, torch.empty(0, dtype=torch.int64))
        if not isinstance(value, Tensor) or value.dtype != torch.int64:
            return "type", f"'{name}' does not hold integers"
        if tuple(value.shape) != want:
            return "shape", f"'{name}' has shape {tuple(value.shape)}, expected {want}"
        return None

    def _rows(self, field: Field, value: Tensor, free: dict[str, int]) -> tuple[int, ...]:
        """The shape a row field must have; a free dimension is fixed by its first use in the message."""
        want = []
        for at, dim in enumerate(field.rows):
            if isinstance(dim, int):
                want.append(dim)
            elif dim in self.dims:
                want.append(self.dims[dim])
            else:
                want.append(free.setdefault(dim, value.shape[at] if at < value.dim() else -1))
        return tuple(want)

    def _content(self, name: str, field: Field, up: Message, down: Message) -> tuple[str, str] | None:
        value = up[name]
        if field.kind == "integer" or (isinstance(value, Tensor) and not value.numel()):
            return None
        if field.kind == "number" or field.against is None:
            return None if finite(torch.as_tensor(value)) else _nonfinite(name)
        sent = down[field.against].reshape(-1, value.numel())  # several models: the nearest counts
        if len(sent) == 1 and self._surely_near(value, sent[0]):
            return None
        length, nearest = min((_distance(value.reshape(-1), row), k) for k, row in enumerate(sent))
        if not math.isfinite(length):
            if not torch.isfinite(value).all():
                return _nonfinite(name)
            length, nearest = min((_length(value.reshape(-1).double() - row), k) for k, row in enumerate(sent))
        limit = self.norm * (self._sent_length(sent[nearest]) or 1.0)
        if length > limit:
            return "norm", f"the update of '{name}' is {length:.3g} long, more than gate.norm allows ({limit:.3g})"
        return None

    def _surely_near(self, value: Tensor, sent: Tensor) -> bool:
        """Whether the two lengths alone show it: a difference is no longer than both, and costs more to find."""
        length = self._sent_length(sent)
        return _length(value) + length <= self.norm * (length or 1.0)

    def _sent_length(self, sent: Tensor) -> float:
        """The length of a model that was sent; many clients get the same one."""
        if self._last is None or self._last[0].data_ptr() != sent.data_ptr():
            self._last = sent, _length(sent)
        return self._last[1]


def _nonfinite(name: str) -> tuple[str, str]:
    return "nonfinite", f"'{name}' holds NaN or infinite values"


def _distance(one: Tensor, other: Tensor) -> float:
    """The length of a difference, of which only a block is in memory at a time."""
    blocks = zip(one.split(BLOCK), other.split(BLOCK), strict=True)
    return math.hypot(*(_length(a - b) for a, b in blocks))


def _length(vector: Tensor) -> float:
    return float(torch.linalg.vector_norm(vector))


def finite(value: Tensor) -> bool:
    """Whether every value is finite: the length tells at once, unless it overflows."""
    return math.isfinite(_length(value.float())) or bool(torch.isfinite(value).all())


def _is_number(value: object) -> bool:
    """A number that fits 64 bits: JSON from a foreign peer may hold anything."""
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63)
