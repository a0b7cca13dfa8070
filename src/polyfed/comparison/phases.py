"""Which cells of a comparison have the same rounds: a method on top of another needs them only once."""

import json
from collections.abc import Sequence

from polyfed.comparison.grid import Cell, experiment
from polyfed.config import Config, Tree
from polyfed.methods.base import Method, OnTop

ROUNDS = (
    "kept", "shared", "trains", "weighting", "buffers", "everyone", "personal", "own_models", "bind", "wire", "build",
    "build_own", "start", "send", "adapt", "train", "local", "loss", "correct", "upload", "merge", "global_predictor",
    "has_global", "remembers", "private_steps", "presumes", "unbounded",
)  # fmt: skip
NEEDED = 2  # checkpoints a base run must keep: the one before its finish is not its last


def sources(cells: Sequence[Cell]) -> dict[Cell, Cell]:
    """For every cell whose rounds are those of another cell, a run of its base, that other."""
    known = {_key(cell.config, cell.config.method): cell for cell in reversed(cells)}
    found = {cell: known.get(_key(cell.config, cell.config.method.base)) for cell in cells if takes_rounds(cell.config)}
    return {cell: base for cell, base in found.items() if base is not None}


def takes_rounds(config: Config) -> bool:
    """Whether a finished run of the base has all this run would have before its finish, numbers and records too."""
    method = config.method
    return (
        isinstance(method, OnTop)
        and all(getattr(type(method), name) is getattr(OnTop, name) for name in ROUNDS)
        and _answers_plainly(method)
        and _answers_plainly(method.base)
        and config.init is None
        and config.checkpoint.keep >= NEEDED
    )


def _answers_plainly(method: Method) -> bool:
    """Whether the resident model answers for a client, at least until finish."""
    return type(method).predictor is Method.predictor or (isinstance(method, OnTop) and method.late)


def _key(config: Config, method: Method) -> str:
    """The experiment, and the engine, with this method in its place."""
    tree: Tree = {**experiment(config), "method": method.dump(), "engine": config.engine.dump()}
    return json.dumps(tree, sort_keys=True)
