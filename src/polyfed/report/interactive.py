"""Charts for the page: a Plotly figure per panel, as plain data whose colours are named and filled in by the page."""

import math
import textwrap
from html import escape
from itertools import pairwise
from typing import Any

import numpy as np

from polyfed.report.charts import (
    BYTES,
    PERCENT,
    POINTS,
    SHAPES,
    Axis,
    Bars,
    Dots,
    Histogram,
    Line,
    Mark,
    Panel,
    Strip,
    Tiles,
    in_unit,
    middle,
    shared_places,
)

Spec = dict[str, Any]
INK, FAINT, GRID, PAPER = "--ink", "--faint", "--grid", "--paper"  # names of the page's colours
DASHES = ("solid", "dash", "dot", "dashdot")
TINTS = len(SHAPES)
MOST_NAMES = 40  # on an axis


def figure(panel: Panel) -> Spec:
    """One panel, ready for Plotly once its colours are filled in."""
    traces = [trace for mark in panel.marks for trace in _traces(mark, panel)]
    return {"data": traces, "layout": _layout(panel)}


def tint(number: int, strength: float = 1.0) -> str:
    """The name of a colour, with how much of it there is."""
    name = f"--tint-{number % TINTS}" if number >= 0 else FAINT
    return name if strength == 1 else f"{name} {strength:g}"


def wide(panel: Panel) -> bool:
    """Whether a panel wants a line of its own."""
    bars = sum(isinstance(mark, Bars) for mark in panel.marks)
    return len(panel.x.names or ()) * max(1, bars) > 36 or any(isinstance(mark, Strip) for mark in panel.marks)


def _traces(mark: Mark, panel: Panel) -> list[Spec]:
    match mark:
        case Line():
            made = _line(mark, panel)
        case Bars():
            made = [_bars(mark, panel)]
        case Dots():
            made = [_dots(mark, panel)]
        case Strip():
            made = _strip(mark, panel)
        case Histogram():
            made = [_histogram(mark, panel)]
        case Tiles():
            made = [_tiles(mark, panel)]
    return [{"meta": mark.series, "showlegend": False, **trace} for trace in made]


def _line(mark: Line, panel: Panel) -> list[Spec]:
    x, y = _scaled(mark.x, panel.x), _scaled(mark.y, panel.y)
    spread, colour = _scaled(mark.spread, panel.y), tint(mark.tint)
    said = [
        _said(mark.series, panel.x, at, panel.y, mean, std, f"{seeds} seeds" if seeds > 1 else "", mark.finish)
        for at, mean, std, seeds in zip(mark.x, mark.y, mark.spread, mark.seeds, strict=True)
    ]
    common = {"type": "scatter", "x": x, "y": y, **_hover(said)}
    if mark.finish == "after":
        star = {"symbol": "star", "size": 11, "color": colour, "line": {"width": 1, "color": PAPER}}
        return [{**common, "mode": "markers", "marker": star, "error_y": _whisker(spread, colour)}]
    few = len(x) <= 40
    drawn = {"mode": "lines+markers" if few else "lines", "line": {"color": colour, "width": 2, "dash": _dash(mark)}}
    line = {**common, **drawn, "marker": {"symbol": SHAPES[mark.tint % TINTS], "size": 6, "color": colour}}
    if not any(spread):
        return [line]
    upper, lower = ([v + sign * s for v, s in zip(y, spread, strict=True)] for sign in (1, -1))
    band = {"type": "scatter", "mode": "lines", "x": [*x, *x[::-1]], "y": [*upper, *lower[::-1]], "hoverinfo": "skip"}
    return [{**band, "fill": "toself", "fillcolor": tint(mark.tint, 0.14), "line": {"width": 0}}, line]


def _bars(mark: Bars, panel: Panel) -> Spec:
    spread = _scaled(mark.spread, panel.y)
    said = [
        _said(mark.series, panel.x, at, panel.y, height, std)
        for at, height, std in zip(mark.x, mark.y, mark.spread, strict=True)
    ]
    return {
        "type": "bar",
        "x": list(mark.x),
        "y": _scaled(mark.y, panel.y),
        "marker": {"color": tint(mark.tint)},
        "error_y": _whisker(spread, INK),
        **_hover(said),
    }


