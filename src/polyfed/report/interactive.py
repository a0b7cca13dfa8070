"""Charts for the page: a Plotly figure per panel, as plain data whose colours are named and filled in by the page."""

import base64
from html import escape
from itertools import pairwise

import numpy as np

from polyfed.data.colours import rgba_png
from polyfed.report.axes import FAINT, INK, PAPER, Spec, layout, scaled
from polyfed.report.charts import (
    BYTES,
    PERCENT,
    SHAPES,
    Axis,
    Bars,
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
)

DASHES = ("solid", "dash", "dot", "dashdot")
TINTS = len(SHAPES)
ACROSS, TALLEST, ROUND_IT = 1000, 1400, 110  # pixels of a mosaic, and of what is written around it


def figure(panel: Panel) -> Spec:
    """One panel, ready for Plotly once its colours are filled in."""
    traces = [trace for mark in panel.marks for trace in _traces(mark, panel)]
    return {"data": traces, "layout": layout(panel) | _pictured(panel)}


def tint(number: int, strength: float = 1.0) -> str:
    """The name of a colour, with how much of it there is."""
    name = f"--tint-{number % TINTS}" if number >= 0 else FAINT
    return name if strength == 1 else f"{name} {strength:g}"


def wide(panel: Panel) -> bool:
    """Whether a panel wants a line of its own."""
    bars = sum(isinstance(mark, Bars) for mark in panel.marks)
    return len(panel.x.names or ()) * max(1, bars) > 36 or any(isinstance(mark, Strip | Mosaic) for mark in panel.marks)


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
        case Mosaic():
            made = _mosaic(mark, panel)
    return [{"meta": mark.series, "showlegend": False, **trace} for trace in made]


def _line(mark: Line, panel: Panel) -> list[Spec]:
    x, y = scaled(mark.x, panel.x), scaled(mark.y, panel.y)
    spread, colour = scaled(mark.spread, panel.y), tint(mark.tint)
    said = [
        _said(mark.series, panel.x, at, panel.y, mean, std, f"{seeds} seeds" if seeds > 1 else "", mark.finish)
        for at, mean, std, seeds in zip(mark.x, mark.y, mark.spread, mark.seeds, strict=True)
    ]
    common = {"type": "scatter", "x": x, "y": y, **_hover(said)}
    if mark.finish == "after":
        star = {"symbol": "star", "size": 11, "color": colour, "line": {"width": 1, "color": PAPER}}
        return [
            {**common, "mode": "markers", "marker": star, "error_y": _whisker(mark.y, mark.spread, panel.y, colour)}
        ]
    few = len(x) <= 40
    drawn = {"mode": "lines+markers" if few else "lines", "line": {"color": colour, "width": 2, "dash": _dash(mark)}}
    line = {**common, **drawn, "marker": {"symbol": SHAPES[mark.tint % TINTS], "size": 6, "color": colour}}
    if not any(spread):
        return [line]
    ends = [panel.y.ends(mean, std) for mean, std in zip(mark.y, mark.spread, strict=True)]
    lower, upper = (scaled(side, panel.y) for side in zip(*ends, strict=True))
    band = {"type": "scatter", "mode": "lines", "x": [*x, *x[::-1]], "y": [*upper, *lower[::-1]], "hoverinfo": "skip"}
    return [{**band, "fill": "toself", "fillcolor": tint(mark.tint, 0.14), "line": {"width": 0}}, line]


def _bars(mark: Bars, panel: Panel) -> Spec:
    said = [
        _said(mark.series, panel.x, at, panel.y, height, std)
        for at, height, std in zip(mark.x, mark.y, mark.spread, strict=True)
    ]
    return {
        "type": "bar",
        "x": list(mark.x),
        "y": scaled(mark.y, panel.y),
        "marker": {"color": tint(mark.tint)},
        "error_y": _whisker(mark.y, mark.spread, panel.y, INK),
        **_hover(said),
    }


def _dots(mark: Dots, panel: Panel) -> Spec:
    x, y, colour = scaled(mark.x, panel.x), scaled(mark.y, panel.y), tint(mark.tint)
    marker: Spec = {"symbol": SHAPES[mark.tint % TINTS], "size": 9, "color": colour}
    if mark.sizes is not None:
        area = {"size": list(mark.sizes), "sizemode": "area", "sizeref": 2 * max(mark.sizes) / 26**2, "sizemin": 1.5}
        marker = {"color": colour, "opacity": 0.8, "line": {"width": 0}, **area}
    made = {"type": "scatter", "mode": "markers", "x": x, "y": y, "marker": marker, "cliponaxis": False}
    if mark.spread is not None:
        across, up = mark.spread
        made |= {
            "error_x": _whisker(mark.x, across, panel.x, colour),
            "error_y": _whisker(mark.y, up, panel.y, colour),
        }
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
    low, median, high = scaled(mark.quartiles, panel.x)
    colour, values = tint(mark.tint), scaled(mark.values, panel.x)
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
    edges = scaled(mark.edges, panel.x)
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


