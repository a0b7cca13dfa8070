"""polyfed: federated learning that ends in one good model per client."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyfed import methods
    from polyfed.api import Comparison, Result, compare, federation, load, resume, run

__all__ = ["Comparison", "Result", "compare", "federation", "load", "methods", "resume", "run"]


def __getattr__(name: str) -> Any:
    """The API is imported when first used: `polyfed --help` needs no torch."""
    if name == "methods":  # the room: importing it anywhere binds this name to it, so it is never anything else
        return import_module("polyfed.methods")
    if name in __all__:
        return getattr(import_module("polyfed.api"), name)
    raise AttributeError(f"module 'polyfed' has no attribute '{name}'")
