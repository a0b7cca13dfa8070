"""A comparison as data: rows (methods) x settings x seeds; every cell is a checked config with a name of its own."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np

from polyfed.comparison.axes import Axis, applied, combinations, key_of, lists, take_axes, take_own_axes
from polyfed.config import Config, Tree, identity, make_config, unflatten
from polyfed.errors import UsageError, did_you_mean
from polyfed.methods.base import Method, methods
from polyfed.registry import Spec

Row = tuple[str, Tree]  # a label, and the keys it sets
SEEDS = 3
LONGEST = 120  # characters of a directory's name


@dataclass(frozen=True, eq=False)
class Cell:
    """One run of a comparison: where it stands, and its experiment."""

    row: str
    setting: Tree
    seed: int
    config: Config

    @property
    def line(self) -> str:
        """What its seeds have in common, as a directory's name."""
        words = [self.row, *(f"{key}={word(value)}" for key, value in self.setting.items())]
        return "-".join(re.sub(r"[^A-Za-z0-9.+=_-]+", "-", word).strip("-") for word in words)[-LONGEST:]

    @property
    def name(self) -> str:
        """The directory it runs in."""
        return f"{self.line}-s{self.seed}"


@dataclass(frozen=True, eq=False)
class Grid:
    """Every cell, seeds outermost, so that early results compare all rows; and the plain tree that gives them again."""

    tree: Tree
    cells: tuple[Cell, ...]
    baseline: str | None = None

    @property
    def rows(self) -> list[str]:
        """The labels of the rows."""
        return list(dict.fromkeys(cell.row for cell in self.cells))

    def same_as(self, other: "Grid") -> bool:
        """Whether both are the same experiments under the same names; who does the work is free."""
        return self._experiments() == other._experiments()

    def _experiments(self) -> dict[str, Tree]:
        return {cell.name: experiment(cell.config) for cell in self.cells}


def experiment(config: Config) -> Tree:
    """What decides a run's numbers; who does the work does not."""
    return {key: value for key, value in identity(config.dump()).items() if key != "engine"}


def make_grid(given: Tree) -> Grid:
    """The grid of a tree with `methods` or `rows`, `seeds`, and an experiment's keys, some with lists of values.

    All cells are checked before anything runs.
    """
    tree = plain(given)
    kept = dict(tree)
    baseline, seeds = kept.pop("baseline", None), _seeds(kept.pop("seeds", SEEDS))
    rows, own = _rows_of_methods(kept) if "rows" not in kept else (_named_rows(kept), set())
    if "seed" in kept:
        raise UsageError("'seed' has no place in a comparison; give seeds=[...]")
    axes, rest = take_axes(kept)
    known = own | {axis.key for axis in axes}
    cells = []
    for seed in seeds:
        for setting in combinations(axes):
            for label, keys in rows:
                _no_axis_in(label, keys, axes)
                try:
                    config = make_config(applied(rest, setting), keys, {"seed": seed})
                except UsageError as error:
                    raise UsageError(f"{error}{_about_lists(str(error), tree, known)}") from None
                cells.append(Cell(label, setting, seed, config))
    _distinct(cells)
    grid = Grid({**tree, "seeds": seeds}, tuple(cells), baseline)
    check_baseline(baseline, grid.rows)
    return grid


def check_baseline(baseline: Any, rows: Sequence[str]) -> None:
    """A baseline is one of the rows."""
    if baseline is not None and baseline not in rows:
        raise UsageError(f"the baseline '{baseline}' is not in the comparison; {did_you_mean(str(baseline), rows)}")


# ---- rows


def _rows_of_methods(tree: Tree) -> tuple[list[Row], set[str]]:
    """A row per method, with its own parameters, taken out of the tree; a list of values makes a row for each.

    Beside them, the keys that have such lists.
    """
    names = method_names(tree.pop("methods", None))
    if "method" in tree:
        raise UsageError("'method' has no place in a comparison; give methods=[...]")
    own = {name: _own_parameters(tree, name) for name in names}
    for name in names:
        tree.pop(_short(name), None)
    rows, listed = [], set()
    for name in names:
        axes, rest = take_own_axes(own[name], name)
        listed |= {f"{_short(name)}.{axis.key}" for axis in axes}
        for setting in combinations(axes):
            label = ", ".join([name, *(f"{key}={word(value)}" for key, value in setting.items())])
            rows.append((label, {"method": applied({"name": name, **rest}, setting)}))
    return rows, listed


