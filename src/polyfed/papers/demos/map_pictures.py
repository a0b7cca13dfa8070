"""The pictures of MAP's demos: apart from what computes them, so that a change of a picture makes no number stale."""

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

import numpy as np

from polyfed.papers.demos import Drawn, Shown, drawn
from polyfed.papers.demos.points import draw_plane, rows_of_plane
from polyfed.papers.demos.proxies import plane
from polyfed.papers.demos.proxy_training import DISTANCES, GRADIENTS, NORMS, training
from polyfed.papers.demos.targets import ALONE, AMONG_ALL, targets
from polyfed.papers.demos.two_clients import MERGED, OBSERVED, STAGES, two_clients
from polyfed.report.charts import COUNT, PERCENT, Axis, Bars, Chart, Line, Panel

ACROSS = 3  # planes in a row
PANELS = {"norm of the proxies": NORMS, "norm of their gradients": GRADIENTS, "distance between proxies": DISTANCES}
TOLD = dict(zip(STAGES, ("downloaded", "trained on classes 0 to 4", "aggregated"), strict=True))


@plane.drawing
def draw_proxies(shown: Sequence[Shown]) -> Drawn:
    """A picture for each panel, three in a row, of the first seed whose features are not all zero."""
    from matplotlib import pyplot

    from polyfed.report.print import STYLE

    first = [_alive([one for one in shown if one.panel == panel]) for panel in dict.fromkeys(s.panel for s in shown)]
    down = -(-len(first) // ACROSS)
    rows: list[Mapping[str, Any]] = []
    with pyplot.rc_context(STYLE):
        figure, axes = pyplot.subplots(
            down, ACROSS, figsize=(2.6 * ACROSS, 2.6 * down), squeeze=False, layout="constrained"
        )
        for place, spare in enumerate(axes.flat):
            if place >= len(first):
                spare.remove()
                continue
            one = first[place]
            observed = int(one.found.arrays["observed"])
            draw_plane(spare, one.found.arrays, observed, one.panel)
            rows += rows_of_plane(one.panel, one.found.arrays, observed)
    return Drawn(figure, rows)


def _alive(shown: Sequence[Shown]) -> Shown:
    """The first whose features are not all zero, as they are where both ReLUs died."""
    ordered = sorted(shown, key=lambda one: one.seed)
    return next((one for one in ordered if one.found.arrays["features"].any()), ordered[0])


@training.drawing
def draw_training(shown: Sequence[Shown]) -> Drawn:
    """Three panels over epochs: norms, norms of gradients, distances; the mean over seeds."""
    panels = []
    for title, names in PANELS.items():
        marks = []
        for tint, name in enumerate(names):
            series = np.stack([one.found.arrays[name] for one in shown])
            epochs = np.flatnonzero(~np.isnan(series).any(axis=0))
            means = [fmean(series[:, epoch].tolist()) for epoch in epochs]
            spread = [float(series[:, epoch].std(ddof=1)) if len(series) > 1 else 0.0 for epoch in epochs]
            colour = tint if len(names) == len(NORMS) else len(NORMS) + tint
            label = name.removesuffix(" gradient")
            marks.append(Line(label, colour, epochs.astype(float).tolist(), means, spread, [len(series)] * len(means)))
        panels.append(Panel(title, Axis("epoch", "epoch", COUNT), Axis("", "value"), marks))
    return drawn(Chart("proxy-training", "Proxies while a network is trained", "Figure 6", panels))


@targets.drawing
def draw_targets(shown: Sequence[Shown]) -> Drawn:
    """Two bars for each number of targeted classes."""
    rows = list(shown[0].found.numbers)
    marks = []
    for tint, name in enumerate((ALONE, AMONG_ALL)):
        values = [[one.found.numbers[row][name] / 100 for one in shown] for row in rows]
        spread = [stdev(each) if len(each) > 1 else 0.0 for each in values]
        marks.append(Bars(name, tint, [float(at) for at in range(len(rows))], [fmean(v) for v in values], spread))
    x = Axis("targeted classes", "targets", names=[row.removesuffix(" classes") for row in rows])
    panel = Panel("", x, Axis("accuracy on the targeted classes", "accuracy", PERCENT), marks)
    return drawn(Chart("targets", "Accuracy on targeted classes", "Figure 7", [panel]))


@two_clients.drawing
def draw_two_clients(shown: Sequence[Shown]) -> Drawn:
    """A row for each method: features at download, after local training, after averaging; accuracy by round."""
    from matplotlib import pyplot

    from polyfed.report.print import STYLE

    first = [one for one in shown if one.seed == min(each.seed for each in shown)]
    rows: list[Mapping[str, Any]] = []
    with pyplot.rc_context(STYLE):
        size = (2.6 * (len(STAGES) + 1), 2.7 * len(first))
        figure, axes = pyplot.subplots(len(first), len(STAGES) + 1, figsize=size, squeeze=False, layout="constrained")
        for one, across in zip(first, axes, strict=True):
            for spare, (stage, told) in zip(across, TOLD.items(), strict=False):
                plane = {part: one.found.arrays[f"{stage} {part}"] for part in ("features", "labels", "proxies")}
                observed = OBSERVED if stage != MERGED else 2 * OBSERVED
                draw_plane(spare, plane, observed, f"{one.panel}, {told}")
                rows += rows_of_plane(f"{one.panel}, {told}", plane, observed)
            _draw_accuracy(across[-1], one)
            rows += _rows_of_accuracy(one)
    return Drawn(figure, rows)


def _draw_accuracy(axes: Any, one: Shown) -> None:
    """Solid while a client trains, dotted from its personal model to what it downloads next."""
    accuracy = one.found.arrays["accuracy"]
    for at in range(len(accuracy) - 1):
        trains = at % 2 == 0
        places = (at // 2 + 1, at // 2 + 1.6) if trains else (at // 2 + 1.6, at // 2 + 2)
        axes.plot(places, accuracy[at : at + 2], "-" if trains else ":", color="black", marker="o", markersize=2.5)
    axes.set(title=f"{one.panel}: solid, local training", xlabel="round", ylabel="local accuracy, %", ylim=(0, 101))
    axes.xaxis.get_major_locator().set_params(integer=True)


def _rows_of_accuracy(one: Shown) -> list[dict[str, Any]]:
    return [
        {
            "panel": one.panel,
            "what": "accuracy, personal" if at % 2 else "accuracy, downloaded",
            "class": "",
            "observed": "",
            "x": at // 2 + 1,
            "y": value,
        }
        for at, value in enumerate(one.found.arrays["accuracy"])
    ]
