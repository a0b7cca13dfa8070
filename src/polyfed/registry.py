"""Named, typed things (methods, models, sources, ...): a Spec says what it takes, a Registry finds it."""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from polyfed import outside
from polyfed.errors import UsageError, did_you_mean

LARGEST = 10**18 - 1  # of whole numbers: beyond it, no loop ends and no array takes them


class Typed(BaseModel):
    """Keys whose values are read by type."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    @field_validator("*", mode="before")
    @classmethod
    def _truth_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        """`rounds=true` is a slip, though Python takes true for 1."""
        takes = str(cls.model_fields[info.field_name or ""].annotation)
        if isinstance(value, bool) and ("int" in takes or "float" in takes) and "bool" not in takes:
            raise ValueError("input should be a number")
        if isinstance(value, int) and abs(value) > LARGEST:
            raise ValueError(f"input should be a number of at most {len(str(LARGEST))} digits")
        return value


def contradiction(sentence: str) -> PydanticCustomError:
    """The complaint of a validator that looks at several keys; its sentence names them."""
    return PydanticCustomError("contradiction", "{sentence}", {"sentence": sentence})


class Spec(Typed):
    """A thing chosen by name whose annotated fields are its parameters."""

    model_config = ConfigDict(arbitrary_types_allowed=True, validate_default=True)
    name: ClassVar[str] = ""
    paper: ClassVar[str] = ""  # its authors and year
    title: ClassVar[str] = ""  # the paper's
    written: ClassVar[str] = ""  # as its paper writes it, where that is not its name
    kind: ClassVar[str] = "thing"

    def reaches(self) -> str | None:
        """A place outside of the run's directory that it works with when a run goes on: a cluster, a folder."""
        return None

    def dump(self) -> dict[str, Any]:
        """Everything needed to build this again: its name and every parameter."""
        values: dict[str, Any] = {"name": self.name}
        for key in type(self).model_fields:
            value = getattr(self, key)
            values[key] = value.dump() if isinstance(value, Spec) else self.model_dump(mode="json", include={key})[key]
        return values


def param(default: Any, what: str, **bounds: Any) -> Any:
    """A parameter with its default, what it is for, and its range (ge, gt, le, lt)."""
    return Field(default, description=what, **bounds)


S = TypeVar("S", bound=Spec)
registries: dict[str, "Registry"] = {}
SHOWN = 200  # characters of a wrong value that a sentence repeats


class Registry:
    """All Specs of one kind; filled when its home package is first needed, or by a user's import path.

    Where the home itself imports none of them, `members` is the module that does.
    """

    def __init__(self, kind: str, home: str, base: type[Spec] = Spec, members: str = ""):
        self.kind, self.home, self.base = kind, home, base
        self.members = members or home
        self._specs: dict[str, type[Spec]] = {}
        registries[kind] = self

    def register(self, name: str, paper: str = "", title: str = "", written: str = "") -> Callable[[type[S]], type[S]]:
        """Class decorator: this Spec answers to `name`.

        It comes from a paper by these authors, with this title, which writes its name as `written`.
        """

        def enter(cls: type[S]) -> type[S]:
            cls.paper, cls.title, cls.written = paper, title, written
            return self._enter(cls, name)

        return enter

    def names(self) -> list[str]:
        """Every registered name, sorted."""
        importlib.import_module(self.members)
        return sorted(self._specs)

    def as_written(self, name: str) -> str:
        """How a paper writes what is registered here under a name; other names stay as they are, nothing is loaded."""
        importlib.import_module(self.members)
        known = self._specs.get(name)
        return (known.written if known is not None else "") or name

    def __iter__(self) -> Iterator[type[Spec]]:
        return iter(self._specs[name] for name in self.names())

    def get(self, name: str) -> type[Spec]:
        """The Spec of that name, or at `module:Class` or `file.py:Class`."""
        if not isinstance(name, str):
            raise UsageError(f"a {self.kind} is chosen by its name, not by {name!r}")
        known = self.names()
        if name in self._specs:
            return self._specs[name]
        if ":" in name:
            return self._by_import_path(name)
        raise UsageError(f"unknown {self.kind} '{name}'; {did_you_mean(name, known)}")

    def _by_import_path(self, path: str) -> type[Spec]:
        where, _, attribute = path.rpartition(":")
        with self._importing(path):
            code = outside.find(where)
        ours = not where.endswith(".py") and f"{where}.".startswith(f"{self.home}.")  # a file may have any name
        if not ours:
            outside.admit(self.kind, path, code.files)
        with self._importing(path):
            found = getattr(code.load(), attribute)
        found = self.adopt(found)
        if not (isinstance(found, type) and issubclass(found, self.base)):
            raise UsageError(f"{self.kind} '{path}' is not a subclass of {self.base.__name__}")
        named = self._specs.get(found.name) is found and found.__module__.startswith(self.home)
        return found if named else self._enter(found, path)  # a later process can only find it by its path

    @contextmanager
    def _importing(self, path: str) -> Iterator[None]:
        """Whatever goes wrong inside is one sentence."""
        try:
            yield
        except Exception as error:
            raise UsageError(f"cannot import {self.kind} '{path}': {type(error).__name__}: {error}") from error

    def hold(self, spec: type[S], name: str | None = None) -> type[S]:
        """A class given from Python: unless it has a name here, it gets this one, or its import path."""
        known = self._specs.get(spec.name) is spec
        return spec if known else self._enter(spec, name or f"{spec.__module__}:{spec.__qualname__}")

    def _enter(self, spec: type[S], name: str) -> type[S]:
        spec.name, spec.kind = name, self.kind
        self._specs[name] = spec
        return spec

    def adopt(self, found: Any) -> Any:
        """A hook: turn what an import path names (say, a plain nn.Module class) into a Spec."""
        return found

    def build(self, section: Any, path: str) -> Any:
        """A Spec from a config section: a bare name, a mapping with `name`, or a ready Spec."""
        if isinstance(section, Spec):
            return section
        if isinstance(section, str):
            section = {"name": section}
        if not isinstance(section, dict):
            raise UsageError(f"'{path}' must be a name or a mapping, not {section!r}")
        values = in_words(section, path)
        spec = self.get(values.pop("name", ""))
        return make(spec, values, path, f"{self.kind} '{spec.name}'")


