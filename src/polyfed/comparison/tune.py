"""Values that are chosen on validation data: candidates run on the first seed, and each row goes on with its best.

The candidates are a comparison of their own, in the folder `tuning`; the comparison itself has rows with the chosen
values. Test data have no say in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from polyfed.comparison.axes import lists
from polyfed.comparison.folder import ComparisonFolder
from polyfed.comparison.grid import Cell, Grid, make_grid, method_names, seeds_of, short
from polyfed.comparison.values import plain, word
from polyfed.config import Config, Tree, flatten, merge, unflatten
from polyfed.errors import UsageError

FOLDER = "tuning"
OTHERS = ("seed", "method", "tune")  # what cannot be chosen: the first is drawn, the others are rows


@dataclass(frozen=True)
class Tuning:
    """A comparison with `tune`: the grid of candidates, and what is left for the comparison itself."""

    grid: Grid
    keys: tuple[str, ...]
    rest: Tree

    def chosen(self, folder: ComparisonFolder) -> Tree:
        """The tree of the comparison itself: every row with the values that were best on its validation data."""
        scores = {cell: summary["validation"]["accuracy"] for cell, summary in folder.results().items()}
        rows, said, failed = [], [], []
        for row in self.grid.rows:
            cells = [cell for cell in self.grid.cells if cell.row == row]
            candidates = _by_values(cells, self.keys)
            means = {v: fmean(scores[c] for c in each) for v, each in candidates.items() if set(each) <= scores.keys()}
            failed += [f"{row} {self._named(values)}" for values in candidates if values not in means]
            best = max(means, key=lambda values: means[values]) if means else next(iter(candidates))
            said.append(f"{row} {', '.join(map(word, best))}")
            keys = merge(cells[0].layers[1], unflatten(dict(zip(self.keys, best, strict=True))))
            rows.append({"name": row, **keys})
        note = f"{self._offered()}, chosen on the validation data of seed {self.grid.cells[0].seed}: {'; '.join(said)}"
        beside = f"; these did not finish: {'; '.join(failed)}" if failed else ""
        return {**self.rest, "rows": rows, "note": note + beside}

    def _named(self, values: Sequence[Any]) -> str:
        return ", ".join(f"{key}={word(value)}" for key, value in zip(self.keys, values, strict=True))

    def _offered(self) -> str:
        offered = [list(dict.fromkeys(cell.setting[key] for cell in self.grid.cells)) for key in self.keys]
        return "; ".join(
            f"{key} of {', '.join(map(word, values))}" for key, values in zip(self.keys, offered, strict=True)
        )


def _by_values(cells: Sequence[Cell], keys: Sequence[str]) -> dict[tuple[Any, ...], list[Cell]]:
    """The cells of each candidate; there are several where the comparison has axes beside."""
    found: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in cells:
        found.setdefault(tuple(cell.setting[key] for key in keys), []).append(cell)
    return found


def read_tuning(given: Tree) -> Tuning:
    """A tree with `tune`, for example {"tune": {"train": {"lr": [0.01, 0.1]}}}, taken apart and checked."""
    tree = plain(given)
    tuned = unflatten(tree.pop("tune")) if isinstance(tree["tune"], dict) else tree.pop("tune")
    if not isinstance(tuned, dict) or not tuned:
        raise UsageError("tune holds keys with the values to choose from, for example tune.train.lr=[0.01,0.1]")
    keys = tuple(".".join(path) for path, _ in lists(tuned))
    for key, value in flatten(tuned).items():
        if key not in keys or key.split(".")[0] in OTHERS or key.split(".")[0] not in Config.model_fields:
            raise UsageError(f"'tune.{key}' must be a key of an experiment with a list of values (got {value!r})")
    grid = make_grid({**merge(tree, tuned), "seeds": seeds_of(tree)[:1], "baseline": None})
    listed = [key for key in keys if key not in grid.cells[0].setting]
    if listed:
        raise UsageError(f"'tune.{listed[0]}' takes a list itself, so that its list is one value and no choice")
    if not all(cell.config.split.val for cell in grid.cells):
        raise UsageError("tune chooses on validation data: set split.val, for example split.val=0.2")
    named = () if "rows" in tree else ("methods", *map(short, method_names(tree["methods"])))
    return Tuning(grid, keys, {key: value for key, value in tree.items() if key not in (*named, "rows")})
