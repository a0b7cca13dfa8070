"""What crosses the wire and what is kept: named tensors and numbers, in a format that executes nothing."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from polyfed.data.samples import onto
from polyfed.errors import UsageError
from polyfed.params import Layout, Params, Slice, nothing

Value = Tensor | Params | int | float
PERSONAL = ("personal", "personal.integers")  # under which a memory keeps the personal slice


class Bundle:
    """Tensors, whole models and numbers by name; reads like an object: `bundle.hpm`, `bundle.get("hpm")`."""

    def __init__(self, /, **values: Value):
        for name, value in values.items():
            self[name] = value

    def __contains__(self, name: str) -> bool:
        return name in self.__dict__

    def __len__(self) -> int:
        return len(self.__dict__)

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dict__)

    def __getitem__(self, name: str) -> Any:
        return self.__dict__[name]

    def __setitem__(self, name: str, value: Value) -> None:
        if hasattr(type(self), name):
            raise ValueError(f"a value cannot be named '{name}': the bundle itself uses that word")
        self.__dict__[name] = value

    def __delitem__(self, name: str) -> None:
        del self.__dict__[name]

    def __setattr__(self, name: str, value: Value) -> None:
        self[name] = value

    def __getattr__(self, name: str) -> Any:  # only for what is not there; types the rest as Any
        raise AttributeError(f"there is no '{name}' here; there is {', '.join(self) or 'nothing'}")

    def get(self, name: str, default: Any = None) -> Any:
        """The value of that name, or the default."""
        return self.__dict__.get(name, default)

    def items(self) -> list[tuple[str, Any]]:
        """Names and values."""
        return list(self.__dict__.items())

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor in it; a whole model is two of them."""
        found: dict[str, Tensor] = {}
        for name, value in self.items():
            if isinstance(value, Params):
                found[f"{name}#flat"], found[f"{name}#integers"] = value.flat, value.integers
            elif isinstance(value, Tensor):
                found[name] = value
        return found

    def numbers(self) -> dict[str, int | float]:
        """Every number in it."""
        return {n: v for n, v in self.items() if not isinstance(v, Tensor | Params)}

    def to(self, device: torch.device) -> Self:
        """The same on a device; itself where it is there already."""
        if all(tensor.device == device for tensor in self.tensors().values()):
            return self
        return self._of({name: _moved(value, device) for name, value in self.items()})

    @property
    def nbytes(self) -> int:
        """Bytes of content: 4 per float, 8 per integer or number."""
        return sum(t.numel() * t.element_size() for t in self.tensors().values()) + 8 * len(self.numbers())

    def encode(self) -> bytes:
        """As safetensors; the numbers are JSON in its header."""
        tensors: dict[str, Tensor] = {}
        storages: set[int] = set()
        for name, tensor in self.tensors().items():
            one = tensor.detach().cpu().contiguous()
            shared = one.untyped_storage().data_ptr() in storages  # the format refuses tensors that share memory
            tensors[name] = one.clone() if shared else one
            storages.add(one.untyped_storage().data_ptr())
        return save_tensors(tensors, metadata={"numbers": json.dumps(only_numbers(self.numbers()))})

    @classmethod
    def decode(cls, blob: bytes, layout: Layout | None = None) -> Self:
        """The inverse of `encode`; raises ValueError for anything that is not such a blob."""
        try:
            return cls._of(_values(blob, layout))
        except (SafetensorError, LookupError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"not a bundle of tensors: {error}") from error

    @classmethod
    def _of(cls, values: dict[str, Any]) -> Self:
        """A bundle of values that one of its kind held."""
        return cls(**values)

    def __reduce__(self) -> tuple[Any, ...]:
        """Between our own processes too it travels as plain bytes."""
        return (type(self).decode, (self.encode(),)) if len(self) else (type(self), ())


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Params):
        return Params(value.layout, onto(value.flat, device), onto(value.integers, device))
    return onto(value, device) if isinstance(value, Tensor) else value


def _values(blob: bytes, layout: Layout | None) -> dict[str, Any]:
    """What a blob holds, by name; whatever is wrong with it raises one of a few errors."""
    length = int.from_bytes(blob[:8], "little")
    header = json.loads(blob[8 : 8 + length])
    values: dict[str, Any] = only_numbers(dict(json.loads(header["__metadata__"]["numbers"])))
    tensors = load_tensors(blob)
    for name, tensor in tensors.items():
        stem, _, what = name.partition("#")
        if what == "flat" and layout is not None:
            integers = tensors[f"{stem}#integers"]
            if (len(tensor), len(integers)) != (layout.size, layout.n_integers):
                raise ValueError(f"'{stem}' is a model of another layout")
            values[stem] = Params(layout, tensor, integers)
        elif what != "integers" or layout is None:
            values[name] = tensor
    return values


def only_numbers(values: dict[str, Any]) -> dict[str, Any]:
    """These values, if every one is a number."""
    strange = [name for name, value in values.items() if not isinstance(value, int | float)]
    if strange:
        raise TypeError(f"'{strange[0]}' is neither a tensor nor a number: {values[strange[0]]!r:.80}")
    return values


class Message(Bundle):
    """What the server sends a client, or a client the server."""


