"""Which cells of a comparison have the same rounds: all methods on top of one base need them only once."""

import json
from collections.abc import Sequence

from polyfed.comparison.grid import Cell, experiment
from polyfed.config import Config, Tree
from polyfed.engine.start import has_rounds_of_base, may_name
from polyfed.methods.base import Method

NEEDED = 2  # checkpoints a run must keep for others: the one before its finish is not its last


def sources(cells: Sequence[Cell]) -> dict[Cell, Cell]:
    """For every cell whose rounds another cell has too, that other: a run of its base, or the first on top of that."""
    known = {_key(cell.config, cell.config.method): cell for cell in reversed(cells)}
    firsts: dict[str, Cell] = {}
    found: dict[Cell, Cell] = {}
    for cell in (cell for cell in cells if takes_rounds(cell.config)):
        key = _key(cell.config, cell.config.method.base)
        source = known.get(key) or firsts.setdefault(key, cell)
        if source is not cell and may_name(source.config.method.dump(), cell.config):
            found[cell] = source
    return found


def takes_rounds(config: Config) -> bool:
    """Whether another finished run has all this run would have before its finish, if it has the same base."""
    return has_rounds_of_base(config.method) and config.init is None and config.checkpoint.keep >= NEEDED


def _key(config: Config, method: Method) -> str:
    """The experiment, and the engine, with this method in its place."""
    tree: Tree = {**experiment(config), "method": method.dump(), "engine": config.engine.dump()}
    return json.dumps(tree, sort_keys=True)
