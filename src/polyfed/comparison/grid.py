"""A comparison as data: rows (methods) x settings x seeds; every cell is a checked config with a name of its own."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from polyfed.comparison.axes import (
    Axis,
    applied,
    by_name,
    by_type,
    by_type_of,
    combinations,
    key_of,
    lists,
    take_axes,
)
from polyfed.comparison.jobs import Jobs, read_jobs
from polyfed.comparison.rows import named_rows
from polyfed.comparison.values import plain, word
from polyfed.config import Config, Tree, identity, make_config, merge, named_sections, registry_of, unflatten
from polyfed.errors import UsageError, did_you_mean
from polyfed.registry import registries

FOR_ROWS = tuple(key for key in Config.model_fields if key not in ("method", "seed"))
Row = tuple[str, Tree]  # a label, and the keys it sets
SEEDS = 3
LONGEST = 120  # characters of a directory's name
MOST = 10_000  # cells
NOTED = ("axes", "own")  # what a comparison's file notes of its tree, so that it is read again without types
WHO = ("jobs", "share")  # keys of a comparison that decide who does the work, not what comes out


@dataclass(frozen=True, eq=False)
class Cell:
    """One run of a comparison: where it stands, and its experiment."""

    row: str
    setting: Tree
    seed: int
    layers: tuple[Tree, ...]

    @cached_property
    def config(self) -> Config:
        """Its experiment; made when first needed, since reading a comparison needs none."""
        return make_config(*self.layers)

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
    jobs: Jobs = "auto"
    own: tuple[str, ...] = ()  # the keys that rows set for themselves, beside their methods' parameters
    share: bool = True  # whether cells take the rounds of another cell that are theirs too
    note: str = ""  # what its tables say beside

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
    grid = read_grid({key: value for key, value in plain(given).items() if key not in NOTED}, by_types=True)
    for cell in grid.cells:
        try:
            cell.config  # noqa: B018
        except UsageError as error:
            raise UsageError(f"{error}{_about_lists(str(error), grid.tree)}") from None
    return grid


def read_grid(tree: Tree, by_types: bool = False) -> Grid:
    """The grid of a plain tree that notes which lists are axes, and which keys in a method's section any run has.

    Then nothing is checked against types.
    """
    kept = dict(tree)
    noted = None if by_types else Noted(kept.pop("axes", []), kept.pop("own", []))
    note = str(kept.pop("note", ""))
    baseline, seeds = kept.pop("baseline", None), seeds_of(kept)
    kept.pop("seeds", None)
    jobs, share = read_jobs(kept.pop("jobs", "auto")), _truth("share", kept.pop("share", True))
    rows, found = _rows_of_methods(kept, noted) if "rows" not in kept else (_named_rows(kept), Noted([], []))
    if "seed" in kept:
        raise UsageError("'seed' has no place in a comparison; give seeds=...")
    axes, rest = take_axes(kept, by_type(kept) if noted is None else by_name(noted.axes))
    for label, keys in rows:
        _no_axis_in(label, keys, axes)
    _countable(len(rows), len(seeds), *(len(axis.values) for axis in axes))
    cells = [
        Cell(label, setting, seed, (applied(rest, setting), keys, {"seed": seed}))
        for seed in seeds
        for setting in combinations(axes)
        for label, keys in rows
    ]
    _distinct(cells)
    notes = {"axes": [*found.axes, *(axis.key for axis in axes)], "own": found.own}
    whole = {**tree, "seeds": seeds, **{key: said for key, said in notes.items() if said}}
    grid = Grid(whole, tuple(cells), baseline, jobs, _keys_of_rows(rows), share, note)
    check_baseline(baseline, grid.rows)
    return grid


def _truth(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"{key} must be true or false (got {value!r})")
    return value


def check_baseline(baseline: Any, rows: Sequence[str]) -> None:
    """A baseline is one of the rows."""
    if baseline is not None and baseline not in rows:
        raise UsageError(f"the baseline '{baseline}' is not in the comparison; {did_you_mean(str(baseline), rows)}")


# ---- rows


@dataclass(frozen=True)
class Noted:
    """Which lists of a tree are axes, and which keys of its methods' sections are an experiment's."""

    axes: list[str]
    own: list[str]


def _rows_of_methods(tree: Tree, noted: Noted | None) -> tuple[list[Row], Noted]:
    """A row per method or row of a paper, with its parameters and the keys of its own, taken out of the tree.

    A list of values makes a row for each. Beside the rows, what is to be noted of them.
    """
    names = method_names(tree.pop("methods", None))
    if "method" in tree:
        raise UsageError("'method' has no place in a comparison; give methods=...")
    sections = {name: _own_section(tree, name) for name in names}
    for name in names:
        tree.pop(short(name), None)
    rows: list[Row] = []
    found = Noted([], [])
    for name, section in sections.items():
        above, row = f"{short(name)}.", named_rows().get(name)
        of, fixed = (row.method, row.keys) if row else (name, {"method": {"name": name}})
        own = _experiments_keys(name, of, section) if noted is None else [k for k in section if above + k in noted.own]
        params = {key: value for key, value in section.items() if key not in own}
        keys = named_sections({key: value for key, value in section.items() if key in own})
        if noted is None:
            of_params, of_keys = by_type_of(of, params), by_type(merge(tree, keys))
        else:
            of_params = of_keys = by_name(noted.axes, above)
        varied, params = take_axes(params, of_params)
        more, keys = take_axes(keys, of_keys)
        found.axes.extend(above + axis.key for axis in (*varied, *more))
        found.own.extend(above + key for key in own)
        _countable(len(rows), *(len(axis.values) for axis in (*varied, *more)))
        for setting in combinations(varied):
            for other in combinations(more):
                label = ", ".join([name, *(f"{key}={word(value)}" for key, value in {**setting, **other}.items())])
                rows.append((label, merge(fixed, {"method": applied(params, setting), **applied(keys, other)})))
    return rows, found


def _experiments_keys(name: str, of: str, section: Tree) -> list[str]:
    """The keys of a method's section that are not its parameters but an experiment's: `ditto.train.lr`."""
    fields, above = registry_of("method").get(of).model_fields, short(name)
    if "seed" in section and "seed" not in fields:
        raise UsageError(f"'{above}.seed' has no place in a comparison; give seeds=...")
    unknown = [key for key in section if key not in fields and key not in FOR_ROWS]
    if unknown:
        hint = did_you_mean(unknown[0], [*fields, *FOR_ROWS])
        raise UsageError(f"unknown key '{above}.{unknown[0]}' for method '{of}' and for an experiment; {hint}")
    return [
        key
        for key, value in section.items()
        if key in FOR_ROWS and (key not in fields or (isinstance(value, dict) and not _chosen_there(fields[key])))
    ]


def _chosen_there(field: Any) -> bool:
    """Whether a method's parameter takes keys of its own, as a base does."""
    return getattr(field.annotation, "kind", "") in registries


