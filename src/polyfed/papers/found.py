"""What there is of an item: its cells in the store, the table with the printed numbers beside, and the verdicts."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from statistics import fmean, stdev
from typing import Any, ClassVar

from polyfed.errors import PolyfedError
from polyfed.measure.metrics import none_if_nan
from polyfed.papers.cell import PaperCell
from polyfed.papers.judge import FAILS, UNDECIDED, Interval, Verdict, judge
from polyfed.papers.left import Left, spoken
from polyfed.papers.recipe import ALL, Item, Spot
from polyfed.papers.store import Store, StoredCell

NOTHING = "–"


@dataclass(frozen=True)
class Line:
    """A row of a table in one panel and one column: ours over the last third and at the end, and what is printed."""

    panel: str
    row: str
    column: str
    control: bool
    third: Mapping[int, float]
    end: Mapping[int, float]
    printed: float | None

    HEAD: ClassVar = ("panel", "row", "column", "last third", "end", "printed", "difference")
    WORDS: ClassVar = 3  # the first of these, which are no numbers

    @property
    def difference(self) -> float | None:
        """Ours at the end, which is what papers print, less the printed number."""
        return fmean(self.end.values()) - self.printed if self.end and self.printed is not None else None

    def texts(self) -> list[str]:
        """Its words and numbers for people."""
        difference = self.difference
        return [
            "" if self.panel == ALL else self.panel,
            f"{self.row} (control)" if self.control else self.row,
            self.column,
            mean_and_std(self.third),
            mean_and_std(self.end),
            NOTHING if self.printed is None else f"{self.printed:.2f}",
            NOTHING if difference is None or math.isnan(difference) else f"{difference:+.2f}",
        ]


@dataclass
class ItemFound:
    """An item at a scale, as far as it is done."""

    item: Item
    scale: str
    cells: Sequence[PaperCell]
    current: dict[PaperCell, StoredCell]
    stale: dict[PaperCell, StoredCell]
    failures: Mapping[str, PolyfedError] = field(default_factory=dict)

    @staticmethod
    def of(
        item: Item,
        scale: str,
        cells: Sequence[PaperCell],
        store: Store,
        failures: Mapping[str, PolyfedError] | None = None,
    ) -> "ItemFound":
        """What a store has of these cells."""
        pairs = {cell: store.current(cell) for cell in cells}
        old = {cell: store.stale(cell) for cell, found in pairs.items() if found is None}
        return ItemFound(
            item,
            scale,
            cells,
            {cell: found for cell, found in pairs.items() if found is not None},
            {cell: found for cell, found in old.items() if found is not None},
            failures or {},
        )

    @property
    def missing(self) -> list[PaperCell]:
        """Cells that are not done with today's recipe and sources."""
        return [cell for cell in self.cells if cell not in self.current]

    @property
    def minutes(self) -> float:
        """What the finished cells took; an experiment that stands in several places counts once."""
        return sum({cell.identity: found.minutes for cell, found in self.current.items()}.values())

    @property
    def seeds(self) -> int:
        """How many seeds have anything."""
        return len({cell.seed for cell in self.current})

    # ---- numbers

    def numbers(self, spot: Spot, end: bool = False) -> dict[int, float]:
        """The numbers of a place by seed, in the unit that is shown."""
        panel, row, column = spot
        if panel in self.item.averages:
            return self._average([self.numbers((one, row, column), end) for one in self.item.averaged(panel)])
        made = {}
        for cell, found in self.current.items():
            if cell.panel == panel and (cell.row == row or self.item.demo):
                value = self._value(found, row, column, end)
                if value is not None:
                    made[cell.seed] = value
        return made

    def only_at_end(self, spot: Spot) -> bool:
        """Whether a place has numbers of the finished models alone, and none of the rounds before."""
        panel, row, column = spot
        if panel in self.item.averages:
            return any(self.only_at_end((one, row, column)) for one in self.item.averaged(panel))
        here = [found for cell, found in self.current.items() if (cell.panel, cell.row) == (panel, row)]
        return any(found.only_at_end(self.item.of(row, column)) for found in here)

    @staticmethod
    def _average(each: Sequence[Mapping[int, float]]) -> dict[int, float]:
        """The mean over panels, for the seeds that all of them have."""
        seeds = set.intersection(*(set(one) for one in each))
        return {seed: fmean(one[seed] for one in each) for seed in sorted(seeds)}

    def _value(self, found: StoredCell, row: str, column: str, end: bool) -> float | None:
        if self.item.demo:
            value = found.numbers.get(row, {}).get(column)
        else:
            path = self.item.of(row, column)
            value = found.last(path) if end or self.item.judged == "end" else found.mean_of_third(path)
        if value is None:
            return None
        return 100 * value if self.item.percent(column) else value

    @cached_property
    def verdicts(self) -> list[Verdict]:
        """What became of every claim."""
        return judge(self.item, self.numbers, partial(self.numbers, end=True), self.only_at_end)

    @cached_property
    def lines(self) -> list[Line]:
        """Every row of the table, panel by panel."""
        made = []
        for panel in self.item.shown:
            for row, columns in self._rows(panel).items():
                for place, column in enumerate(columns):
                    made.append(self._line(panel, row, column, place))
        return made

    def _line(self, panel: str, row: str, column: str, place: int) -> Line:
        printed = self.item.printed.get(panel, {}).get(row, [])
        spot = (panel, row, column)
        control = not self.item.demo and self.item.rows[row].control
        number = printed[place] if place < len(printed) else None
        return Line(panel, row, column, control, self.numbers(spot), self.numbers(spot, end=True), number)

    def _rows(self, panel: str) -> dict[str, list[str]]:
        """The rows of a panel with their columns; those of a demo are what it found."""
        if panel in self.item.averages:
            each = [self._rows(one) for one in self.item.averaged(panel)]
            return {row: columns for row, columns in each[0].items() if all(row in rows for rows in each)}
        if not self.item.demo:
            asked = {cell.row for cell in self.cells if cell.panel == panel}
            return {row: list(self.item.columns) for row in self.item.rows if row in asked}
        rows: dict[str, dict[str, None]] = {}
        for cell, found in self.current.items():
            if cell.panel == panel:
                for row, numbers in found.numbers.items():
                    rows.setdefault(row, {}).update(dict.fromkeys(numbers))
        return {row: list(columns) for row, columns in rows.items()}

    # ---- in words

    @property
    def scale_note(self) -> str:
        """What departs from the paper at this scale, to stand in brackets."""
        return self.item.scales[self.scale].note.strip().rstrip(".")

    def command(self, only: str = "") -> str:
        """What runs the rest, or what of it has this text in the names of its panels."""
        chosen = f' --only "{only}"' if only else ""
        return f"polyfed reproduce {self.item.id} --scale {self.scale}{chosen}"

    def progress(self) -> str:
        """`12 of 30 cells, 2 stale`."""
        said = f"{len(self.current)} of {len(self.cells)} cells"
        return f"{said}, {len(self.stale)} stale" if self.stale else said

    def markdown(self, rest: Sequence[Left] = (), most: int | None = None) -> str:
        """The item for people: its claims, the parts that are not done, and a table of at most so many columns."""
        item, took = self.item, f", {spoken(self.minutes)}" if self.current else ""
        smaller = f" ({self.scale_note})" if self.scale_note else ""
        said = f"`{item.id}`, {self.scale} scale{smaller}: {self.progress()}{took}."
        lines = [*self._claims(), *(f"- Misprint: {told}" for told in item.misprints)]
        lines += [f"- {name} failed: {error}" for name, error in self.failures.items()]
        lines += [f"- Not done: {said}" for said in self.left_undone(rest)]
        title = f"### {item.place} ({self.scale} scale): {item.title}"
        parts = [title, item.note.strip(), said, "\n".join(lines), self.table(most)]
        return "\n\n".join(filter(None, parts)) + "\n"

    def finding(self, verdict: Verdict) -> str:
        """What was found and tried where a claim does not hold or stays open, at this scale."""
        told = self.item.findings.get(verdict.claim.says, "")
        said = told if isinstance(told, str) else told.get(self.scale, "")
        return said.strip() if verdict.word in (FAILS, UNDECIDED) else ""

    def _claims(self) -> list[str]:
        """A line for each claim, and beneath it what was found and tried; nothing is said twice."""
        made, told = [], set[str]()
        for verdict in self.verdicts:
            finding = self.finding(verdict)
            made.append(f"- {verdict.claim.says}: {verdict.in_words()}{' (see above)' if finding in told else ''}")
            if finding and finding not in told:
                made.append(f"    - {finding}")
                told.add(finding)
        return made

    def left_undone(self, rest: Sequence[Left] = ()) -> list[str]:
        """What is not done, how long that takes, and what does it; a line for each part."""
        if not rest:
            return [f"{len(self.missing)} cells: `{self.command()}`"] if self.missing else []
        return [f"{part.cells} cells{part.about()}: `{self.command(part.only)}`" for part in rest]

    def table(self, most: int | None = None) -> str:
        """Ours over the last third and at the end, what is printed and the difference, in Markdown.

        What has no number yet is left out; of more than `most` columns there is only the first.
        """
        names = list(dict.fromkeys(line.column for line in self.lines))
        columns = names if most is None or len(names) <= most else names[:1]
        lines = [line for line in self.lines if line.end and line.column in columns]
        if not lines:
            return ""
        head = Line.HEAD
        several = {"panel": len(self.item.shown) > 1, "column": len(columns) > 1}
        shown = [name for name in head if several.get(name, True)]
        rows = [dict(zip(head, [text.replace("|", r"\|") for text in line.texts()], strict=True)) for line in lines]
        rule = ["---" if name in head[: Line.WORDS] else "---:" for name in shown]
        table = [shown, rule, *([row[name] for name in shown] for row in rows)]
        said = as_markdown(table)
        rest = len(names) - len(columns)
        return f"{columns[0]}; the command's own page has {rest} more columns.\n\n{said}" if rest else said

    def as_json(self) -> dict[str, Any]:
        """The same as plain data."""
        return {
            "id": self.item.id,
            "title": self.item.title,
            "scale": self.scale,
            "done": len(self.current),
            "cells": len(self.cells),
            "stale": len(self.stale),
            "minutes": round(self.minutes, 2),
            "rows": [
                {
                    "panel": line.panel,
                    "row": line.row,
                    "column": line.column,
                    "last_third": {str(seed): value for seed, value in line.third.items()},
                    "end": {str(seed): value for seed, value in line.end.items()},
                    "printed": line.printed,
                    "difference": line.difference,
                }
                for line in self.lines
            ],
            "claims": [
                {
                    "says": verdict.claim.says,
                    "expected": verdict.claim.expected,
                    "verdict": verdict.word,
                    "at_end": verdict.at_end,
                    "finding": self.finding(verdict),
                    "pairs": [
                        {
                            "ours": pair.ours,
                            "theirs": pair.theirs,
                            "third": _as_json(pair.third),
                            "end": _as_json(pair.end),
                        }
                        for pair in verdict.pairs
                    ],
                }
                for verdict in self.verdicts
            ],
            "failed": {name: str(error) for name, error in self.failures.items()},
        }


def _as_json(one: Interval) -> dict[str, Any]:
    """An interval as plain data; one seed has a mean and no bounds."""
    bounds = {"low": one.low, "high": one.high} if one.seeds > 1 else {}
    return {"mean": none_if_nan(one.mean), **bounds, "seeds": one.seeds}


def as_markdown(rows: Iterable[Sequence[str]]) -> str:
    """The lines of a Markdown table."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def mean_and_std(values: Mapping[int, float], digits: int = 2) -> str:
    """`87.94 ± 0.31`; one seed has no spread, and nothing is a dash."""
    if not values:
        return NOTHING
    spread = f" ± {stdev(values.values()):.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values.values()):.{digits}f}{spread}"
