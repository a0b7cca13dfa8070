"""How they learn: one file per method; importing this package registers them all."""

import importlib
import pkgutil

from polyfed.methods.base import Client, Method, OnTop, Server, Upload, method, methods

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

names = methods.names  # polyfed.methods.names(): what there is

__all__ = ["Client", "Method", "OnTop", "Server", "Upload", "method", "methods", "names"]
