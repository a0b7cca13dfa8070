"""Run a paper's recipe: a comparison per table; then the tables, and which of the paper's claims hold."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from polyfed.comparison.folder import ComparisonFolder, Found
from polyfed.comparison.grid import Cell, Grid, make_grid
from polyfed.comparison.run import run_cells
from polyfed.comparison.standing import own_seconds
from polyfed.config import Tree, read_yaml, unflatten
from polyfed.errors import PolyfedError, UsageError, did_you_mean
from polyfed.measure.metrics import none_if_nan
from polyfed.measure.watch import Watch
from polyfed.papers.store import Store
from polyfed.registry import explain
from polyfed.report.forms import Table
from polyfed.report.tables import PERCENT, Column, at, comparison_table

HERE = Path(__file__).parent


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Claim(_Strict):
    """One row is better than another in a column."""

    better: str
    than: str
    column: str
    expected: str = "S"  # S: should hold scaled down; F: fragile, reported only


class Row(_Strict):
    """A method with its settings; `reads` names another number for a column."""

    keys: Tree
    reads: dict[str, str] = {}


class Recipe(_Strict):
    """One table: common keys, rows, the numbers it shows and the claims to check."""

    title: str
    note: str = ""
    seeds: int = Field(3, ge=1)
    experiment: Tree
    columns: dict[str, str]
    rows: dict[str, Row]
    claims: tuple[Claim, ...] = ()
    printed: dict[str, dict[str, float]] = {}  # row -> column -> the paper's number, in %

    def table_columns(self) -> list[Column]:
        """Its columns as a table takes them; a row may read another number."""
        return [Column(name, PERCENT, partial(self._read, name, path)) for name, path in self.columns.items()]

    def _read(self, column: str, path: str, found: Found) -> float | None:
        return at(self.rows[found.row].reads.get(column, path))(found)


@dataclass
class Verdict:
    """What became of a claim: the paired difference over seeds."""

    claim: Claim
    difference: float
    spread: float

    @property
    def word(self) -> str:
        """A difference under its seed std decides nothing."""
        if math.isnan(self.difference):
            return "not measured"
        if abs(self.difference) <= self.spread:
            return "undecided"
        return "holds" if self.difference > 0 else "does not hold"

    def in_words(self) -> str:
        """What is expected, what came out, by how much."""
        amount = f"({100 * self.difference:+.1f} ± {100 * self.spread:.1f})"
        return f"({self.claim.expected}): **{self.word}** {'' if math.isnan(self.difference) else amount}".rstrip()


def recipes(paper: str) -> dict[str, Recipe]:
    """The tables of a paper, by name."""
    known = sorted(p.stem for p in HERE.glob("*.yaml"))
    if paper not in known:
        raise UsageError(f"there is no recipe for '{paper}'; {did_you_mean(paper, known)}")
    tree = read_yaml((HERE / f"{paper}.yaml").read_text(encoding="utf-8"), f"recipe '{paper}'")
    try:
        return {name: Recipe(**one) for name, one in tree.items()}
    except ValidationError as error:
        raise UsageError(explain(error, paper, set(Recipe.model_fields), "a recipe")) from None


@dataclass
class TableFound:
    """What became of one recipe: a value per row, column and seed (nan: not measured), and the verdicts."""

    recipe: Recipe
    found: list[Found]
    failures: dict[str, PolyfedError]
    values: dict[str, dict[str, list[float]]]
    verdicts: list[Verdict]

    @property
    def minutes(self) -> float:
        """What the finished cells took, as if one had run after the other."""
        return sum(own_seconds(one.summary) for one in self.found) / 60

    def table(self) -> Table:
        """Its rows and columns."""
        notes = [f"{name} failed: {error}" for name, error in self.failures.items()]
        return comparison_table(self.found, columns=self.recipe.table_columns(), notes=notes)

    def against_print(self) -> str:
        """Our means, in %, beside the numbers that the paper prints; empty where it prints none."""
        lines = ["| method | number | ours | printed | difference |", "|---|---|---:|---:|---:|"]
        for row, columns in self.recipe.printed.items():
            for column, printed in columns.items():
                known = [100 * value for value in self.values[row][column] if not math.isnan(value)]
                ours = fmean(known) if known else math.nan
                numbers = f"{ours:.1f} | {printed:.1f} | {ours - printed:+.1f}" if known else f"- | {printed:.1f} | -"
                lines.append(f"| {row} | {column} | {numbers} |")
        return "\n".join([*lines, ""]) if self.recipe.printed else ""


def reproduce(
    paper: str, out: Path, watch: Watch, who: Tree | None = None, store: Store | None = None
) -> dict[str, TableFound]:
    """Run what is neither under `out` nor in the store, then say what was found; new results go into the store.

    `who` may hold a comparison's `jobs` and `share`. `paper` may name one of its tables: `map.table1-2`.
    """
    paper, _, table = paper.partition(".")
    made = {}
    for name, recipe in _asked(recipes(paper), table).items():
        grid = grid_of(recipe, who)
        stored = {} if store is None else _stored(grid, store, watch)
        left = replace(grid, cells=tuple(cell for cell in grid.cells if cell not in stored))
        found, failures = list(stored.values()), {}
        if left.cells:
            folder = ComparisonFolder.open(left, out / name, grows=True)
            failures = run_cells(folder, watch)
            found += folder.found()
            if store is not None:
                for cell in folder.results():
                    store.keep(f"{paper}/{name}", cell, folder.run(cell))
        made[name] = judged(recipe, found, failures)
    return made


def _asked(tables: dict[str, Recipe], name: str) -> dict[str, Recipe]:
    """The table of that name, or all."""
    if name and name not in tables:
        raise UsageError(f"there is no recipe for '{name}'; {did_you_mean(name, list(tables))}")
    return {name: tables[name]} if name else tables


def _stored(grid: Grid, store: Store, watch: Watch) -> dict[Cell, Found]:
    """The cells that need not be run; what other sources made is told, and made again."""
    found = {cell: one for cell in grid.cells if (one := store.found(cell)) is not None}
    stale = sum(store.stale(cell.config) for cell in grid.cells if cell not in found)
    if stale:
        watch.say(f"{stale} stored cells were made by other sources: they are stale, and are run again")
    return found


def grid_of(recipe: Recipe, who: Tree | None = None) -> Grid:
    """A recipe is a grid: its rows are labelled, what they share is the experiment."""
    rows = [{"name": label, **row.keys} for label, row in recipe.rows.items()]
    return make_grid({**unflatten(recipe.experiment), "rows": rows, "seeds": recipe.seeds, **(who or {})})


def judged(recipe: Recipe, found: list[Found], failures: dict[str, PolyfedError]) -> TableFound:
    """The numbers of a table and the verdicts on its claims."""
    by_place = {(one.row, one.seed): one for one in found}
    values = {
        row: {
            column.name: [_value(column, by_place.get((row, seed))) for seed in range(recipe.seeds)]
            for column in recipe.table_columns()
        }
        for row in recipe.rows
    }
    return TableFound(recipe, found, failures, values, [_judge(claim, values) for claim in recipe.claims])


def _value(column: Column, found: Found | None) -> float:
    value = None if found is None else column.get(found)
    return math.nan if value is None else value


def _judge(claim: Claim, values: dict[str, dict[str, list[float]]]) -> Verdict:
    pairs = zip(values[claim.better][claim.column], values[claim.than][claim.column], strict=True)
    differences = [a - b for a, b in pairs if not math.isnan(a - b)]
    mean = fmean(differences) if differences else math.nan
    return Verdict(claim, mean, stdev(differences) if len(differences) > 1 else 0.0)


def as_json_value(results: Mapping[str, TableFound]) -> dict[str, Any]:
    """Tables and verdicts as plain data; what was not measured is null."""
    return {
        name: {
            "title": r.recipe.title,
            "values": {
                row: {column: [none_if_nan(v) for v in each] for column, each in columns.items()}
                for row, columns in r.values.items()
            },
            "claims": [
                {**v.claim.model_dump(), "difference": none_if_nan(v.difference), "std": v.spread, "verdict": v.word}
                for v in r.verdicts
            ],
            "minutes": r.minutes,
            "failed": {cell: str(error) for cell, error in r.failures.items()},
        }
        for name, r in results.items()
    }


def as_markdown(paper: str, results: Mapping[str, TableFound]) -> str:
    """Tables and verdicts for people."""
    parts = []
    for result in results.values():
        recipe = result.recipe
        claims = [f"- {v.claim.better} > {v.claim.than} in {v.claim.column} {v.in_words()}" for v in result.verdicts]
        made = f"`polyfed reproduce {paper}`, {recipe.seeds} seeds, {result.minutes:.1f} minutes"
        parts.append(
            "\n".join(
                [
                    f"### {recipe.title}",
                    "",
                    recipe.note,
                    made,
                    "",
                    result.table().markdown(),
                    result.against_print(),
                    *claims,
                ]
            )
        )
    return "\n\n".join(parts) + "\n"
