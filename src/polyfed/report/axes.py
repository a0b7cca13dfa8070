"""Axes of the page's figures: how large a panel is, what its ticks say, where its ranges end."""

import textwrap
from collections.abc import Iterable
from html import escape
from typing import Any

from polyfed.report.charts import PERCENT, POINTS, Axis, Bars, Histogram, Panel, Strip, round_step, shared_places

Spec = dict[str, Any]
INK, FAINT, GRID, PAPER = "--ink", "--faint", "--grid", "--paper"  # names of the page's colours
MOST_NAMES = 40  # on an axis


def layout(panel: Panel) -> Spec:
    """A panel without what is drawn in it."""
    bars = [mark for mark in panel.marks if isinstance(mark, Bars)]
    made: Spec = {
        "height": _height(panel),
        "barmode": "group" if shared_places(bars) else "overlay",
        "bargap": 0.2,
        "margin": {"l": 10, "r": 12, "t": 8, "b": 10},
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": INK},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hovermode": "closest",
        "hoverlabel": {"bgcolor": PAPER, "bordercolor": FAINT, "font": {"color": INK}, "align": "left"},
        "xaxis": _axis(panel.x, 54, _top(panel, "x")),
        "yaxis": _axis(panel.y, 38, _top(panel, "y")),
    }
    rows = len(panel.y.names or ())
    if rows:  # the first on top, but strips, which come from below, with room for what is written around them
        made["yaxis"]["range"] = [-0.75, rows - 0.25] if _strips(panel) else [rows - 0.5, -0.5]
    if bars and panel.y.unit == PERCENT:
        made["yaxis"]["range"] = [0, 101]
    if panel.square:
        made["yaxis"]["scaleanchor"] = "x"
        made["xaxis"]["constrain"] = made["yaxis"]["constrain"] = "domain"
    if panel.rule is not None:
        (at,) = scaled([panel.rule], panel.x)
        line = {"color": INK, "width": 1, "dash": "dot"}
        made["shapes"] = [{"type": "line", "x0": at, "x1": at, "yref": "paper", "y0": 0, "y1": 1, "line": line}]
    return made


def scaled(values: Iterable[float], axis: Axis) -> list[float]:
    """Plain numbers as they stand on the axis."""
    factor = 100 if axis.unit in (PERCENT, POINTS) else 1
    return [float(value) * factor for value in values]


def _height(panel: Panel) -> int:
    """Pixels that suit what is in a panel."""
    rows = len(panel.y.names or ())
    if _strips(panel):
        return 70 + 74 * rows
    if panel.square:
        return 420
    return max(240, min(80 + 20 * rows, 1200)) if rows else 300


def _strips(panel: Panel) -> bool:
    return any(isinstance(mark, Strip) for mark in panel.marks)


def _top(panel: Panel, way: str) -> float:
    """The largest number on an axis of counts."""
    each = (mark.counts if isinstance(mark, Histogram) else getattr(mark, way, ()) for mark in panel.marks)
    return max((value for values in each for value in values), default=0)


def _axis(axis: Axis, letters: int, top: float) -> Spec:
    label = "<br>".join(escape(line) for line in textwrap.wrap(axis.label, letters))
    made: Spec = {
        "title": {"text": label, "standoff": 8, "font": {"size": 12}},
        "automargin": True,
        "gridcolor": GRID,
        "zeroline": False,
        "linecolor": FAINT,
        "tickcolor": FAINT,
        "ticks": "outside",
        "ticklen": 4,
    }
    if axis.names is not None:
        places = list(range(0, len(axis.names), -(-len(axis.names) // MOST_NAMES) or 1))
        names = [escape(axis.names[place]) for place in places]
        return {**made, "tickvals": places, "ticktext": names, "range": [-0.5, len(axis.names) - 0.5]}
    ticks = axis.ticks(top)
    if ticks is not None:
        return {**made, "tickvals": ticks[0], "ticktext": ticks[1]}
    match axis.unit:
        case "percent":
            return {**made, "ticksuffix": " %"}
        case "points":
            return {**made, "tickformat": "+~g"}
        case "count":
            return {**made, "dtick": round_step(top), "tick0": 0}
        case "bytes":
            return {**made, "tickformat": "~s", "ticksuffix": "B"}
    return {**made, "tickformat": "~g"}
