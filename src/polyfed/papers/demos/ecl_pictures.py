"""The picture of ECL's demo: apart from what computes it, so that a change of the picture makes no number stale."""

from collections.abc import Sequence

import numpy as np

from polyfed.papers.demos import Drawn, Shown, drawn
from polyfed.papers.demos.gaps import WAYS, gaps
from polyfed.report.charts import PERCENT, POINTS, Axis, Bars, Chart, Mark, Panel


@gaps.drawing
def draw_gaps(shown: Sequence[Shown]) -> Drawn:
    """Figure 2: (a) the gap by class, the mean over seeds; (b) the client of the first seed."""
    panels = []
    for name in dict.fromkeys(one.panel for one in shown):
        runs = sorted((one for one in shown if one.panel == name), key=lambda one: one.seed)
        panels.append(_gap_panel(name, runs) if "order" in runs[0].found.arrays else _client_panel(name, runs[0]))
    return drawn(Chart("gaps", "Where ECL gains", "Recalls on the official test.", panels))


def _gap_panel(title: str, runs: Sequence[Shown]) -> Panel:
    order = runs[0].found.arrays["order"].astype(int)
    marks: list[Mark] = []
    for tint, way in enumerate(WAYS):
        values = np.stack([one.found.arrays[way] for one in runs])
        spread = values.std(axis=0, ddof=1) if len(runs) > 1 else np.zeros(len(order))
        places = [float(place) for place in range(len(order))]
        marks.append(Bars(way, tint, places, np.nan_to_num(values.mean(axis=0)).tolist(), spread.tolist()))
    x = Axis("class, from the most to the least frequent", "class", names=[str(c) for c in order])
    return Panel(title, x, Axis("ECL less FedAvg-FT, points", "gap", POINTS), marks)


def _client_panel(title: str, run: Shown) -> Panel:
    arrays = run.found.arrays
    names = [f"{int(c)}\n({int(n)})" for c, n in zip(arrays["classes"], arrays["samples"], strict=True)]
    places = [float(place) for place in range(len(names))]
    marks: list[Mark] = [
        Bars(name, tint + len(WAYS), places, arrays[name].tolist(), [0.0] * len(names))
        for tint, name in enumerate(run.found.numbers)
    ]
    x = Axis("class (its samples on the client)", "class", names=names)
    return Panel(title, x, Axis("recall", "recall", PERCENT), marks)