class Memory(Bundle):
    """What a client keeps between rounds and never sends.

    The slice a method declares personal is kept in it too, by the engine, under a name that a method cannot use.
    """

    def __setitem__(self, name: str, value: Value) -> None:
        if name in PERSONAL:
            raise ValueError(
                f"a method cannot keep '{name}' in a client's memory: the slice it declares personal is kept under "
                "that name; choose another"
            )
        super().__setitem__(name, value)

    @property
    def personal_slice(self) -> tuple[Tensor, Tensor] | None:
        """The personal slice, floats and integers; None before the client has trained."""
        floats, integers = PERSONAL
        return (self[floats], self[integers]) if floats in self else None

    def keep_personal(self, floats: Tensor, integers: Tensor) -> None:
        """The personal slice as it is now, for the next round."""
        self.__dict__.update(zip(PERSONAL, (floats, integers), strict=True))

    @classmethod
    def _of(cls, values: dict[str, Any]) -> Self:
        made = cls(**{name: value for name, value in values.items() if name not in PERSONAL})
        if PERSONAL[0] in values:
            made.keep_personal(*(values[name] for name in PERSONAL))
        return made


class State(Bundle):
    """What the server keeps between rounds beside its params; all of it is checkpointed."""


def digest_of(blob: bytes) -> str:
    """A hash of bytes."""
    return hashlib.sha256(blob).hexdigest()


@dataclass(frozen=True)
class Field:
    """One thing in a message: a slice of the model, rows of a shape, or a number.

    Attributes:
        what: What it is, in words.
        part: The slice of the model, if it is one.
        rows: The shape, if it has one. A word stands for a size: "C" is the number of classes, "d" the width of the
            features, "P" the number of weights, "F" of floats and "I" of integers; any other word is a size that is
            free, but the same wherever the message uses the word.
        kind: Whether it holds floats or integers, or is a number.
        optional: Whether it may be absent.
        against: The field sent down from which an update is measured.
        like: The field sent down whose length is the scale of this one.
        bound: The largest absolute value in it, where nothing sent down gives a scale.
        below: Integers are at least 0 and less than this; "C" is the number of classes.
        distinct: Whether no integer may come twice.
        summed: Whether the server needs only the weighted sum of it. This is a promise, stated where it is true.
        sees: What it is computed from: the trained values of the model alone, or samples themselves. Where training is
            private, what follows from the model alone is private, too.
    """

    what: str
    part: Slice | None = None
    rows: tuple[int | str, ...] = ()
    kind: Literal["float", "integer", "number"] = "float"
    optional: bool = False
    against: str | None = None
    like: str | None = None
    bound: float | None = None
    below: int | str | None = None
    distinct: bool = False
    summed: bool = False
    sees: Literal["model", "data"] = "model"

    @property
    def size(self) -> str:
        """How much it holds, in the words of `rows`; P is the whole model, where the field is a slice of it."""
        if self.part is not None:
            return {"everything": "P"}.get(self.part.text, f"P[{self.part}]")
        return "a number" if self.kind == "number" else " ".join(map(str, self.rows)) or "1"

    def __str__(self) -> str:
        if self.part is not None:
            shape = f"the slice '{self.part}'"
        else:
            shape = "a number" if self.kind == "number" else f"{self.kind} rows [{', '.join(map(str, self.rows))}]"
        return f"{self.what}: {shape}" + (", may be absent" if self.optional else "")


@dataclass(frozen=True)
class Wire:
    """Everything that goes down and up, by name: one declaration for gate, byte count, people, secure sums, privacy.

    Attributes:
        down: What the server sends a client.
        up: What a client sends the server; every field of it needs a limit.
    """

    down: dict[str, Field] = field(default_factory=dict)
    up: dict[str, Field] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, one in self.up.items():
            scales = [scale for scale in (one.against, one.like) if scale is not None]
            if not scales and one.bound is None and one.below is None:
                said = "below=" if one.kind == "integer" else "against=, like= or bound="
                raise UsageError(f"the wire sets no limit to '{name}', which clients send: declare it with {said}")
            unknown = [scale for scale in scales if scale not in self.down or self.down[scale].optional]
            if unknown:
                raise UsageError(f"the wire measures '{name}' by '{unknown[0]}', which is not always sent down")

    def also(self, down: dict[str, Field] | None = None, up: dict[str, Field] | None = None) -> "Wire":
        """This wire with more fields, or some replaced."""
        return Wire({**self.down, **(down or {})}, {**self.up, **(up or {})})

    def summing(self, *names: str) -> "Wire":
        """This wire with the promise that the server needs nothing of these uploaded fields but weighted sums."""
        return self.also(up={name: replace(self.up[name], summed=True) for name in names})

    @property
    def only_sums(self) -> bool:
        """Whether the server needs nothing but weighted sums of the uploads."""
        return all(f.summed for f in self.up.values())

    def sizes(self, way: Literal["down", "up"]) -> str:
        """How much goes one way for a client and round: floats, then what else there is, then what may be absent."""
        fields = [f for f in getattr(self, way).values() if f.part != nothing]
        always, at_times = (_sizes([f for f in fields if f.optional == optional]) for optional in (False, True))
        return "; ".join([*[always] * bool(always), *[f"at times {at_times}"] * bool(at_times)]) or "nothing"

    def describe(self) -> dict[str, dict[str, str]]:
        """In words, for people."""
        return {"down": {n: str(f) for n, f in self.down.items()}, "up": {n: str(f) for n, f in self.up.items()}}


def _sizes(fields: list[Field]) -> str:
    """Floats added up, integers and numbers beside them."""
    floats = Counter(f.size for f in fields if f.kind == "float")
    sums = " + ".join(size if times == 1 else f"{times} {size}" for size, times in floats.items())
    beside = [f.size if f.kind == "number" else f"{f.size} integers" for f in fields if f.kind != "float"]
    return ", ".join([*[sums] * bool(sums), *beside])
