"""The picture of FedCRC's demo: apart from what computes it, so that a change of the picture makes no number stale."""

from collections.abc import Sequence

from polyfed.papers.demos import Drawn, Shown, drawn
from polyfed.papers.demos.predictors import SETTINGS, predictors
from polyfed.papers.demos.seeds import mean_line
from polyfed.report.charts import COUNT, Axis, Chart, Panel


@predictors.drawing
def draw_predictors(shown: Sequence[Shown]) -> Drawn:
    """Figure 1: distance against updates, the mean over seeds."""
    updates = shown[0].found.arrays["updates"].tolist()
    marks = [
        mean_line(name, tint, updates, [one.found.arrays[name] for one in shown]) for tint, name in enumerate(SETTINGS)
    ]
    x, y = Axis("updates", "updates", COUNT), Axis("L2 distance of the heads", "distance")
    return drawn(Chart("predictors", "Heads of two clients", "", [Panel("", x, y, marks)]))
