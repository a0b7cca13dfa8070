"""What a comparison's file may hold: plain values, and how they are written in names."""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import numpy as np

from polyfed.errors import UsageError
from polyfed.methods.base import Method, methods
from polyfed.registry import Spec


def word(value: Any) -> str:
    """A value of an axis in a label."""
    if isinstance(value, dict):
        return " ".join(str(v) if k == "name" else f"{k}={word(v)}" for k, v in value.items())
    return str(value).lower() if isinstance(value, bool) else "none" if value is None else str(value)


def value_at(tree: Mapping[str, Any], key: str) -> Any:
    """The value at a dotted key of a complete tree; for a section, its name."""
    value: Any = tree
    for step in key.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    return value.get("name", value) if isinstance(value, dict) else value


def plain(value: Any, key: str = "") -> Any:
    """A tree as a file holds it; classes of methods by their names."""
    match value:
        case np.generic():
            return value.item()
        case dict():
            return {name: plain(inside, f"{key}.{name}" if key else str(name)) for name, inside in value.items()}
        case list() | tuple():
            return [plain(inside, key) for inside in value]
        case str() | bool() | int() | float() | None:
            return value
        case PurePath():
            return str(value)
        case Spec():
            return value.dump()
        case type() if issubclass(value, Method):
            return methods.hold(value).name
    raise UsageError(f"'{key}' cannot be part of a comparison: {type(value).__name__} is no plain value")
