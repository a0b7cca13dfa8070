"""Pictures of the papers' items, drawn from the store: curves, lines over a setting, bars, scatters, histograms.

A kind of `polyfed figure` (holdings, clusters, ...) needs the runs themselves, and is drawn where they still lie.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from polyfed.comparison.folder import is_comparison
from polyfed.errors import DataError, UsageError, did_you_mean
from polyfed.papers.cell import slug
from polyfed.papers.demos import Drawn, Shown, demo_of
from polyfed.papers.found import ItemFound
from polyfed.papers.image import Picture, as_csv
from polyfed.papers.several import lines_of
from polyfed.report.charts import (
    COUNT,
    NUMBER,
    PERCENT,
    POINTS,
    Axis,
    Bars,
    Chart,
    Dots,
    Histogram,
    Line,
    Mark,
    Panel,
    Tiles,
)
from polyfed.report.kinds import KINDS
from polyfed.report.kinds import draw as draw_runs
from polyfed.report.runs import Selection, select

BINS = 20


def picture(found: ItemFound, runs: Path | None = None) -> Picture | None:
    """The picture of an item: None where it has none, or nothing is done; `runs` is the folder of its runs."""
    if not found.current or (found.item.figure is None and not found.item.demo):
        return None
    if found.item.demo:
        drawn = _of_demo(found)
        if drawn is not None:
            return Picture(drawn.figure, as_csv(drawn.rows))
    return _printed(chart_of(found, runs))


def _of_demo(found: ItemFound) -> Drawn | None:
    demo = demo_of(found.item.demo)
    shown = [Shown(cell.panel, cell.seed, stored.demo()) for cell, stored in found.current.items()]
    return demo.draw(shown) if demo.draw is not None else None


def _printed(chart: Chart) -> Picture:
    from matplotlib import pyplot

    from polyfed.report.print import STYLE, drawing

    with pyplot.rc_context(STYLE):
        return Picture(drawing(chart.written()), chart.frame().to_csv(index=False, lineterminator="\n"))


def chart_of(found: ItemFound, runs: Path | None = None) -> Chart:
    """An item's figure as data; a demo without a drawing has bars of its numbers."""
    kind = found.item.figure.kind if found.item.figure and not found.item.demo else "bars"
    if kind in DRAWINGS:
        panels = [panel for panel in DRAWINGS[kind](found) if panel.marks]
        if not panels:
            raise DataError(f"{found.item.id}: nothing that its figure '{kind}' shows is done yet")
        return Chart(kind, found.item.title, found.item.place, panels)
    if kind not in KINDS:
        raise UsageError(f"{found.item.id}: there is no figure '{kind}'; {did_you_mean(kind, [*DRAWINGS, *KINDS])}")
    folder = _runs_of(found, runs)
    if folder is None or not is_comparison(folder):
        raise DataError(f"{found.item.id}: the figure '{kind}' is drawn from its runs, and they are not here")
    return draw_runs(kind, _named_as_in(found, select([folder])))


def _runs_of(found: ItemFound, runs: Path | None) -> Path | None:
    """The folder of an item's runs, or of an item that has run the same cells: `options: {runs: NAME}` names it."""
    other = _options(found).get("runs")
    if runs is None or other is None or is_comparison(runs):
        return runs
    return runs.parent / f"{found.item.paper}.{other}-{found.scale}"


def _named_as_in(found: ItemFound, selection: Selection) -> Selection:
    """The runs of an item with its rows' and panels' names, without what its figure leaves out."""
    names = {f"{slug(panel)}.{slug(row)}": (panel, row) for panel in _panels(found) for row in _rows(found)}
    runs = [(run, names[label]) for run in selection.runs if (label := run.row.rpartition(".")[0]) in names]
    several = len({panel for _, (panel, _) in runs}) > 1
    made = [replace(run, row=row, setting={"panel": panel} if several else {}) for run, (panel, row) in runs]
    return replace(selection, runs=made) if made else selection


# ---- the kinds


def curves(found: ItemFound) -> list[Panel]:
    """A column against rounds: a panel for each setting, a line for each row, the band is one standard deviation.

    `options: {columns: [NAME, ...]}` draws several columns, one after the other.
    """
    columns = _options(found).get("columns") or [_column(found)]
    x = Axis("round", "round", COUNT)
    return [
        Panel(
            _title(found, panel) or (column if len(columns) > 1 else ""),
            x,
            _axis(found, column),
            [mark for row in _rows(found) for mark in _curve(found, panel, row, column)],
        )
        for column in columns
        for panel in _panels(found)
    ]


def _curve(found: ItemFound, panel: str, row: str, column: str) -> list[Mark]:
    path = found.item.of(row, column)
    points: dict[int, list[float]] = {}
    for cell, stored in found.current.items():
        if (cell.panel, cell.row) == (panel, row):
            for number, value in stored.curve(path):
                points.setdefault(number, []).append(value)
    if not points:
        return []
    x, values = zip(*sorted(points.items()), strict=True)
    means, spreads = [fmean(each) for each in values], [_spread(each) for each in values]
    return [Line(row, _tint(found, row), [float(at) for at in x], means, spreads, [len(each) for each in values])]


