"""What happens to rare classes: recall per class, and of head, mid and tail."""

from collections.abc import Sequence

import pandas

from polyfed.measure.metrics import GROUPS
from polyfed.report.charts import PERCENT, Axis, Bars, Chart, Line, Mark, Panel, drawn
from polyfed.report.kinds.holdings import class_names, class_order
from polyfed.report.kinds.words import in_the_end, last, measured, titled
from polyfed.report.runs import Selection, Shown, by_row

MANY = 20  # with this many classes bars would be too thin
SPREAD = "Mean over seeds; whiskers: one standard deviation, as far as 0 and 100 %."


def per_class(selection: Selection) -> Chart | None:
    """Recall of each class, from the most to the least frequent; of masks IoU."""
    panels = []
    what = "IoU" if all("iou" in run.records("classes") for run in selection.runs) else "recall"
    for measure, words in in_the_end(selection).items():
        for setting, runs in selection.by_setting().items():
            order, names = _classes(runs, measure)
            where = "class, from the most to the least frequent" if _told(runs) else "class"
            axis = Axis(where, "class", names=names)
            marks = []
            for row, seeds in by_row(runs).items():
                each = [last(run, "classes", measure).set_index("class")[what.lower()] for run in seeds]
                marks += _marks(selection, row, each, order, len(order) > MANY)
            panels.append(Panel(titled(words, setting), axis, Axis(what, what, PERCENT), marks))
    return drawn("classes", f"{what[0].upper()}{what[1:]} by class", SPREAD, panels)


def per_group(selection: Selection) -> Chart | None:
    """Recall of the frequent, middle and rare third of the classes."""
    panels = []
    for measure, words in in_the_end(selection).items():
        for setting, runs in selection.by_setting().items():
            axis = Axis("third of the classes, by training samples", "group", names=GROUPS)
            marks = []
            for row, seeds in by_row(runs).items():
                found = [last(run, "rounds", measure) for run in seeds]
                each = [pandas.Series(one[list(GROUPS)].iloc[-1].tolist()) for one in found if len(one)]
                marks += _marks(selection, row, each, range(len(GROUPS)), False)
            panels.append(Panel(titled(words, setting), axis, Axis("mean recall", "recall", PERCENT), marks))
    return drawn("groups", "Head, mid and tail", f"{SPREAD} Head: the most frequent third.", panels)


def _marks(
    selection: Selection, row: str, each: Sequence[pandas.Series], order: Sequence[int], thin: bool
) -> list[Mark]:
    """Means over seeds at the places of `order`; nothing for what no seed has."""
    table = pandas.DataFrame([one.reindex(order) for one in each]).astype(float)
    mean, std, seeds = table.mean(), table.std().fillna(0.0), table.count()
    at = [place for place, key in enumerate(order) if len(table) and seeds[key]]
    if not at:
        return []
    x, keys = [float(place) for place in at], [order[place] for place in at]
    y, spread = [float(mean[k]) for k in keys], [float(std[k]) for k in keys]
    label, tint = measured(selection, row), selection.rows.index(row)
    if thin:
        return [Line(label, tint, x, y, spread, [int(seeds[k]) for k in keys])]
    return [Bars(label, tint, x, y, spread)]


def _told(runs: Sequence[Shown]) -> bool:
    return class_order(runs[0].federation) is not None


def _classes(runs: Sequence[Shown], measure: str) -> tuple[list[int], list[str]]:
    """Classes in their order and by their names; by number where the federation is not known."""
    federation = runs[0].federation
    order = class_order(federation)
    if federation is not None and order is not None:
        names = class_names(federation)
        return order, [names[c] for c in order]
    numbers = sorted({int(c) for run in runs for c in last(run, "classes", measure)["class"]})
    return numbers, [str(c) for c in numbers]