def specs_in(value: Any) -> Iterator[Spec]:
    """Every Spec that was chosen in a config, or in a Spec."""
    if isinstance(value, Spec):
        yield value
    if isinstance(value, dict):
        for one in value.values():
            yield from specs_in(one)
    if isinstance(value, BaseModel):
        for key in type(value).model_fields:
            yield from specs_in(getattr(value, key))


def in_words(section: dict[Any, Any], path: str) -> dict[str, Any]:
    """A section whose keys are all words; YAML would let a key be a number."""
    strange = [key for key in section if not isinstance(key, str)]
    if strange:
        raise UsageError(f"'{path}' has the key {strange[0]!r}, which is not a word")
    return dict(section)


def make(spec: type[S], values: dict[str, Any], path: str, owner: str) -> S:
    """Validate values against a Spec's typed fields; a mistake becomes one sentence."""
    ready = {key: _nested(spec, key, value, f"{path}.{key}") for key, value in values.items()}
    try:
        return spec(**ready)
    except ValidationError as error:
        raise UsageError(explain(error, path, set(spec.model_fields) | {"name"}, owner)) from None


def explain(error: ValidationError, path: str, valid: set[str], owner: str) -> str:
    """The first complaint of pydantic as one sentence with the full key; `valid` are the keys there are."""
    found = error.errors(include_url=False)
    first = found[0]
    location = [str(part) for part in first["loc"]]
    if first["type"] == "contradiction":
        return first["msg"]
    if first["type"] == "extra_forbidden":
        return f"unknown key '{_key(path, location)}' for {owner}; {did_you_mean(location[-1], valid)}"
    location = _up_to_field(location, valid)
    key = _key(path, location)
    if first["type"] == "missing":
        return f"'{key}' must be given for {owner}"
    if first["type"] == "model_type":
        return f"'{key}' must hold keys and values of its own (got {_shown(first['input'])})"
    about = [e for e in found if [str(part) for part in e["loc"]][: len(location)] == location]
    got = "" if isinstance(first["input"], Spec) else f" (got {_shown(first['input'])})"
    return f"'{key}': {_either([str(e['msg']) for e in about])}{got}"


def _shown(value: Any) -> str:
    """A value as a sentence can hold it."""
    try:
        text = repr(value)
    except ValueError:  # a number with more digits than Python writes
        text = "a very large number"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _key(path: str, location: list[str]) -> str:
    return ".".join([path, *location] if path else location)


def _up_to_field(location: list[str], valid: set[str]) -> list[str]:
    """Where a complaint belongs: what pydantic adds behind the key says only which kind of value it tried."""
    for at, part in enumerate(location):
        if part in valid:
            return location[: at + 1]
    return location


def _either(messages: list[str]) -> str:
    """One message, or for a key that takes several kinds of values what each of them expects."""
    plain = [m.removeprefix("Value error, ").removeprefix("Assertion failed, ") for m in messages]
    same = "Input should be "
    first, *others = dict.fromkeys(plain)
    return ", or ".join([first[:1].lower() + first[1:], *(m.removeprefix(same) for m in others)])


def _nested(spec: type[Spec], key: str, value: Any, path: str) -> Any:
    """A field that is itself a Spec (ECL's base) is built from its own section; unnamed, it is the default one."""
    field = spec.model_fields.get(key)
    kind = getattr(field.annotation, "kind", None) if field else None
    if field is None or kind not in registries:
        return value
    if isinstance(value, dict) and isinstance(field.default, Spec):
        value = {"name": field.default.name, **value}
    return registries[kind].build(value, path)
