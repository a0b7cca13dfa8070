"""polyfed: federated learning that ends in one good model per client."""

import gc
from importlib import import_module, metadata
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from polyfed import methods
    from polyfed.api import Comparison, Result, compare, federation, load, resume, run

__all__ = ["Comparison", "Result", "compare", "federation", "load", "methods", "resume", "run"]


def __getattr__(name: str) -> Any:
    """The API is imported when first used: `polyfed --help` needs no torch."""
    if name == "methods":  # the room: importing it anywhere binds this name to it, so it is never anything else
        return import_module("polyfed.methods")
    if name == "__version__":  # said once, in pyproject.toml
        return metadata.version("polyfed")
    if name in __all__:
        return getattr(_api(), name)
    raise AttributeError(f"module 'polyfed' has no attribute '{name}'")


def _api() -> ModuleType:
    """Imported without collecting garbage: there is none, and looking for it takes a tenth of the time.

    Afterwards all that was imported counts as old, as if it had been looked through already.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        return import_module("polyfed.api")
    finally:
        if not gc.get_freeze_count():  # nobody else has objects put aside
            gc.freeze()
            gc.unfreeze()
        if collecting:
            gc.enable()
