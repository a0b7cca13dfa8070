"""Run a paper's recipe: every cell once, resumable at any point; then its tables, and which of its claims hold."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from polyfed.config import Tree, identity, make_config, merge, read_yaml, unflatten
from polyfed.engine.base import Crew
from polyfed.engine.folder import RunFolder
from polyfed.engine.rounds import Run, Watch
from polyfed.errors import DataError, UsageError, did_you_mean
from polyfed.registry import explain

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


@dataclass
class Verdict:
    """What became of a claim: the paired difference over seeds."""

    claim: Claim
    difference: float
    spread: float

    @property
    def word(self) -> str:
        """A difference under its seed std decides nothing."""
        if abs(self.difference) <= self.spread:
            return "undecided"
        return "holds" if self.difference > 0 else "does not hold"


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


def reproduce(paper: str, out: Path, watch: Watch) -> dict[str, Any]:
    """Run what is missing under `out`, then say what was found."""
    tables = recipes(paper)
    cells = [(out / name / cell_name(row, seed), config) for name, t in tables.items() for row, seed, config in grid(t)]
    crew: Crew | None = None
    try:
        for folder, config in cells:
            if RunFolder(folder).result() is None:
                crew = crew or config.engine.open()
                watch.say(f"{folder.parent.name}: {folder.name}")
                Run(config, _folder(folder, config), crew, watch).go()
    finally:
        if crew is not None:
            crew.close()
    return {name: found(table, out / name) for name, table in tables.items()}


def _folder(path: Path, config: Any) -> RunFolder:
    """A new cell, or one that was begun with the same config."""
    if not (path / "config.yaml").exists():
        return RunFolder.create(config, path)
    folder = RunFolder.existing(path)
    if identity(folder.tree()) != identity(config.dump()):
        raise DataError(f"'{path}' was begun with another config; give another --out")
    return folder


def grid(recipe: Recipe) -> list[tuple[str, int, Any]]:
    """Row, seed and config of every cell; seeds outermost, so that early results compare all rows."""
    made = []
    for seed in range(recipe.seeds):
        for name, row in recipe.rows.items():
            tree = merge(unflatten(recipe.experiment), unflatten(row.keys))
            made.append((name, seed, make_config(tree, {"seed": seed})))
    return made


def cell_name(row: str, seed: int) -> str:
    """A folder name for a cell."""
    return f"{re.sub(r'[^A-Za-z0-9.+=-]+', '-', row)}-s{seed}"


def found(recipe: Recipe, folder: Path) -> dict[str, Any]:
    """The numbers of a table and the verdicts on its claims."""
    values: dict[str, dict[str, list[float]]] = {}
    seconds = 0.0
    for row, spec in recipe.rows.items():
        summaries = [RunFolder(folder / cell_name(row, seed)).result() or {} for seed in range(recipe.seeds)]
        seconds += sum(s["seconds"]["total"] for s in summaries)
        values[row] = {c: [_at(s, spec.reads.get(c, path)) for s in summaries] for c, path in recipe.columns.items()}
    verdicts = [_judge(claim, values) for claim in recipe.claims]
    return {"recipe": recipe, "values": values, "verdicts": verdicts, "minutes": seconds / 60}


def _at(summary: Any, path: str) -> float:
    value = summary
    for word in path.split("."):
        value = None if value is None else value.get(word)
    return float("nan") if value is None else float(value)


def _judge(claim: Claim, values: dict[str, dict[str, list[float]]]) -> Verdict:
    pairs = zip(values[claim.better][claim.column], values[claim.than][claim.column], strict=True)
    differences = [a - b for a, b in pairs]
    return Verdict(claim, fmean(differences), stdev(differences) if len(differences) > 1 else 0.0)


def as_json_value(results: dict[str, Any]) -> dict[str, Any]:
    """Tables and verdicts as plain data."""
    return {
        name: {
            "title": r["recipe"].title,
            "values": r["values"],
            "claims": [
                {**v.claim.model_dump(), "difference": v.difference, "std": v.spread, "verdict": v.word}
                for v in r["verdicts"]
            ],
            "minutes": r["minutes"],
        }
        for name, r in results.items()
    }


def as_markdown(paper: str, results: dict[str, Any]) -> str:
    """Tables and verdicts for people."""
    parts = []
    for result in results.values():
        recipe: Recipe = result["recipe"]
        head = ["", *recipe.columns]
        lines = [_line(head), _line(["---", *["---:"] * len(recipe.columns)])]
        lines += [_line([row, *(_cell(v) for v in cells.values())]) for row, cells in result["values"].items()]
        claims = [
            f"- {v.claim.better} > {v.claim.than} in {v.claim.column} ({v.claim.expected}): **{v.word}** "
            f"({100 * v.difference:+.1f} ± {100 * v.spread:.1f})"
            for v in result["verdicts"]
        ]
        made = f"`polyfed reproduce {paper}`, {recipe.seeds} seeds, {result['minutes']:.1f} minutes"
        parts.append("\n".join([f"### {recipe.title}", "", recipe.note, made, "", *lines, "", *claims]))
    return "\n\n".join(parts) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cell(values: Sequence[float]) -> str:
    if any(v != v for v in values):
        return "–"
    return f"{100 * fmean(values):.1f}" + (f" ± {100 * stdev(values):.1f}" if len(values) > 1 else "")
