"""Charts in print quality: PDF, SVG or PNG by matplotlib, with their data as CSV beside."""

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from polyfed.errors import UsageError
from polyfed.report.charts import (
    BYTES,
    LIGHT,
    PERCENT,
    Axis,
    Bars,
    Chart,
    Dots,
    Histogram,
    Line,
    Mark,
    Mosaic,
    Numbers,
    Panel,
    Strip,
    Tiles,
    in_unit,
    middle,
    shared_places,
)

FORMS = ("pdf", "svg", "png")
MARKERS = ("o", "s", "D", "^", "P", "v", "X", "*")
NAMES = 60  # places on an axis that all have their name
COUNTED = 25  # bars of a histogram that have room for their counts
FEW = 8  # names of places that are pixels
READABLE = 400  # tiles that still can have their number written on them
TALLEST = 9  # inches
WITH_NAMES = (5.2, 4.4)  # inches of a panel whose points have their names beside them
STEPS = 8  # that a name may lie farther from its point
LETTER = (3.6, 8.0)  # points of a letter of such a name: its width and its height
ROUND = [(math.cos(turn * math.pi / 4), math.sin(turn * math.pi / 4)) for turn in (0, 4, 2, 6, 1, 3, 7, 5)]
GREY = "#8a929c"
GAPS = (0, (3, 4))  # a line through which the one below is seen
STYLE: Any = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#5f6873",
    "axes.linewidth": 0.7,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dfe3e8",
    "grid.linewidth": 0.6,
    "xtick.color": "#3c434b",
    "ytick.color": "#3c434b",
    "legend.frameon": False,
    "pdf.fonttype": 42,  # text stays text
    "svg.hashsalt": "polyfed",
}
WITHOUT_DATE = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}  # same chart, same file


def save(chart: Chart, path: Path) -> Path:
    """Write a figure and, under the same name, its data; where the data went."""
    form = path.suffix.lower().removeprefix(".")
    if form not in FORMS:
        raise UsageError(f"a figure is written as {', '.join(FORMS)}, by its name: '{path}' is none of them")
    data = path.with_suffix(".csv")
    try:
        with pyplot.rc_context(STYLE):
            figure = drawing(chart.written())
            figure.savefig(path, dpi=200, metadata=WITHOUT_DATE[form], bbox_inches="tight", pad_inches=0.05)
            pyplot.close(figure)
        chart.frame().to_csv(data, index=False, lineterminator="\n")
    except OSError as error:
        raise UsageError(f"cannot write to '{path}': {error.strerror}") from None
    return data