def lines(found: ItemFound) -> list[Panel]:
    """A column against a number of the setting: `options: {at: {NAME: number}}` places panels, or rows.

    With `even: true` the places are one beside the other, whatever their numbers.
    """
    at: Mapping[str, float] = _options(found).get("at", {})
    column = _column(found)
    over_panels = any(name in found.item.panels for name in at)
    at = {name: x for name, x in at.items() if name in (found.item.panels if over_panels else found.item.rows)}
    names = [f"{x:g}" for x in sorted(at.values())] if _options(found).get("even") else None
    at = {name: sorted(at.values()).index(x) if names else x for name, x in at.items()}
    label = (found.item.figure.x if found.item.figure else "") or "setting"
    marks = []
    for tint, series in enumerate(_rows(found) if over_panels else _panels(found)):
        spots = {x: (name, series) if over_panels else (series, name) for name, x in at.items()}
        values = {x: list(found.numbers((*spot, column), end=True).values()) for x, spot in sorted(spots.items())}
        there = {x: _fractions(found, column, each) for x, each in values.items() if each}
        if there:
            means, spreads = [fmean(v) for v in there.values()], [_spread(v) for v in there.values()]
            marks.append(Line(series, tint, list(there), means, spreads, [len(v) for v in there.values()]))
    return [Panel("", Axis(label, label, names=names), _axis(found, column), marks)]


def bars(found: ItemFound) -> list[Panel]:
    """Numbers at the end: a panel for each column, a place for each setting, a bar for each row."""
    made = []
    columns = dict.fromkeys(line.column for line in found.lines)
    chosen = [found.item.figure.y] if found.item.figure and found.item.figure.y in columns else list(columns)
    for column in chosen:
        lines_here = [line for line in found.lines if line.column == column and line.end]
        places = list(dict.fromkeys(line.panel for line in lines_here))
        rows = list(dict.fromkeys(line.row for line in lines_here))
        marks = []
        for tint, row in enumerate(rows):
            own = {
                line.panel: _fractions(found, column, list(line.end.values())) for line in lines_here if line.row == row
            }
            at = [float(places.index(panel)) for panel in own]
            marks.append(Bars(row, tint, at, [fmean(v) for v in own.values()], [_spread(v) for v in own.values()]))
        made.append(Panel(column, Axis("", "panel", names=places), _axis(found, column), marks))
    return made


def scatter(found: ItemFound) -> list[Panel]:
    """One column against another: a point for each row, the mean over settings and seeds.

    Where the figure names panels or averages, each has a drawing of its own. With `split: ", "` a row `POINT, SERIES`
    has the name of its point beside it, and the look of its series.
    """
    figure = found.item.figure
    x, y = (figure.x if figure else ""), (figure.y if figure else "")
    known = found.item.columns
    for column in (x, y):
        if column not in known:
            raise UsageError(f"{found.item.id}: a scatter names two columns; {did_you_mean(column, known)}")
    apart = [[panel] for panel in _panels(found)] if figure and figure.panels else [_panels(found)]
    return [
        Panel(
            _title(found, panels[0]) if figure and figure.panels else "",
            _axis(found, x),
            _axis(found, y),
            [dot for row in _rows(found) for dot in _dot(found, panels, row, (x, y))],
        )
        for panels in apart
    ]


def _dot(found: ItemFound, panels: Sequence[str], row: str, columns: tuple[str, str]) -> list[Mark]:
    both = [[v for p in panels for v in found.numbers((p, row, c), end=True).values()] for c in columns]
    if not all(both):
        return []
    x, y = (fmean(_fractions(found, c, v)) for c, v in zip(columns, both, strict=True))
    split = _options(found).get("split")
    if not split:
        return [Dots(row, _tint(found, row), [x], [y], [row], beside=True)]
    groups = list(dict.fromkeys(_group(name, split) for name in found.item.rows))
    group = _group(row, split)
    return [Dots(group, groups.index(group), [x], [y], [row.partition(split)[0]], beside=True)]


def _group(row: str, split: str) -> str:
    point, _, series = row.partition(split)
    return series or point