def _dots(mark: Dots, panel: Panel) -> Spec:
    x, y, colour = _scaled(mark.x, panel.x), _scaled(mark.y, panel.y), tint(mark.tint)
    marker: Spec = {"symbol": SHAPES[mark.tint % TINTS], "size": 9, "color": colour}
    if mark.sizes is not None:
        area = {"size": list(mark.sizes), "sizemode": "area", "sizeref": 2 * max(mark.sizes) / 26**2, "sizemin": 1.5}
        marker = {"color": colour, "opacity": 0.8, "line": {"width": 0}, **area}
    made = {"type": "scatter", "mode": "markers", "x": x, "y": y, "marker": marker, "cliponaxis": False}
    if mark.spread is not None:
        across, up = (_scaled(s, axis) for s, axis in zip(mark.spread, (panel.x, panel.y), strict=True))
        made |= {"error_x": _whisker(across, colour), "error_y": _whisker(up, colour)}
    return made | _hover([_about_dot(mark, panel, i) for i in range(len(mark.x))])


def _about_dot(mark: Dots, panel: Panel, i: int) -> str:
    places = [f"{_place(panel.x, mark.x[i])}", f"{_place(panel.y, mark.y[i])}"]
    if mark.spread is not None:
        stds = (_plus_minus(s[i], axis) for s, axis in zip(mark.spread, (panel.x, panel.y), strict=True))
        places = [place + std for place, std in zip(places, stds, strict=True)]
    if mark.sizes is not None:
        places.append(f"{mark.sizes[i]:g} {mark.size}")
    return "<br>".join([f"<b>{escape(mark.names[i] or mark.series)}</b>", *places])


def _strip(mark: Strip, panel: Panel) -> list[Spec]:
    low, median, high = _scaled(mark.quartiles, panel.x)
    colour, values = tint(mark.tint), _scaled(mark.values, panel.x)
    quiet: Spec = {"hoverinfo": "skip"}
    box = {"type": "bar", "orientation": "h", "y": [mark.at], "x": [high - low], "base": [low], "width": 0.62}
    stroke = {"type": "scatter", "mode": "lines", "x": [median] * 2, "y": [mark.at - 0.31, mark.at + 0.31]}
    said = [
        f"<b>{escape(name)}</b><br>{escape(mark.series)}<br>{_place(panel.x, value)}"
        for name, value in zip(mark.names, mark.values, strict=True)
    ]
    dots = {
        "type": "scatter",
        "mode": "markers",
        "x": values,
        "y": [mark.at + offset for offset in mark.offsets],
        "marker": {"color": colour, "size": 7, "opacity": 0.85, "symbol": SHAPES[mark.tint % TINTS]},
        **_hover(said),
    }
    names = {
        "type": "scatter",
        "mode": "text",
        "x": [values[place] for place, _ in mark.extremes()],
        "y": [mark.at - 0.33, mark.at + 0.33],
        "text": [escape(words) for _, words in mark.extremes()],
        "textposition": [
            f"{side} {'left' if mark.values[place] > middle(panel) else 'right'}"
            for (place, _), side in zip(mark.extremes(), ("bottom", "top"), strict=True)
        ],
        "textfont": {"size": 11, "color": INK},
    }
    return [
        {**box, "marker": {"color": tint(mark.tint, 0.16)}, **quiet},
        {**stroke, "line": {"color": colour, "width": 2}, **quiet},
        dots,
        {**names, **quiet},
    ]


def _histogram(mark: Histogram, panel: Panel) -> Spec:
    edges = _scaled(mark.edges, panel.x)
    said = [
        f"<b>{count} client{'' if count == 1 else 's'}</b><br>between {low:+.1f} and {high:+.1f} points"
        for count, (low, high) in zip(mark.counts, pairwise(edges), strict=True)
    ]
    return {
        "type": "bar",
        "x": [(low + high) / 2 for low, high in pairwise(edges)],
        "y": mark.counts,
        "width": edges[1] - edges[0],
        "marker": {"color": tint(mark.tint), "line": {"width": 1, "color": PAPER}},
        **_hover(said),
    }