def drawing(chart: Chart) -> Figure:
    """All panels, side by side as far as they go, over one legend."""
    sizes = [_size(panel) for panel in chart.panels]
    width, height = max(w for w, _ in sizes), max(h for _, h in sizes)
    columns = min(chart.columns, max(1, int(10.5 // width)))
    rows = -(-len(sizes) // columns)
    figure, axes = pyplot.subplots(
        rows, columns, figsize=(width * columns, height * rows), squeeze=False, layout="constrained"
    )
    for place, spare in enumerate(axes.flat):
        if place < len(chart.panels):
            _draw(spare, chart.panels[place], int(width * 14))
        else:
            spare.remove()
    if any(map(_has_names, chart.panels)):
        figure.draw_without_rendering()  # where points lie on paper is known only then
        for spare, panel in zip(axes.flat, chart.panels, strict=False):
            _names(spare, [mark for mark in panel.marks if isinstance(mark, Dots) and mark.beside])
    legend = chart.legend()
    if legend:
        handles = [_handle(chart, name, tint) for name, tint in legend.items()]
        figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 5))
    return figure


def _size(panel: Panel) -> tuple[float, float]:
    """Inches that suit what is in a panel."""
    across, down = len(panel.x.names or ()), len(panel.y.names or ())
    for mark in panel.marks:
        if isinstance(mark, Mosaic):
            tile = min(1.6, 10 / across)
            return across * tile, down * tile * mark.shape[0] / mark.shape[1] + 0.9
    if panel.square:
        side = float(np.clip(0.22 * across + 1.4, 2.6, 9))
        return side + 0.7, side
    if _has_names(panel):
        return WITH_NAMES
    bars = sum(isinstance(mark, Bars) for mark in panel.marks)
    each = 0.26 if _has(panel, Tiles) else 0.2
    return (
        float(np.clip(each * across * max(1, bars * 0.45), 3.5, 10)),
        float(np.clip(0.3 * down + (0.75 * down if _has(panel, Strip) else 0.6), 2.6, TALLEST)),
    )


def _has(panel: Panel, kind: type[Mark]) -> bool:
    return any(isinstance(mark, kind) for mark in panel.marks)


def _has_names(panel: Panel) -> bool:
    return any(isinstance(mark, Dots) and mark.beside for mark in panel.marks)


def _handle(chart: Chart, name: str, tint: int) -> Line2D:
    lines = any(isinstance(m, Line) and m.series == name for p in chart.panels for m in p.marks)
    bars = any(isinstance(m, Bars) and m.series == name for p in chart.panels for m in p.marks)
    marker = "s" if bars else MARKERS[tint % len(MARKERS)]
    return Line2D(
        [], [], color=_colour(tint), marker=marker, markersize=4, linestyle=_dash(tint) if lines else "none", label=name
    )


def _draw(axes: Axes, panel: Panel, letters: int) -> None:
    said = [textwrap.fill(words, letters, break_on_hyphens=False) for words in (panel.title, panel.note) if words]
    axes.set_title("\n".join(said))
    groups = [mark for mark in panel.marks if isinstance(mark, Bars)]
    for mark in panel.marks:
        match mark:
            case Line():
                _line(axes, mark, panel)
            case Bars():
                _bars(axes, mark, groups, panel)
            case Dots():
                _dots(axes, mark, panel)
            case Strip():
                _strip(axes, mark, middle(panel))
            case Histogram():
                _histogram(axes, mark)
            case Tiles():
                _tiles(axes, mark)
            case Mosaic():
                _mosaic(axes, mark)
    if panel.rule is not None:
        axes.axvline(panel.rule, color="#3c434b", linewidth=0.8, linestyle=":")
    limits = axes.get_xlim()
    _scale(axes.xaxis, panel.x, rotate=not _has(panel, Mosaic), top=limits[1])
    if panel.x.finish is not None:
        axes.set_xlim(limits)  # ticks alone do not make an axis longer
    pixels = panel.square and panel.x.names is None
    _scale(axes.yaxis, panel.y, most=FEW if pixels else NAMES)
    axes.set_xlabel("\n".join(textwrap.wrap(panel.x.label, letters)))
    axes.set_ylabel("\n".join(textwrap.wrap(panel.y.label, 34)))
    if groups and panel.y.unit == PERCENT:
        axes.set_ylim(0, 1.005)
    if panel.y.names is not None:
        rows = len(panel.y.names)
        axes.set_ylim(*((-0.75, rows - 0.25) if _has(panel, Strip) else (rows - 0.5, -0.5)))


def _histogram(axes: Axes, mark: Histogram) -> None:
    """Bars with their counts above, where there is room for these."""
    widths = np.diff(mark.edges)
    bars = axes.bar(mark.edges[:-1], mark.counts, widths, align="edge", color=_colour(mark.tint), edgecolor="w")
    if len(bars) <= COUNTED:
        axes.bar_label(bars, [str(count) if count else "" for count in mark.counts], fontsize=6, padding=1)
        axes.margins(y=0.1)


def _reach(middles: Numbers, spread: Numbers, axis: Axis) -> np.ndarray:
    """How far whiskers reach down and up; those of shares end at 0 and 100 %."""
    ends = np.array([axis.ends(middle, std) for middle, std in zip(middles, spread, strict=True)])
    return np.abs(ends.T - np.array(middles))


def _line(axes: Axes, mark: Line, panel: Panel) -> None:
    colour, y, reach = _colour(mark.tint), np.array(mark.y), _reach(mark.y, mark.spread, panel.y)
    if mark.finish == "after":
        axes.errorbar(mark.x, y, reach, fmt="*", color=colour, markersize=7, elinewidth=0.7, capsize=0)
        return
    few = len(mark.x) <= 30
    marker = MARKERS[mark.tint % len(MARKERS)] if few else ""
    axes.plot(
        mark.x,
        y,
        color=colour,
        linewidth=1.2,
        marker=marker,
        markersize=3,
        linestyle=GAPS if mark.on else _dash(mark.tint),
    )
    if any(mark.spread):
        axes.fill_between(mark.x, y - reach[0], y + reach[1], color=colour, alpha=0.15, linewidth=0)


def _bars(axes: Axes, mark: Bars, groups: Sequence[Bars], panel: Panel) -> None:
    """Side by side where bars of several series share a place."""
    shared = shared_places(groups)
    width = 0.8 / (len(groups) if shared else 1)
    shift = (groups.index(mark) - (len(groups) - 1) / 2) * width if shared else 0.0
    spread = _reach(mark.y, mark.spread, panel.y) if any(mark.spread) else None
    at = np.array(mark.x) + shift
    bars = axes.bar(at, mark.y, width, yerr=spread, color=_colour(mark.tint), linewidth=0, error_kw={"elinewidth": 0.6})
    for place, bar in zip(mark.x, bars, strict=True):
        if place in mark.outlined:
            bar.set(facecolor="none", edgecolor=_colour(mark.tint), linewidth=0.8)
    axes.grid(axis="x", visible=False)


def _dots(axes: Axes, mark: Dots, panel: Panel) -> None:
    colour, marker = _colour(mark.tint), MARKERS[mark.tint % len(MARKERS)]
    if mark.sizes is not None:
        areas = 240 * np.array(mark.sizes) / max(mark.sizes)
        axes.scatter(mark.x, mark.y, s=areas, color=colour, alpha=0.75, linewidths=0)
        return
    if mark.spread is not None:
        across, up = _reach(mark.x, mark.spread[0], panel.x), _reach(mark.y, mark.spread[1], panel.y)
        axes.errorbar(mark.x, mark.y, up, across, fmt="none", ecolor=colour, elinewidth=0.7)
    axes.scatter(mark.x, mark.y, s=18, color=colour, marker=marker, linewidths=0, zorder=3)
    if mark.beside:
        axes.margins(0.12)


def _names(axes: Axes, marks: Sequence[Dots]) -> None:
    """Names beside their points, where they hide no point and no other name; a thin line leads to a far one."""
    points = [
        (spot, name, mark.tint)
        for mark in marks
        for spot, name in zip(zip(mark.x, mark.y, strict=True), mark.names, strict=True)
    ]
    scale, edges = 72 / axes.figure.dpi, axes.bbox
    at = axes.transData.transform(np.array([spot for spot, _, _ in points]).reshape(-1, 2)) * scale
    inside = (edges.x0 * scale, edges.y0 * scale, edges.x1 * scale, edges.y1 * scale)
    taken = [_box(x, y, 5, 5) for x, y in at]
    for (spot, name, tint), (x, y) in zip(points, at, strict=True):
        far, shift, box = _free(taken, inside, (x, y), (LETTER[0] * len(name), LETTER[1]))
        taken.append(box)
        line = {"arrowstyle": "-", "color": _colour(tint), "linewidth": 0.4, "shrinkA": 0, "shrinkB": 2}
        look: Any = {"ha": "center", "va": "center", "fontsize": 6, "color": _colour(tint)}
        axes.annotate(name, spot, shift, textcoords="offset points", arrowprops=line if far else None, **look)


Box = tuple[float, float, float, float]  # left, low, right, high
Pair = tuple[float, float]


def _box(x: float, y: float, wide: float, high: float) -> Box:
    return x - wide / 2, y - high / 2, x + wide / 2, y + high / 2


def _free(taken: Sequence[Box], inside: Box, at: Pair, size: Pair) -> tuple[bool, Pair, Box]:
    """The nearest free place of a name: whether it is far from its point, how far its middle is, and what it covers."""
    tried = []
    for step in range(STEPS):
        for across, up in ROUND:
            shift = across * (size[0] / 2 + 5 + 9 * step), up * (size[1] / 2 + 4 + 9 * step)
            box = _box(at[0] + shift[0], at[1] + shift[1], *size)
            if not any(_meet(box, other) for other in taken) and _within(box, inside):
                return step > 0, shift, box
            tried.append((False, shift, box))
    return tried[0]  # crowded: beside its point, over others


def _meet(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _within(one: Box, other: Box) -> bool:
    return other[0] <= one[0] and one[2] <= other[2] and other[1] <= one[1] and one[3] <= other[3]


def _strip(axes: Axes, mark: Strip, centre: float) -> None:
    colour, (low, median, high) = _colour(mark.tint), mark.quartiles
    axes.barh(mark.at, high - low, 0.62, left=low, color=colour, alpha=0.14, linewidth=0)
    axes.plot([median, median], [mark.at - 0.31, mark.at + 0.31], color=colour, linewidth=1.4)
    axes.scatter(mark.values, mark.at + np.array(mark.offsets), s=9, color=colour, alpha=0.8, linewidths=0, zorder=3)
    for (place, words), (above, side) in zip(mark.extremes(), ((-0.35, "top"), (0.35, "bottom")), strict=True):
        value = mark.values[place]
        spot, end = (value, mark.at + above), "right" if value > centre else "left"
        axes.annotate(words, spot, ha=end, va=side, fontsize=6.5, color="#3c434b")
    axes.grid(axis="y", visible=False)


def _tiles(axes: Axes, mark: Tiles) -> None:
    axes.grid(visible=False)
    values = np.ma.masked_invalid(mark.values)
    x, y = (np.arange(count + 1) - 0.5 for count in reversed(values.shape))
    if mark.picture:
        axes.pcolormesh(x, y, values, cmap="gray")
        axes.set_aspect("equal")
        return
    if not mark.groups:
        drawn = axes.pcolormesh(x, y, values, cmap="viridis_r")
        axes.figure.colorbar(drawn, ax=axes, label=mark.value, fraction=0.046)
        axes.set_aspect("equal")
        return
    count = int(values.max()) + 1
    colours = ListedColormap([_colour(tint) for tint in range(count)])
    axes.pcolormesh(x, y, values, cmap=colours, norm=BoundaryNorm(range(count + 1), count), edgecolors="w", linewidth=1)
    if values.size <= READABLE:
        for (row, column), cluster in np.ma.ndenumerate(values):
            axes.text(column, row, f"{cluster:.0f}", ha="center", va="center", color="w", fontsize=6)


def _mosaic(axes: Axes, mark: Mosaic) -> None:
    lines, columns = len(mark.pictures), len(mark.pictures[0])
    axes.grid(visible=False)
    extent = (-0.5, columns - 0.5, lines - 0.5, -0.5)
    axes.imshow(mark.whole(), extent=extent, aspect=mark.shape[0] / mark.shape[1], interpolation="none")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    axes.xaxis.tick_top()
    squares = [Patch(color=(r / 255, g / 255, b / 255), label=name) for name, (r, g, b) in mark.key.items()]
    place: Any = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0)}
    axes.legend(handles=squares, ncols=min(len(squares), max(columns, 4)), fontsize=7, handlelength=1, **place)


def _scale(axis: Any, meaning: Axis, rotate: bool = False, top: float = 0.0, most: int = NAMES) -> None:
    """Ticks in the axis's unit, or names at its places, as many as can be read."""
    if meaning.names is not None:
        step = -(-len(meaning.names) // most)
        places = range(0, len(meaning.names), step)
        names = [meaning.names[place] for place in places]
        axis.set_ticks(list(places), names)
        if rotate and max(map(len, names), default=0) * len(names) > 60:
            axis.set_tick_params(rotation=90)
        return
    ticks = meaning.ticks(top)
    if ticks is not None:
        axis.set_ticks(*ticks)
        return
    match meaning.unit:
        case "percent":
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{round(100 * value, 6):g} %"))
        case "points":
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:+.0f}" if value else "0"))
        case "bytes":
            axis.set_major_formatter(FuncFormatter(lambda value, _: in_unit(value, BYTES)))
        case "count":
            axis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))


def _colour(tint: int) -> str:
    return LIGHT[tint % len(LIGHT)] if tint >= 0 else GREY


def _dash(tint: int) -> Any:
    return ("-", "--", ":", "-.")[tint // len(LIGHT) % 4]