def _keys_of_rows(rows: Sequence[Row]) -> tuple[str, ...]:
    """What rows set beside the parameters of their methods, as a person writes it."""
    leaves = [_leaves({key: value for key, value in keys.items() if key != "method"}) for _, keys in rows]
    return tuple(dict.fromkeys(key for each in leaves for key in each))


def _leaves(tree: Tree, above: tuple[str, ...] = ()) -> list[str]:
    """The dotted keys of a tree that hold a value; a mapping by numbers is one."""
    made = []
    for key, value in named_sections(tree).items() if not above else tree.items():
        nested = isinstance(value, dict) and all(isinstance(inside, str) for inside in value)
        made += _leaves(value, (*above, key)) if nested else [key_of((*above, key))]
    return made


def short(name: str) -> str:
    """What a row of a comparison goes by among its keys: a method from a file (mine.py:Mine) goes by its class."""
    return name.rpartition(":")[2]


def _own_section(tree: Tree, name: str) -> Tree:
    found = tree.get(short(name), {})
    if not isinstance(found, dict):
        key = short(name)
        raise UsageError(f"'{key}' must hold the method's parameters, for example {key}.key=value (got {found!r})")
    return found


def method_names(given: Any) -> list[str]:
    """The methods of a comparison, each once."""
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list) or not names:
        example = "for example methods=fedavg,fedprox"
        raise UsageError(f"a comparison needs methods=..., {example}" + (f" (got {given!r})" if given else ""))
    strange = [n for n in names if not isinstance(n, str)]
    if strange:
        raise UsageError(f"methods must be a list of names, for example methods=fedavg,fedprox (got {strange[0]!r})")
    _countable(len(names))
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
            raise UsageError(f"'seed' has no place in row '{row['name']}'; give seeds=...")
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
        for step in axis.key.split("."):
            inside = inside.get(step) if isinstance(inside, dict) else None
        if inside is not None:
            raise UsageError(f"row '{label}' sets '{axis.key}', which is an axis of the comparison")


# ---- cells


def _countable(*counts: int) -> None:
    """Counted before it is built: a few short lists make billions of cells."""
    if prod(counts) > MOST:
        raise UsageError(f"a comparison has at most {MOST} cells, this one would have {prod(counts)}")


def seeds_of(tree: Tree) -> list[int]:
    """The seeds of a comparison."""
    seeds = tree.get("seeds", SEEDS)
    if isinstance(seeds, int):
        _countable(seeds)
    found = list(range(seeds)) if isinstance(seeds, int) and not isinstance(seeds, bool) else seeds
    ok = isinstance(found, list) and found and all(isinstance(s, int) and s >= 0 for s in found)
    if not ok or len(set(found)) != len(found):
        raise UsageError(f"seeds must be a number of seeds from 1 on or a list of different seeds (got {seeds!r})")
    return found


def _about_lists(sentence: str, tree: Tree) -> str:
    """What a mistake in a list should say beside: whether the list was taken for an axis."""
    for path, _ in lists(tree):
        key = key_of(path)
        said = [key] if path[0] in Config.model_fields else [key_of(("method", *path[1:])), key_of(path[1:])]
        if sentence.startswith(tuple(f"'{one}'" for one in said)):
            if key in tree.get("axes", ()):
                return f"; '{key}' takes one value, so its list is an axis of the comparison"
            return f"; '{key}' takes a list itself, so this list is one value and no axis: vary it in rows"
    return ""


def _distinct(cells: Sequence[Cell]) -> None:
    seen: dict[str, Cell] = {}
    for cell in cells:
        other = seen.setdefault(cell.name.casefold(), cell)
        if other is not cell:
            raise UsageError(f"'{other.row}' and '{cell.row}' would share the directory '{cell.name}'; name them apart")