def histogram(found: ItemFound) -> list[Panel]:
    """How much better each client is in one row than in another.

    It needs `options: {better: ROW, than: ROW, keeps: [clients]}`.
    """
    options, made = _options(found), []
    for panel in _panels(found):
        changes: list[float] = []
        seeds = 0
        by_place = {(cell.row, cell.seed): stored for cell, stored in found.current.items() if cell.panel == panel}
        for (row, seed), ours in by_place.items():
            theirs = by_place.get((str(options.get("than")), seed))
            if row == options.get("better") and theirs is not None:
                pairs = zip(ours.kept.get("clients", []), theirs.kept.get("clients", []), strict=False)
                changes += [a - b for a, b in pairs if a is not None and b is not None]
                seeds += 1
        if changes:
            edges = _edges(changes)
            names = [str(place) for place in range(len(changes))]
            mark = Histogram(str(options["better"]), 0, changes, names, edges)
            worse = sum(change < 0 for change in changes)
            x = Axis(f"accuracy of {options['better']} less that of {options['than']}, points", "change", POINTS)
            of = f" of {seeds} seeds" if seeds > 1 else ""
            note = f"{worse} of {len(changes)} clients{of} are worse off"
            y = Axis(f"clients{of}", "clients", COUNT)
            made.append(Panel(_title(found, panel), x, y, [mark], note, rule=0.0))
    return made


def _edges(values: Sequence[float]) -> list[float]:
    """About so many bins of one width, one of which begins at 0."""
    width = (max(values) - min(values)) / BINS or 1.0
    first, last = math.floor(min(values) / width), math.floor(max(values) / width) + 1
    return [place * width for place in range(first, last + 1)]


def classes(found: ItemFound) -> list[Panel]:
    """The recall of every class: a panel for each setting, a bar for each row; `options: {keeps: [classes]}`."""
    made = []
    for panel in _panels(found):
        marks: list[Mark] = []
        longest = 0
        for row in _rows(found):
            kept = [s.kept.get("classes", []) for c, s in found.current.items() if (c.panel, c.row) == (panel, row)]
            values = [[v for v in each if v is not None] for each in zip(*kept, strict=False)]
            there = {float(at): each for at, each in enumerate(values) if each}
            longest = max(longest, len(values))
            if there:
                means, spreads = [fmean(v) for v in there.values()], [_spread(v) for v in there.values()]
                marks.append(Bars(row, _tint(found, row), list(there), means, spreads))
        x = Axis("class", "class", names=[str(at) for at in range(longest)])
        made.append(Panel(_title(found, panel), x, Axis("recall", "recall", PERCENT), marks))
    return made


def clusters(found: ItemFound) -> list[Panel]:
    """Which cluster each client is in at the end, a line for each row; `options: {keeps: [clusters]}`.

    Of the first seed that is done.
    """
    made = []
    for panel in _panels(found):
        here = [(c, s.kept["clusters"]) for c, s in found.current.items() if c.panel == panel and "clusters" in s.kept]
        first = min((cell.seed for cell, _ in here), default=0)
        placed = {cell.row: labels for cell, labels in here if cell.seed == first}
        rows = [row for row in _rows(found) if row in placed]
        if rows:
            values = np.full((len(rows), max(map(len, placed.values()))), np.nan)
            for line, row in enumerate(rows):
                values[line, : len(placed[row])] = [np.nan if label is None else label for label in placed[row]]
            names = [f"{row} ({len(set(placed[row]) - {None})})" for row in rows]
            x = Axis("client", "client", names=[str(client + 1) for client in range(values.shape[1])])
            y = Axis("method (how many clusters)", "method", names=names)
            made.append(Panel(_title(found, panel), x, y, [Tiles("", 0, values, "cluster", groups=True)]))
    return made


DRAWINGS: Mapping[str, Callable[[ItemFound], list[Panel]]] = {
    "curves": curves,
    "lines": lines,
    "lines-of": lines_of,
    "bars": bars,
    "scatter": scatter,
    "histogram": histogram,
    "class-recalls": classes,
    "last-clusters": clusters,
}


# ---- what they share


def _column(found: ItemFound) -> str:
    figure = found.item.figure
    column = (figure.y if figure else "") or next(iter(found.item.columns))
    if column not in found.item.columns:
        raise UsageError(f"{found.item.id}: its figure names '{column}'; {did_you_mean(column, found.item.columns)}")
    return column


def _options(found: ItemFound) -> Mapping[str, Any]:
    return found.item.figure.options if found.item.figure else {}


def _panels(found: ItemFound) -> list[str]:
    """Those that its figure names, in that order, or all."""
    chosen = found.item.figure.panels if found.item.figure else ()
    return [panel for panel in chosen if panel in found.item.shown] or list(found.item.panels)


def _rows(found: ItemFound) -> list[str]:
    chosen = found.item.figure.rows if found.item.figure else ()
    return [row for row in found.item.rows if not chosen or row in chosen]


def _tint(found: ItemFound, row: str) -> int:
    return list(found.item.rows).index(row)


def _title(found: ItemFound, panel: str) -> str:
    return panel if len(found.item.shown) > 1 else ""


def _axis(found: ItemFound, column: str) -> Axis:
    return Axis(column, column, PERCENT if found.item.percent(column) else NUMBER)


def _fractions(found: ItemFound, column: str, values: Sequence[float]) -> list[float]:
    """Shown numbers as an axis takes them."""
    return [value / 100 for value in values] if found.item.percent(column) else list(values)


def _spread(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0
