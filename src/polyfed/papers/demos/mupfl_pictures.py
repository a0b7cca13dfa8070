"""The pictures of MuPFL's demos: apart from what computes them, so that a change of a picture makes no number stale."""

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

import numpy as np

from polyfed.papers.demos import Drawn, Shown, drawn
from polyfed.papers.demos.attention import METHODS as LOOKING
from polyfed.papers.demos.attention import attention
from polyfed.papers.demos.certainty import BINS, certainty
from polyfed.papers.demos.certainty import METHODS as ANSWERING
from polyfed.papers.demos.holdings import holdings
from polyfed.papers.demos.pace import pace, progress
from polyfed.papers.demos.planes import planes
from polyfed.papers.demos.seeds import first_seed, mean_line
from polyfed.report.charts import COUNT, PERCENT, SECONDS, Axis, Bars, Chart, Dots, Line, Mark, Panel
from polyfed.report.kinds.holdings import BUBBLES, holdings_panel

SQUARE = (0.0, 1.0, 0.0, 1.0)  # where pictures and the maps over them are drawn


@certainty.drawing
def draw_certainty(shown: Sequence[Shown]) -> Drawn:
    """Figure 3b: two histograms as lines, the mean over seeds."""
    most = float(shown[0].found.arrays["most"])
    panels = [
        _shares(shown, "entropy", "entropy of the prediction, nats", most),
        _shares(shown, "confidence", "largest probability of the prediction", 1.0),
    ]
    return drawn(Chart("certainty", "How sure the models are", "On every client's local test.", panels))


def _shares(shown: Sequence[Shown], what: str, label: str, most: float) -> Panel:
    middles = ((np.arange(BINS) + 0.5) * most / BINS).tolist()
    marks = [
        mean_line(name, tint, middles, [one.found.arrays[f"{name}: {what}"] for one in shown])
        for tint, name in enumerate(ANSWERING)
    ]
    return Panel("", Axis(label, what), Axis("share of the answers", "share", PERCENT), marks)


@attention.drawing
def draw_attention(shown: Sequence[Shown]) -> Drawn:
    """Figure 4, a row for each kind: the picture, then what each network looks at over it; of the first seed."""
    from matplotlib import pyplot

    from polyfed.report.print import STYLE

    arrays = first_seed(shown).found.arrays
    kinds = list(dict.fromkeys(name.partition(": ")[0] for name in arrays))
    columns = ("picture", *LOOKING)
    with pyplot.rc_context(STYLE):
        size = (1.7 * len(columns), 1.8 * len(kinds))
        figure, axes = pyplot.subplots(len(kinds), len(columns), figsize=size, squeeze=False, layout="constrained")
        for kind, row in zip(kinds, axes, strict=True):
            for what, spot in zip(columns, row, strict=True):
                spot.imshow(arrays[f"{kind}: picture"], cmap="gray", vmin=0, vmax=1, extent=SQUARE)
                if what != "picture":
                    values, smooth = arrays[f"{kind}: {what}"], "bilinear"
                    spot.imshow(values, cmap="inferno", vmin=0, vmax=1, alpha=0.6, extent=SQUARE, interpolation=smooth)
                spot.set_title(f"{kind.replace('_', ' ')}: {what}")
                spot.set_axis_off()
    return Drawn(figure, list(_pixels(arrays)))


def _pixels(arrays: Mapping[str, np.ndarray]) -> Iterator[dict[str, object]]:
    """Every pixel of every picture and map."""
    for name, values in arrays.items():
        kind, _, what = name.partition(": ")
        for (row, column), value in np.ndenumerate(values):
            yield {"kind": kind, "shown": what, "row": row, "column": column, "value": float(value)}


@holdings.drawing
def draw_holdings(shown: Sequence[Shown]) -> Drawn:
    """Figure 6a, of the first seed."""
    counts = first_seed(shown).found.arrays["counts"].astype(int)
    clients = [{"id": k, "name": str(k), "counts": row} for k, row in enumerate(counts.tolist())]
    return drawn(Chart(*BUBBLES, [holdings_panel("training samples by client and class", {"clients": clients})]))


def _by_data(shown: Sequence[Shown]) -> dict[str, dict[str, list[Shown]]]:
    """What was found by data set and method; both are in the names of panels."""
    made: dict[str, dict[str, list[Shown]]] = {}
    for one in shown:
        data, _, method = one.panel.partition(": ")
        made.setdefault(data, {}).setdefault(method, []).append(one)
    return made


