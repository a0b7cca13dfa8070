"""Who gains and who loses: accuracy per client, its change against a baseline, and global against personal."""

from collections.abc import Sequence

import numpy as np
import pandas

from polyfed.report.charts import (
    COUNT,
    METHOD,
    PERCENT,
    POINTS,
    Axis,
    Chart,
    Dots,
    Histogram,
    Mark,
    Panel,
    Strip,
    drawn,
)
from polyfed.report.kinds.words import AFTER, FINALLY, client_name, in_the_end, last, measured, titled
from polyfed.report.names import as_written
from polyfed.report.runs import Selection, Shown, by_row

BINS = 20


def distribution(selection: Selection) -> Chart | None:
    """Every client's own accuracy, with the worst and the best by name."""
    measure, words = list(in_the_end(selection).items())[-1]
    panels = []
    for setting, runs in selection.by_setting().items():
        found = {row: _clients(selection, seeds, measure) for row, seeds in by_row(runs).items()}
        rows = [row for row in reversed(found) if len(found[row])]  # the first is drawn on top
        marks: list[Mark] = [
            Strip(
                measured(selection, row),
                selection.rows.index(row),
                at,
                found[row]["accuracy"].tolist(),
                found[row]["name"].tolist(),
            )
            for at, row in enumerate(rows)
        ]
        names = Axis("", METHOD, names=[measured(selection, row) for row in rows])
        panels.append(Panel(titled(words, setting), Axis("accuracy", "accuracy", PERCENT), names, marks))
    caption = "A dot per client, and per seed; box: the middle half, with the median. The worst and the best are named."
    return drawn("clients", "Accuracy of each client", caption, panels)


def change(selection: Selection) -> Chart | None:
    """How many clients win and lose against the baseline (MAP, figure 10)."""
    baseline, panels = selection.against, []
    for setting, runs in selection.by_setting().items():
        rows = by_row(runs)
        base = rows.pop(baseline or "", [])
        found = {row: _changes(selection, seeds, base) for row, seeds in rows.items()}
        edges = _edges([value for one in found.values() for value in one.tolist()])
        for row, changes in found.items():
            words = titled(f"{row} − {baseline}", setting)
            panels.append(_change_panel(words, row, selection.rows.index(row), changes, edges))
    other = as_written(baseline or "")
    caption = (
        f"Accuracy of each client's own model on its local test after finish (PA_all), minus that under {other} "
        "with the same seed."
    )
    return drawn("change", f"Change per client against {other}", caption, panels)


def _change_panel(title: str, row: str, tint: int, changes: pandas.Series, edges: Sequence[float]) -> Panel:
    up, down = int((changes > 0).sum()), int((changes < 0).sum())
    note = f"{up} of {len(changes)} clients better, {down} worse, {len(changes) - up - down} the same"
    axis = Axis("change of accuracy, percentage points", "change", POINTS)
    marks: list[Mark] = [Histogram(row, tint, changes.tolist(), changes.index.tolist(), edges)] if len(changes) else []
    return Panel(title, axis, Axis("clients", "clients", COUNT), marks, note, rule=0.0)


def _changes(selection: Selection, runs: Sequence[Shown], base: Sequence[Shown]) -> pandas.Series:
    """Differences by client, for the seeds both have."""
    theirs = {run.seed: _accuracies(run) for run in base}
    each = []
    for run in runs:
        if run.seed in theirs:
            one = (_accuracies(run) - theirs[run.seed]).dropna()
            each.append(one.rename(lambda name, run=run: client_name(run, name, selection)))
    return pandas.concat(each) if each else pandas.Series(dtype=float)


def _accuracies(run: Shown) -> pandas.Series:
    return last(run, "clients", AFTER).set_index("name")["accuracy"]


def _edges(values: Sequence[float]) -> list[float]:
    """Bins of one width over all panels, with an edge on both sides of no change."""
    reach = max((abs(v) for v in values), default=0.0) or 0.01
    width = 2 * reach / BINS
    half = BINS // 2
    return [float(width * (i - 0.5)) for i in range(-half, half + 2)]


def scatter(selection: Selection) -> Chart | None:
    """The one model for all against the models of each (MAP, figure 9)."""
    panels = []
    for setting, runs in selection.by_setting().items():
        marks: list[Mark] = []
        for row, seeds in by_row(runs).items():
            found = [(_accuracy(run, "global"), _accuracy(run, AFTER)) for run in seeds]
            both = np.array([(g, p) for g, p in found if g is not None and p is not None], float)
            if len(both):
                (x, y), label = both.mean(axis=0).tolist(), measured(selection, row)
                spread = both.std(axis=0, ddof=1) if len(both) > 1 else np.zeros(2)
                across, up = ([float(s)] for s in spread)
                marks.append(Dots(label, selection.rows.index(row), [x], [y], [label], spread=(across, up)))
        x_axis, y_axis = Axis(FINALLY["global"], "global", PERCENT), Axis(FINALLY[AFTER], "personal", PERCENT)
        panels.append(Panel(setting, x_axis, y_axis, marks if len(marks) > 1 else []))
    spread = "Mean over seeds; whiskers: one standard deviation, as far as 0 and 100 %."
    caption = f"{spread} Methods without a global model are not here."
    return drawn("scatter", "Global against personal", caption, panels)


def _accuracy(run: Shown, measure: str) -> float | None:
    found = last(run, "rounds", measure)["accuracy"]
    return float(found.iloc[-1]) if len(found) else None


def _clients(selection: Selection, runs: Sequence[Shown], measure: str) -> pandas.DataFrame:
    """Accuracies of the clients that have test samples, with their names."""
    each = []
    for run in runs:
        found = last(run, "clients", measure)[["name", "accuracy"]].dropna()
        each.append(found.assign(name=[client_name(run, str(name), selection) for name in found["name"]]))
    return pandas.concat(each)