def _mosaic(mark: Mosaic, panel: Panel) -> list[Spec]:
    """What is said of each method's tile, and what colours stand for; the pictures are part of the layout."""
    before = len(mark.pictures[0]) - len(mark.scores[0])
    spots = [(before + at, line, s) for line, scores in enumerate(mark.scores) for at, s in enumerate(scores)]
    said = [
        "<br>".join([f"<b>{_place(panel.x, x)}</b>", *(f"{name} {in_unit(v, PERCENT)}" for name, v in scores.items())])
        for x, _, scores in spots
    ]
    unseen = {"type": "scatter", "mode": "markers", "marker": {"opacity": 0}}
    return [{**unseen, "x": [x for x, _, _ in spots], "y": [y for _, y, _ in spots], **_hover(said)}, *_key(mark)]


def _key(mark: Mosaic) -> list[Spec]:
    square = {"type": "scatter", "mode": "markers", "x": [None], "y": [None], "showlegend": True, "hoverinfo": "skip"}
    return [
        {**square, "name": escape(name), "marker": {"symbol": "square", "size": 12, "color": f"rgb{colour}"}}
        for name, colour in mark.key.items()
    ]


def _pictured(panel: Panel) -> Spec:
    """What a layout has more where pictures are shown: all of them as one, with a tile for each pair of places."""
    mosaics = [mark for mark in panel.marks if isinstance(mark, Mosaic)]
    if not mosaics:
        return {}
    made, (mark,) = layout(panel), mosaics
    lines, columns = len(mark.pictures), len(mark.pictures[0])
    high, wide_ = mark.shape
    png = base64.b64encode(rgba_png(mark.whole())).decode()
    corner = {"x": -0.5, "y": -0.5, "sizex": columns, "sizey": lines, "xanchor": "left", "yanchor": "top"}
    image = {"source": f"data:image/png;base64,{png}", "xref": "x", "yref": "y", "sizing": "stretch", **corner}
    bare = {"showgrid": False, "showline": False, "ticks": "", "constrain": "domain", "fixedrange": True}
    return {
        "height": int(min(ACROSS / columns * high / wide_ * lines, TALLEST)) + ROUND_IT,
        "images": [{**image, "layer": "above"}],
        "hoverdistance": -1,  # wherever in a tile the pointer is
        "showlegend": True,
        "legend": {"orientation": "h", "y": -0.02, "yanchor": "top", "itemclick": False, "itemdoubleclick": False},
        "xaxis": {**made["xaxis"], **bare, "side": "top"},
        "yaxis": {**made["yaxis"], **bare, "scaleanchor": "x", "scaleratio": high / wide_},
    }


def _said(series: str, x: Axis, at: float, y: Axis, value: float, std: float, *more: str) -> str:
    """What is said of a mean where the pointer is."""
    words = [f"<b>{escape(series)}</b>", _place(x, at), f"{_place(y, value)}{_plus_minus(std, y)}"]
    return "<br>".join([*words, *(f"{w} finish" if w in ("before", "after") else w for w in more if w)])


def _place(axis: Axis, at: float) -> str:
    word = axis.column
    if axis.names is not None:
        return f"{word} {escape(axis.names[int(at)])}"
    value = in_unit(axis.value(at), axis.unit)
    return value if axis.unit == BYTES else f"{word} {value}"


def _plus_minus(std: float, axis: Axis) -> str:
    return f" ± {in_unit(std, axis.unit)}" if std else ""


def _whisker(middles: Numbers, spread: Numbers, axis: Axis, colour: str) -> Spec:
    """How far a spread reaches up and down; a share ends at 0 and 100 %."""
    ends = [axis.ends(middle, std) for middle, std in zip(middles, spread, strict=True)]
    down = scaled((middle - low for middle, (low, _) in zip(middles, ends, strict=True)), axis)
    up = scaled((high - middle for middle, (_, high) in zip(middles, ends, strict=True)), axis)
    look = {"color": colour, "thickness": 1, "width": 0, "visible": any(spread)}
    return {"type": "data", "symmetric": False, "array": up, "arrayminus": down, **look}


def _hover(said: list[str]) -> Spec:
    return {"customdata": said, "hovertemplate": "%{customdata}<extra></extra>"}


def _dash(mark: Line) -> str:
    return "6px,9px" if mark.on else DASHES[mark.tint // TINTS % len(DASHES)]