def _tints(shown: Sequence[Shown]) -> dict[str, int]:
    names = dict.fromkeys(one.panel.partition(": ")[2] for one in shown)
    return {name: tint for tint, name in enumerate(names)}


@progress.drawing
def draw_progress(shown: Sequence[Shown]) -> Drawn:
    """Figures 6b to 6d: accuracy against rounds, a panel for each data set."""
    tints = _tints(shown)
    panels = []
    for data, methods in _by_data(shown).items():
        marks = [_curve(method, tints[method], runs) for method, runs in methods.items()]
        panels.append(Panel(data, Axis("round", "round", COUNT), Axis("PA_all", "PA_all", PERCENT), marks))
    return drawn(Chart("progress", "Accuracy by round", "After full personalisation at every point.", panels))


def _curve(method: str, tint: int, runs: Sequence[Shown]) -> Line:
    rounds = runs[0].found.arrays["round"].tolist()
    return mean_line(method, tint, rounds, [one.found.arrays["accuracy"] for one in runs])


@pace.drawing
def draw_pace(shown: Sequence[Shown]) -> Drawn:
    """Figure 8: seconds until shares of the clients are there, rounds until their mean is."""
    tints, by_data = _tints(shown), _by_data(shown)
    panels = [_seconds_panel(data, methods, tints) for data, methods in by_data.items()]
    panels = [panel for panel in panels if any(isinstance(mark, Bars) and mark.x for mark in panel.marks)]
    return drawn(Chart("pace", "Time and rounds to an accuracy", "", [*panels, _rounds_panel(by_data, tints)]))


def _rounds_panel(by_data: Mapping[str, Mapping[str, Sequence[Shown]]], tints: Mapping[str, int]) -> Panel:
    """Rounds by data set; who was never there has an outline that ends one beyond the last round."""
    names, marks = list(by_data), []
    for method, tint in tints.items():
        found = {float(names.index(data)): runs[method] for data, runs in by_data.items() if method in runs}
        heights = [_mean(runs, "rounds, at least") or 0.0 for runs in found.values()]
        never = [at for at, runs in found.items() if _mean(runs, "rounds") is None]
        marks.append(Bars(method, tint, list(found), heights, [0.0] * len(found), outlined=never))
    note = (
        "outlines: not in all runs, which count as one beyond the last" if any(mark.outlined for mark in marks) else ""
    )
    y = Axis("rounds to the accuracy", "rounds", COUNT)
    return Panel("all clients", Axis("", "data", names=names), y, marks, note)


def _seconds_panel(data: str, methods: Mapping[str, Sequence[Shown]], tints: Mapping[str, int]) -> Panel:
    start = "seconds until "
    first = next(iter(methods.values()))[0].found.numbers["all"]
    columns = [name for name in first if name.startswith(start)]
    marks = []
    for method, runs in methods.items():
        found = {float(place): _mean(runs, column) for place, column in enumerate(columns)}
        there = {place: value for place, value in found.items() if value is not None}
        marks.append(Bars(method, tints[method], list(there), list(there.values()), [0.0] * len(there)))
    note = "no bar: not in all runs" if any(len(mark.x) < len(columns) for mark in marks) else ""
    places = [column.removeprefix(start).removesuffix(" of the clients") for column in columns]
    x = Axis("share of the clients", "share", names=places)
    return Panel(data, x, Axis("seconds to the accuracy", "seconds", SECONDS), marks, note)


def _mean(runs: Sequence[Shown], column: str) -> float | None:
    """The mean over seeds; None where one of them never got there."""
    values = [one.found.numbers["all"][column] for one in runs]
    return fmean(values) if values and not any(map(math.isnan, values)) else None


@planes.drawing
def draw_planes(shown: Sequence[Shown]) -> Drawn:
    """Figure 10, a panel for each arm, of the first seed; clients have the colours of their clusters."""
    first = first_seed(shown).found
    panels = []
    for name, rows in first.arrays.items():
        marks: list[Mark] = []
        for group in sorted(set(rows[:, 3].astype(int).tolist())):
            own = rows[rows[:, 3] == group]
            clients = [f"client {int(client)}" for client in own[:, 0]]
            marks.append(Dots(f"cluster {group}", group, own[:, 1].tolist(), own[:, 2].tolist(), clients))
        note = f"silhouette {first.numbers[name]['silhouette']:.2f}"
        x, y = Axis("first principal direction", "first"), Axis("second principal direction", "second")
        panels.append(Panel(name, x, y, marks, note))
    return drawn(Chart("planes", "Where clients' models lie", "Uploads of the last round, scaled.", panels))
