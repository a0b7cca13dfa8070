"""Named, typed things (methods, models, sources, ...): a Spec says what it takes, a Registry finds it."""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from polyfed.errors import UsageError, did_you_mean


class Spec(BaseModel):
    """A thing chosen by name whose annotated fields are its parameters."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, validate_default=True)
    name: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    kind: ClassVar[str] = "thing"

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


class Registry:
    """All Specs of one kind; filled when its home package is first needed, or by a user's import path."""

    def __init__(self, kind: str, home: str, base: type[Spec] = Spec):
        self.kind, self.home, self.base = kind, home, base
        self._specs: dict[str, type[Spec]] = {}
        registries[kind] = self

    def register(self, name: str, paper: str = "") -> Callable[[type[S]], type[S]]:
        """Class decorator: this Spec answers to `name`."""

        def enter(cls: type[S]) -> type[S]:
            cls.name, cls.paper, cls.kind = name, paper, self.kind
            self._specs[name] = cls
            return cls

        return enter

    def names(self) -> list[str]:
        """Every registered name, sorted."""
        importlib.import_module(self.home)
        return sorted(self._specs)

    def __iter__(self) -> Iterator[type[Spec]]:
        return iter(self._specs[name] for name in self.names())

    def get(self, name: str) -> type[Spec]:
        """The Spec of that name, or at `module:Class` or `file.py:Class`."""
        if not isinstance(name, str):
            raise UsageError(f"{self.kind}.name must be a name, not {name!r}")
        known = self.names()
        if name in self._specs:
            return self._specs[name]
        if ":" in name:
            return self._by_import_path(name)
        raise UsageError(f"unknown {self.kind} '{name}'; {did_you_mean(name, known)}")

    def _by_import_path(self, path: str) -> type[Spec]:
        where, _, attribute = path.rpartition(":")
        try:
            module = _import_file(where) if where.endswith(".py") else importlib.import_module(where)
            found = getattr(module, attribute)
        except Exception as error:
            raise UsageError(f"cannot import {self.kind} '{path}': {type(error).__name__}: {error}") from error
        found = self.adopt(found)
        if not (isinstance(found, type) and issubclass(found, self.base)):
            raise UsageError(f"{self.kind} '{path}' is not a subclass of {self.base.__name__}")
        found.name, found.kind = path, self.kind
        self._specs[path] = found
        return found

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
        values = dict(section)
        spec = self.get(values.pop("name", ""))
        return make(spec, values, path, f"{self.kind} '{spec.name}'")


def make(spec: type[S], values: dict[str, Any], path: str, owner: str) -> S:
    """Validate values against a Spec's typed fields; a mistake becomes one sentence."""
    ready = {key: _nested(spec, key, value, f"{path}.{key}") for key, value in values.items()}
    try:
        return spec(**ready)
    except ValidationError as error:
        raise UsageError(explain(error, path, set(spec.model_fields) | {"name"}, owner)) from None


def explain(error: ValidationError, path: str, valid: set[str], owner: str) -> str:
    """The first complaint of pydantic as one sentence with the full key."""
    first = error.errors(include_url=False)[0]
    location = [str(part) for part in first["loc"]]
    key = ".".join([path, *location]) if path else ".".join(location)
    if first["type"] == "extra_forbidden":
        return f"unknown key '{key}' for {owner}; {did_you_mean(location[-1], valid)}"
    if first["type"] == "missing":
        return f"'{key}' must be given for {owner}"
    message = first["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return f"'{key}': {message[0].lower() + message[1:]} (got {first['input']!r})"


def _nested(spec: type[Spec], key: str, value: Any, path: str) -> Any:
    """A field that is itself a Spec (ECL's base) is built from its own section."""
    field = spec.model_fields.get(key)
    kind = getattr(field.annotation, "kind", None) if field else None
    return registries[kind].build(value, path) if kind in registries else value


def _import_file(path: str) -> Any:
    """Import a user's file by path, once, under a stable module name."""
    file = Path(path).resolve()
    name = f"polyfed_user_{file.stem}"
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) == str(file):
        return known
    description = importlib.util.spec_from_file_location(name, file)
    if description is None or description.loader is None or not file.is_file():
        raise FileNotFoundError(f"no file {file}")
    module = importlib.util.module_from_spec(description)
    sys.modules[name] = module
    description.loader.exec_module(module)
    return module