def _tiles(mark: Tiles, panel: Panel) -> Spec:
    said = [
        [
            f"{_place(panel.y, row)}<br>{_place(panel.x, column)}<br><b>{mark.value} {value:.4g}</b>"
            for column, value in enumerate(values)
        ]
        for row, values in enumerate(mark.values)
    ]
    z = [[None if np.isnan(value) else float(value) for value in values] for values in mark.values]
    made: Spec = {"type": "heatmap", "z": z, "customdata": said, "hovertemplate": "%{customdata}<extra></extra>"}
    if not mark.groups:
        bar = {"title": {"text": mark.value, "side": "right"}, "thickness": 12, "outlinewidth": 0}
        return {**made, "colorscale": "Viridis", "reversescale": True, "colorbar": bar}
    count = int(np.nanmax(mark.values)) + 1
    steps = [[edge / count, tint(number)] for number in range(count) for edge in (number, number + 1)]
    scale = {"colorscale": steps, "zmin": -0.5, "zmax": count - 0.5, "showscale": False, "xgap": 2, "ygap": 2}
    return {**made, **scale}


def _layout(panel: Panel) -> Spec:
    rows = len(panel.y.names or ())
    height = 300
    if any(isinstance(mark, Strip) for mark in panel.marks):
        height = 70 + 74 * rows
    elif panel.square:
        height = 420
    elif rows:
        height = max(240, min(80 + 20 * rows, 1200))
    groups = [mark for mark in panel.marks if isinstance(mark, Bars)]
    shared = shared_places(groups)
    layout: Spec = {
        "height": height,
        "barmode": "group" if shared else "overlay",
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
    if rows:
        strips = any(isinstance(mark, Strip) for mark in panel.marks)
        layout["yaxis"]["range"] = [-0.75, rows - 0.25] if strips else [rows - 0.5, -0.5]
    if groups and panel.y.unit == PERCENT:
        layout["yaxis"]["range"] = [0, 101]
    if panel.square:
        layout["yaxis"]["scaleanchor"] = "x"
        layout["xaxis"]["constrain"] = layout["yaxis"]["constrain"] = "domain"
    if panel.rule is not None:
        line = {"color": INK, "width": 1, "dash": "dot"}
        layout["shapes"] = [{"type": "line", "x0": panel.rule, "x1": panel.rule, "yref": "paper", "y0": 0, "y1": 1}]
        layout["shapes"][0]["line"] = line
    return layout


def _top(panel: Panel, way: str) -> float:
    """The largest number on an axis of counts."""
    each = (mark.counts if isinstance(mark, Histogram) else getattr(mark, way, ()) for mark in panel.marks)
    return max((value for values in each for value in values), default=0)


def _step(top: float) -> float:
    """A round number of which a few make the whole axis."""
    size = 10 ** math.floor(math.log10(max(top / 6, 1)))
    return next(size * n for n in (1, 2, 5, 10) if size * n >= top / 6)


def _axis(axis: Axis, letters: int, top: float) -> Spec:
    label = "<br>".join(textwrap.wrap(escape(axis.label), letters))
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
    match axis.unit:
        case "percent":
            return {**made, "ticksuffix": " %"}
        case "points":
            return {**made, "tickformat": "+~g"}
        case "count":
            return {**made, "dtick": _step(top), "tick0": 0}
        case "bytes":
            return {**made, "tickformat": "~s", "ticksuffix": "B"}
    return {**made, "tickformat": "~g"}


def _scaled(values: Any, axis: Axis) -> list[float]:
    """Plain numbers as they stand on the axis."""
    factor = 100 if axis.unit in (PERCENT, POINTS) else 1
    return [float(value) * factor for value in values]


def _said(series: str, x: Axis, at: float, y: Axis, value: float, std: float, *more: str) -> str:
    """What is said of a mean where the pointer is."""
    words = [f"<b>{escape(series)}</b>", _place(x, at), f"{_place(y, value)}{_plus_minus(std, y)}"]
    return "<br>".join([*words, *(f"{w} finish" if w in ("before", "after") else w for w in more if w)])


def _place(axis: Axis, at: float) -> str:
    word = axis.column
    if axis.names is not None:
        return f"{word} {escape(axis.names[int(at)])}"
    value = in_unit(at, axis.unit)
    return value if axis.unit == BYTES else f"{word} {value}"


def _plus_minus(std: float, axis: Axis) -> str:
    return f" ± {in_unit(std, axis.unit)}" if std else ""


def _whisker(spread: list[float], colour: str) -> Spec:
    return {"type": "data", "array": spread, "color": colour, "thickness": 1, "width": 0, "visible": any(spread)}


def _hover(said: list[str]) -> Spec:
    return {"customdata": said, "hovertemplate": "%{customdata}<extra></extra>"}


def _dash(mark: Line) -> str:
    return DASHES[mark.tint // TINTS % len(DASHES)]
