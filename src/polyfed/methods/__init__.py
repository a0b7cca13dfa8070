"""How they learn: one file per method; importing this package registers them all.

A method file of one's own finds everything it needs here: `from polyfed.methods import Method, Field, head, param`.
"""

import importlib
import pkgutil

from polyfed.data.samples import Samples
from polyfed.message import Bundle, Field, Memory, Message, State, Wire
from polyfed.methods.base import Client, Method, OnTop, Server, Site, Task, Upload, method, methods
from polyfed.models.base import Net
from polyfed.params import (
    Params,
    Slice,
    bn,
    body,
    buffers,
    everything,
    head,
    last,
    lora,
    named,
    nothing,
    trunk,
    weights,
)
from polyfed.parts.average import average
from polyfed.parts.corrections import pull
from polyfed.parts.distil import kl, mmd
from polyfed.parts.fit import Fit, balanced, shuffled
from polyfed.parts.losses import LogitLoss, balanced_cross_entropy, cross_entropy
from polyfed.parts.mixture import gated, mix
from polyfed.parts.resident import Batch, Frozen
from polyfed.parts.steps import Adam, Step, adam, maml, moreau, sgd
from polyfed.registry import param

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

names = methods.names  # polyfed.methods.names(): what there is

__all__ = [
    "Adam",
    "Batch",
    "Bundle",
    "Client",
    "Field",
    "Fit",
    "Frozen",
    "LogitLoss",
    "Memory",
    "Message",
    "Method",
    "Net",
    "OnTop",
    "Params",
    "Samples",
    "Server",
    "Site",
    "Slice",
    "State",
    "Step",
    "Task",
    "Upload",
    "Wire",
    "adam",
    "average",
    "balanced",
    "balanced_cross_entropy",
    "bn",
    "body",
    "buffers",
    "cross_entropy",
    "everything",
    "gated",
    "head",
    "kl",
    "last",
    "lora",
    "maml",
    "method",
    "methods",
    "mix",
    "mmd",
    "moreau",
    "named",
    "names",
    "nothing",
    "param",
    "pull",
    "sgd",
    "shuffled",
    "trunk",
    "weights",
]