def _short(name: str) -> str:
    """A method from a file (mine.py:Mine) goes by its class."""
    return name.rpartition(":")[2]


def _own_parameters(tree: Tree, name: str) -> Tree:
    found = tree.get(_short(name), {})
    if not isinstance(found, dict):
        short = _short(name)
        raise UsageError(f"'{short}' must hold the method's parameters, for example {short}.key=value (got {found!r})")
    return found


def method_names(given: Any) -> list[str]:
    """The methods of a comparison, each once."""
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list) or not names:
        example = "for example methods=[fedavg,fedprox]"
        raise UsageError(f"a comparison needs methods=[...], {example}" + (f" (got {given!r})" if given else ""))
    strange = [n for n in names if not isinstance(n, str)]
    if strange:
        raise UsageError(f"methods must be a list of names, for example methods=[fedavg,fedprox] (got {strange[0]!r})")
    twice = [n for n in names if names.count(n) > 1]
    if twice:
        raise UsageError(f"method '{twice[0]}' is in the comparison twice")
    return names


def _named_rows(tree: Tree) -> list[Row]:
    """Rows that say their keys themselves: `rows: [{name: wide, model.width: 2}, ...]`."""
    if "methods" in tree:
        raise UsageError("a comparison has methods or rows, not both")
    rows = []
    for row in _mappings(tree.pop("rows")):
        keys = unflatten({key: value for key, value in row.items() if key != "name"})
        if "seed" in keys:
            raise UsageError(f"'seed' has no place in row '{row['name']}'; give seeds=[...]")
        rows.append((row["name"], keys))
    return rows


def _mappings(rows: Any) -> list[Tree]:
    ok = isinstance(rows, list) and rows and all(isinstance(r, dict) and isinstance(r.get("name"), str) for r in rows)
    if not ok:
        raise UsageError("rows must be a list of mappings with a name each, for example [{name: wide, model.width: 2}]")
    return rows


def _no_axis_in(label: str, keys: Tree, axes: Sequence[Axis]) -> None:
    for axis in axes:
        inside: Any = keys
        for word in axis.key.split("."):
            inside = inside.get(word) if isinstance(inside, dict) else None
        if inside is not None:
            raise UsageError(f"row '{label}' sets '{axis.key}', which is an axis of the comparison")


# ---- cells


def _seeds(seeds: Any) -> list[int]:
    found = list(range(seeds)) if isinstance(seeds, int) and not isinstance(seeds, bool) else seeds
    ok = isinstance(found, list) and found and all(isinstance(s, int) and s >= 0 for s in found)
    if not ok or len(set(found)) != len(found):
        raise UsageError(f"seeds must be a number of seeds from 1 on or a list of different seeds (got {seeds!r})")
    return found


def _about_lists(sentence: str, tree: Tree, axes: set[str]) -> str:
    """What a mistake in a list should say beside: whether the list was taken for an axis."""
    for path, _ in lists(tree):
        key = key_of(path)
        said = key if path[0] in Config.model_fields else key_of(("method", *path[1:]))
        if sentence.startswith(f"'{said}'"):
            if key in axes:
                return f"; '{key}' takes one value, so its list is an axis of the comparison"
            return f"; '{key}' takes a list itself, so this list is one value and no axis: vary it in rows"
    return ""


def _distinct(cells: Sequence[Cell]) -> None:
    seen: dict[str, Cell] = {}
    for cell in cells:
        other = seen.setdefault(cell.name.casefold(), cell)
        if other is not cell:
            raise UsageError(f"'{other.row}' and '{cell.row}' would share the directory '{cell.name}'; name them apart")


# ---- plain values


def word(value: Any) -> str:
    """A value of an axis in a label."""
    if isinstance(value, dict):
        return " ".join(str(v) if k == "name" else f"{k}={word(v)}" for k, v in value.items())
    return str(value).lower() if isinstance(value, bool) else "none" if value is None else str(value)


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
