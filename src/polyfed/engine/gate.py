"""What every upload passes before it may touch the model: declared keys, shapes, finite, in range, not too long."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from polyfed.message import Field, Message, Wire
from polyfed.params import Layout
from polyfed.parts.average import BLOCK

Refusal = tuple[str, str]  # its kind, and a sentence


class Length(NamedTuple):
    """How long a field of an upload is, or its update, and how long what was sent is, where it is measured by that."""

    own: float
    sent: float = 0.0


Lengths = dict[str, Length]  # by field
WINDOW = 100  # lengths of a field that are remembered
FEW = 4  # lengths that must be known before their median says anything
LARGEST = 2**53  # an integer buffer counts no further


class Gate:
    """Checks messages against a method's wire; a reason means rejected."""

    def __init__(self, wire: Wire, layout: Layout, dims: Mapping[str, int], norm: float):
        self.wire, self.layout, self.dims, self.norm = wire, layout, dims, norm
        self._declared = set(wire.up) | {f"{n}.integers" for n, f in wire.up.items() if f.part is not None}
        self._last: tuple[Tensor, float] | None = None

    def reason(self, up: Message, down: Message, lengths: Lengths | None = None) -> Refusal | None:
        """Why this upload is rejected, or None; `lengths` is told how long everything is."""
        free: dict[str, int] = {}
        for name in up:
            if name not in self._declared:
                return "undeclared", f"'{name}' is not declared by the method"
        for name, field in self.wire.up.items():
            if name not in up:
                if field.optional:
                    continue
                return "missing", f"'{name}' is missing"
            fault = self._shape(name, field, up, free) or self._content(name, field, up, down, lengths)
            if fault:
                return fault
        return None

    def _shape(self, name: str, field: Field, up: Message, free: dict[str, int]) -> Refusal | None:
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

    def _integers(self, name: str, up: Message, want: tuple[int, ...]) -> Refusal | None:
        """The integer buffers that ride beside a slice."""
        value = up.get(name, torch.empty(0, dtype=torch.int64))
        if not isinstance(value, Tensor) or value.dtype != torch.int64:
            return "type", f"'{name}' does not hold integers"
        if tuple(value.shape) != want:
            return "shape", f"'{name}' has shape {tuple(value.shape)}, expected {want}"
        if value.numel() and not -LARGEST <= int(value.min()) <= int(value.max()) <= LARGEST:
            return "range", f"'{name}' holds integers beyond 2^53"
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

    def _content(self, name: str, field: Field, up: Message, down: Message, lengths: Lengths | None) -> Refusal | None:
        value = up[name]
        if isinstance(value, Tensor) and not value.numel():
            return None
        if field.below is not None:
            return self._counted(name, field, torch.as_tensor(value))
        tensor = value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)
        length = self._measured(field, tensor, down)
        if not math.isfinite(length.own) and not torch.isfinite(tensor).all():
            return "nonfinite", f"'{name}' holds NaN or infinite values"
        if lengths is not None and field.kind == "float":
            lengths[name] = length
        limit = self.norm * length.sent
        if limit and length.own > limit:
            update = "the update of " if field.against is not None else ""
            return "norm", f"{update}'{name}' is {length.own:.3g} long, more than gate.norm allows ({limit:.3g})"
        if field.bound is not None and float(tensor.abs().max()) > field.bound:
            return "bound", f"'{name}' holds values beyond {field.bound:g}, the most its method allows"
        return None

    def _measured(self, field: Field, value: Tensor, down: Message) -> Length:
        """The length of a value, or of its update; of several models that were sent the nearest counts."""
        if field.against is None:
            sent = self._sent_length(down[field.like].reshape(-1)) if field.like is not None else 0.0
            return Length(_length(value), sent)
        rows = down[field.against].reshape(-1, value.numel())
        length, nearest = min((_distance(value.reshape(-1), row), k) for k, row in enumerate(rows))
        return Length(length, self._sent_length(rows[nearest]))

    def _counted(self, name: str, field: Field, value: Tensor) -> Refusal | None:
        """Whether integers lie where they must, and none comes twice where they must differ."""
        below = field.below if isinstance(field.below, int) else self.dims[str(field.below)]
        if value.is_floating_point() or int(value.min()) < 0 or int(value.max()) >= below:
            return "range", f"'{name}' must be whole numbers from 0 to {below - 1}"
        if field.distinct and len(value.unique()) < value.numel():
            return "range", f"'{name}' names something twice"
        return None

    def _sent_length(self, sent: Tensor) -> float:
        """The length of a model that was sent, 1 if it is nothing; many clients get the same one."""
        last = None if self._last is None else (self._last[0].data_ptr(), self._last[0].numel())
        if last != (sent.data_ptr(), sent.numel()):  # the first of several models lies where all of them begin
            self._last = sent, _length(sent) or 1.0
        assert self._last is not None
        return self._last[1]


def _distance(one: Tensor, other: Tensor) -> float:
    """The length of a difference, of which only a block is in memory at a time."""
    blocks = zip(one.split(BLOCK), other.split(BLOCK), strict=True)
    return math.hypot(*(_length(a - b) for a, b in blocks))


def _length(vector: Tensor) -> float:
    """A length, which may be infinite only where a value is not finite: squares of large ones are taken in double."""
    length = float(torch.linalg.vector_norm(vector))
    return length if math.isfinite(length) else float(torch.linalg.vector_norm(vector, dtype=torch.float64))


def finite(value: Tensor) -> bool:
    """Whether every value is finite."""
    return math.isfinite(_length(value))


def _is_number(value: object) -> bool:
    """A number that fits 64 bits: JSON from a foreign peer may hold anything."""
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63)


class Medians:
    """How long the updates of each field usually are: one that is many times longer is not merged.

    What is usual is the median of accepted lengths, or of this round's if that is larger: where all move further than
    before, nobody is blamed. It takes a few lengths to know. An update no longer than what was sent always passes: a
    client that holds far more data than the others moves far more often, and does no harm by that.
    """

    def __init__(self, times: float, known: dict[str, list[float]]):
        self.times, self.known = times, known

    def too_long(self, lengths: Mapping[int, Lengths]) -> dict[int, Refusal]:
        """Whose upload of this round is too long and why, whatever the order in which they came."""
        found: dict[int, Refusal] = {}
        for name in sorted({name for each in lengths.values() for name in each}):
            theirs = {client: each[name] for client, each in sorted(lengths.items()) if name in each}
            usual = max(_median(self.known.get(name, ())), _median([length.own for length in theirs.values()]))
            for client, length in theirs.items():
                if usual and length.own > max(self.times * usual, length.sent):
                    found.setdefault(client, ("median", self._sentence(name, length.own, usual)))
        return found

    def _sentence(self, name: str, length: float, usual: float) -> str:
        return (
            f"'{name}' moves by {length:.3g}, {length / usual:.3g} times as far as is usual ({usual:.3g}); "
            f"gate.median allows {self.times:g} times"
        )

    def learn(self, lengths: Iterable[Lengths]) -> None:
        """These uploads are merged: what is usual follows them."""
        for each in lengths:
            for name, length in each.items():
                if length.own:
                    self.known[name] = [*self.known.get(name, ()), length.own][-WINDOW:]


def _median(lengths: Sequence[float]) -> float:
    """The lower median of those that moved at all; 0 where too few did."""
    moved = sorted(length for length in lengths if length)
    return moved[(len(moved) - 1) // 2] if len(moved) >= FEW else 0.0
