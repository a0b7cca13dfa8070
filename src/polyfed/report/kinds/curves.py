"""Accuracy against what it cost: rounds, bytes, seconds; the mean over seeds and its spread."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from statistics import fmean, stdev

import pandas

from polyfed.report.charts import BYTES, COUNT, PERCENT, SECONDS, Axis, Chart, Line, Panel, drawn, told_apart
from polyfed.report.kinds.words import AFTER, MEASURES, measured, titled
from polyfed.report.runs import Selection, Shown, by_row

Cost = Callable[[Shown, pandas.DataFrame], pandas.Series]
BAND = "Lines: mean over seeds; band: one standard deviation."
FINAL = " Stars: after finish, which is a round of its own."


def against_rounds(selection: Selection) -> Chart | None:
    """Accuracy after each measured round, of every measure there is."""
    axis = Axis("round", "round", COUNT, finish=max(run.rounds for run in selection.runs) + 1.0)
    caption = f"{BAND}{FINAL} GA, PA_all, PA_sel and GA_local are different numbers: each has its own panel."
    return _curves(selection, "rounds", "Accuracy against rounds", caption, axis, _round, list(MEASURES))


def against_bytes(selection: Selection) -> Chart | None:
    """The same against the traffic of training."""
    axis = Axis("bytes up and down in training, all clients together", "bytes", BYTES)
    title = "Accuracy against bytes"
    return _curves(selection, "bytes", title, f"{BAND}{FINAL}", axis, _bytes, ["global", "personal"])


def against_seconds(selection: Selection) -> Chart | None:
    """The same against the time spent in training and merging."""
    axis = Axis("wall-clock seconds of training and merging", "seconds", SECONDS)
    caption = f"{BAND}{FINAL} Set-up and evaluation are not counted; other work on the machine is."
    return _curves(selection, "seconds", "Accuracy against seconds", caption, axis, _seconds, ["global", "personal"])


def _round(run: Shown, found: pandas.DataFrame) -> pandas.Series:
    return found["round"].astype(float)


def _bytes(run: Shown, found: pandas.DataFrame) -> pandas.Series:
    return _spent(run, found, ["bytes_up", "bytes_down"])


def _seconds(run: Shown, found: pandas.DataFrame) -> pandas.Series:
    return _spent(run, found, ["train", "finish", "server"])


def _spent(run: Shown, found: pandas.DataFrame, columns: list[str]) -> pandas.Series:
    """What had been spent at each of these rounds; nan where it is not recorded."""
    spent = run.records("spent").set_index("round")[columns].sum(axis=1, min_count=1)
    return found["round"].map(spent).astype(float)


def _curves(
    selection: Selection, kind: str, title: str, caption: str, axis: Axis, cost: Cost, measures: Sequence[str]
) -> Chart | None:
    panels = []
    for measure in measures:
        words = MEASURES[measure]
        for setting, runs in selection.by_setting().items():
            drawn_here = [_marks(selection, row, seeds, measure, cost) for row, seeds in by_row(runs).items()]
            marks, note = told_apart(_at_finish([mark for lines in drawn_here for mark in lines], axis))
            stars = any(mark.finish == "after" for lines in drawn_here for mark in lines)
            across = axis if stars else replace(axis, finish=None)
            note = " ".join(filter(None, [note, _sampled(runs) if measure == "global" else ""]))
            panels.append(Panel(titled(words, setting), across, Axis("accuracy", "accuracy", PERCENT), marks, note))
    return drawn(kind, title, caption, panels)


def _sampled(runs: Iterable[Shown]) -> str:
    """What a curve of GA was measured on, where that is less than the whole test set before the last round."""
    told: set[str] = set()
    for run in runs:
        found = run.records("rounds")
        sizes = found[found["measure"] == "global"].get("samples", pandas.Series(dtype=float)).dropna().astype(int)
        if sizes.nunique() > 1:
            told.add(f"{sizes.min()} of {sizes.max()} test samples")
    return f"Before the last round on {', '.join(sorted(told))}; the last point on all." if told else ""


def _at_finish(marks: Sequence[Line], axis: Axis) -> list[Line]:
    """Place the stars side by side at "finish", where the axis has that place, however many rounds their run had."""
    if axis.finish is None:
        return list(marks)
    stars = [mark for mark in marks if mark.finish == "after"]
    gap = min(0.012 * axis.finish, 0.9 / max(len(stars), 1))
    places = {star.series: axis.finish + gap * (at - (len(stars) - 1) / 2) for at, star in enumerate(stars)}
    return [replace(m, x=[places[m.series]] * len(m.x)) if m.finish == "after" else m for m in marks]


def _marks(selection: Selection, row: str, runs: Sequence[Shown], measure: str, cost: Cost) -> list[Line]:
    """The line of a row and, for personal models, where it stands after finish."""
    label, tint = measured(selection, row), selection.rows.index(row)
    marks: list[Line] = []
    for name in [measure, *([AFTER] if measure == "personal" else [])]:
        points = over_seeds(point for run in runs for point in _points(run, name, cost))
        if points:
            x, y, spread, seeds = (list(each) for each in zip(*points, strict=True))
            marks.append(Line(label, tint, x, y, spread, seeds, "after" if name == AFTER else "before"))
    return marks


def _points(run: Shown, measure: str, cost: Cost) -> list[tuple[int, float, float]]:
    """Round, cost and accuracy."""
    found = run.records("rounds")
    found = found[found["measure"] == measure]
    each = zip(found["round"], cost(run, found), found["accuracy"], strict=True)
    return [(int(number), float(x), float(y)) for number, x, y in each]


def over_seeds(points: Iterable[tuple[int, float, float]]) -> list[tuple[float, float, float, int]]:
    """Of points with their round: mean x, mean and standard deviation of y (0 for one seed), number of seeds."""
    rounds: dict[int, list[tuple[float, float]]] = {}
    for number, x, y in points:
        if not (math.isnan(x) or math.isnan(y)):
            rounds.setdefault(number, []).append((x, y))
    made = []
    for _, pairs in sorted(rounds.items()):
        xs, ys = zip(*pairs, strict=True)
        made.append((fmean(xs), fmean(ys), stdev(ys) if len(ys) > 1 else 0.0, len(ys)))
    return made
