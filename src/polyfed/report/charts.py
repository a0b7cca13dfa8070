"""Charts as data: what is drawn, without how; the same for print, for the page and for a CSV file."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas

from polyfed.report.names import as_written

# told apart by people of every colour vision, and from the paper (light) and the screen (dark) behind them
LIGHT = ("#0b6bb3", "#c24a08", "#00735a", "#d967a8", "#4a2580", "#a99400", "#8c1630", "#4f5964")
DARK = ("#3f97ea", "#ff8a2b", "#57e0b4", "#f79ccf", "#8a63e8", "#efe55a", "#d9434f", "#8b97a6")
SHAPES = ("circle", "square", "diamond", "triangle-up", "cross", "triangle-down", "x", "star")

SAME_PLACE, SAME_HEIGHT = 0.005, 0.003  # of the axis, and of an accuracy: lines that are nearer look like one
NUMBER, COUNT, PERCENT, POINTS, BYTES, SECONDS = "number", "count", "percent", "points", "bytes", "seconds"
METHOD = "method"  # the column of an axis whose places are rows of a comparison
GAP = 60  # of the width of a picture: how far it lies from the next
Row = dict[str, Any]
Numbers = Sequence[float]


@dataclass(frozen=True)
class Axis:
    """What a direction means: its label for people, its name in a CSV file, its unit, or the names of its places."""

    label: str
    column: str
    unit: str = NUMBER
    names: Sequence[str] | None = None
    finish: float | None = None  # the place of what comes after the last round, which is said there

    def ends(self, middle: float, spread: float) -> tuple[float, float]:
        """Where a whisker begins and ends: a share is never below 0 or above 100 %, whatever its spread."""
        low, high = middle - spread, middle + spread
        return (max(low, 0.0), min(high, 1.0)) if self.unit == PERCENT else (low, high)

    def ticks(self, top: float) -> tuple[list[float], list[str]] | None:
        """Whole numbers up to `top`, and "finish" where it is; None where ordinary ticks will do."""
        if self.finish is None:
            return None
        step = round_step(top)
        places = [float(n) for n in np.arange(0, self.finish, step) if self.finish - n > 0.6 * step]
        return [*places, self.finish], [*(f"{place:g}" for place in places), "finish"]

    def written(self) -> "Axis":
        """The same with methods as papers write them, where its places are methods."""
        names = [as_written(name) for name in self.names or ()]
        return replace(self, names=names) if self.column == METHOD else self

    def value(self, at: Any) -> Any:
        """What stands at a place, for a CSV file."""
        if self.finish is not None and abs(at - self.finish) < 0.5:  # stars stand side by side around it
            return self.finish
        return self.names[int(at)] if self.names is not None else at


@dataclass(frozen=True)
class Mark:
    """Something drawn; `tint` is the number of its colour and shape, the same for a method everywhere.

    A tint below 0 is grey: what has no group.
    """

    series: str
    tint: int

    @property
    def named(self) -> bool:
        """Whether its series is written where it is drawn."""
        return False

    def written(self) -> "Mark":
        """The same with its method as papers write it."""
        return replace(self, series=as_written(self.series))

    def rows(self, x: Axis, y: Axis) -> Iterator[Row]:
        """Its data, a row each."""
        raise AssertionError(f"{type(self).__name__} has no data")


@dataclass(frozen=True)
class Line(Mark):
    """A mean over seeds with its spread, and how many seeds there were; what comes after finish is drawn as a star."""

    x: Numbers
    y: Numbers
    spread: Numbers
    seeds: Sequence[int]
    finish: str = ""  # before, after, or nothing to say
    on: str = ""  # the series whose line this one would hide, so that it is drawn with gaps

    def hides(self, other: "Line", width: float) -> bool:
        """Whether both lines look like one, where the axis of x is so wide."""
        return len(self.x) == len(other.x) and all(
            abs(x - a) <= SAME_PLACE * width and abs(y - b) <= SAME_HEIGHT
            for x, y, a, b in zip(self.x, self.y, other.x, other.y, strict=True)
        )

    def rows(self, x: Axis, y: Axis) -> Iterator[Row]:
        when = {"finish": self.finish} if self.finish else {}
        for at, mean, std, count in zip(self.x, self.y, self.spread, self.seeds, strict=True):
            yield {x.column: x.value(at), **when, y.column: mean, f"{y.column} std": std, "seeds": count}


@dataclass(frozen=True)
class Bars(Mark):
    """A bar at each named place, with its spread over seeds; a bar that is only outlined stands for no number."""

    x: Numbers
    y: Numbers
    spread: Numbers
    outlined: Sequence[float] = ()  # places

    def rows(self, x: Axis, y: Axis) -> Iterator[Row]:
        for at, height, std in zip(self.x, self.y, self.spread, strict=True):
            told = {"outlined": True} if at in self.outlined else {}
            yield {x.column: x.value(at), y.column: height, f"{y.column} std": std, **told}


@dataclass(frozen=True)
class Dots(Mark):
    """Points with a name each, which may stand beside them; some with a size or a spread in both directions."""

    x: Numbers
    y: Numbers
    names: Sequence[str]
    sizes: Numbers | None = None
    size: str = "size"
    spread: tuple[Numbers, Numbers] | None = None
    beside: bool = False

    @property
    def named(self) -> bool:
        return self.beside and self.series in self.names

    def written(self) -> "Mark":
        label = as_written(self.series)
        return replace(self, series=label, names=[label if name == self.series else name for name in self.names])

    def rows(self, x: Axis, y: Axis) -> Iterator[Row]:
        for i, (at, height, name) in enumerate(zip(self.x, self.y, self.names, strict=True)):
            row: Row = {x.column: x.value(at), y.column: y.value(height), "name": name}
            if self.sizes is not None:
                row[self.size] = self.sizes[i]
            if self.spread is not None:
                row |= {f"{a.column} std": each[i] for a, each in zip((x, y), self.spread, strict=True)}
            yield row


@dataclass(frozen=True)
class Strip(Mark):
    """Every client of a method on one line, at its value; the worst and the best are named."""

    at: int
    values: Numbers
    names: Sequence[str]

    @property
    def named(self) -> bool:
        return True

    @property
    def quartiles(self) -> tuple[float, float, float]:
        """Lower quartile, median, upper quartile."""
        low, middle, high = np.quantile(self.values, [0.25, 0.5, 0.75])
        return float(low), float(middle), float(high)

    @property
    def offsets(self) -> list[float]:
        """How far each lies beside the line, so that equal values do not hide each other."""
        seen: dict[float, int] = {}
        made = []
        for value in np.round(self.values, 2):
            seen[value] = seen.get(value, 0) + 1
            turn = seen[value] // 2 * (1 if seen[value] % 2 else -1)
            made.append(float(np.clip(0.06 * turn, -0.3, 0.3)))
        return made

    def extremes(self) -> list[tuple[int, str]]:
        """The worst and the best: which they are, and what is written there."""
        made = []
        for place in (int(np.argmin(self.values)), int(np.argmax(self.values))):
            others = int(np.sum(np.asarray(self.values) == self.values[place])) - 1
            made.append((place, self.names[place] + (f" and {others} more" if others else "")))
        return made

    def rows(self, x: Axis, y: Axis) -> Iterator[Row]:
        for value, name in zip(self.values, self.names, strict=True):
            yield {y.column: y.value(self.at), "name": name, x.column: value}


@dataclass(frozen=True)
class Histogram(Mark):
    """How many clients have a value in each bin between the edges."""

    values: Numbers
    names: Sequence[str]
    edges: Numbers

    @property
    def named(self) -> bool:
        return True

    @property
    def counts(self) -> list[int]:
        """Clients in each bin."""
        return np.histogram(self.values, self.edges)[0].tolist()

    def rows(self, x: Axis, y: Axis) -> Iterator[Row]:
        for value, name in zip(self.values, self.names, strict=True):
            yield {"name": name, x.column: value}


@dataclass(frozen=True)
class Tiles(Mark):
    """A value for each pair of places; nan where there is none. Groups have a colour each, other values a scale."""

    values: np.ndarray  # [y, x]
    value: str
    groups: bool = False
    picture: bool = False  # whether the values are the grey levels of an image

    def rows(self, x: Axis, y: Axis) -> Iterator[Row]:
        for (row, column), value in np.ndenumerate(self.values):
            if not np.isnan(value):
                shown = int(value) if self.groups else float(value)
                yield {y.column: y.value(row), x.column: x.value(column), self.value: shown}


@dataclass(frozen=True)
class Mosaic(Mark):
    """A picture for each pair of places, all of one size; `key` says what their colours stand for.

    The first columns are the pictures themselves; of the last ones, `scores` has numbers for each picture.
    """

    pictures: Sequence[Sequence[np.ndarray]]  # [y][x], each uint8 [H, W, 3]
    scores: Sequence[Sequence[Mapping[str, float]]]  # [y][x], of the last columns
    key: Mapping[str, tuple[int, int, int]]

    @property
    def shape(self) -> tuple[int, int]:
        """The height and width of one picture."""
        high, wide = self.pictures[0][0].shape[:2]
        return high, wide

    def whole(self) -> np.ndarray:
        """All as one picture [H, W, 4], with gaps between them that are clear."""
        gap = max(2, self.shape[1] // GAP)
        edges = ((gap, gap), (gap, gap), (0, 0))
        tiles = [[np.pad(_opaque(tile), edges) for tile in line] for line in self.pictures]
        return np.concatenate([np.concatenate(line, axis=1) for line in tiles], axis=0)

    def rows(self, x: Axis, y: Axis) -> Iterator[Row]:
        for line, scores in enumerate(self.scores):
            before = len(self.pictures[line]) - len(scores)
            for column, numbers in enumerate(scores):
                yield {y.column: y.value(line), x.column: x.value(before + column), **numbers}


def _opaque(picture: np.ndarray) -> np.ndarray:
    return np.concatenate([picture, np.full((*picture.shape[:2], 1), 255, np.uint8)], axis=2)


@dataclass(frozen=True)
class Panel:
    """One pair of axes and what is drawn in it; `note` is said beneath the title, `rule` is a line at a value of x."""

    title: str
    x: Axis
    y: Axis
    marks: Sequence[Mark]
    note: str = ""
    rule: float | None = None
    square: bool = False

    def written(self) -> "Panel":
        """The same with methods as papers write them."""
        marks = [mark.written() for mark in self.marks]
        return replace(self, title=as_written(self.title), x=self.x.written(), y=self.y.written(), marks=marks)


@dataclass(frozen=True)
class Chart:
    """One figure: its panels, its title, and how to read it."""

    kind: str
    title: str
    caption: str
    panels: Sequence[Panel] = field(default_factory=list)
    across: int | None = None  # panels that belong on one line; by default as many as look well

    def legend(self) -> dict[str, int]:
        """What each colour stands for, where that is not written beside it; nothing where there is only one."""
        marks = [mark for panel in self.panels for mark in panel.marks if mark.series and not mark.named]
        found = {mark.series: mark.tint for mark in sorted(marks, key=lambda mark: mark.tint)}
        return found if len(found) > 1 else {}

    @property
    def columns(self) -> int:
        """How many panels stand side by side where there is room."""
        count = len(self.panels)
        if self.across is not None:
            return min(count, self.across)
        return min(count, 2 if count % 2 == 0 and count % 3 else 3)

    def written(self) -> "Chart":
        """As it is drawn, with methods as papers write them; its data hold their keys."""
        return replace(self, panels=[panel.written() for panel in self.panels])

    def frame(self) -> pandas.DataFrame:
        """All data of the figure; which panel and which series, where they have names."""
        rows = [
            {"panel": panel.title, "series": mark.series, **row}
            for panel in self.panels
            for mark in panel.marks
            for row in mark.rows(panel.x, panel.y)
        ]
        table = pandas.DataFrame(rows)
        return table.drop(columns=[name for name in ("panel", "series") if (table[name] == "").all()])


def told_apart(marks: Sequence[Mark]) -> tuple[list[Mark], str]:
    """Lines that would hide another are drawn with gaps through which it is seen; and the words that say so."""
    lines = [mark for mark in marks if isinstance(mark, Line) and mark.finish != "after"]
    places = [x for line in lines for x in line.x]
    width = max(places, default=0.0) - min(places, default=0.0)
    made: list[Mark] = []
    first: list[Line] = []
    for mark in marks:
        if isinstance(mark, Line) and mark in lines:
            below = next((line.series for line in first if mark.hides(line, width)), "")
            mark = replace(mark, on=below)
            first += [] if below else [mark]
        made.append(mark)
    said = [f"{mark.series} (with gaps) lies on {mark.on}" for mark in made if isinstance(mark, Line) and mark.on]
    return made, "; ".join(said)


def round_step(top: float) -> float:
    """A round number of which a few make a whole axis of counts."""
    size = 10 ** math.floor(math.log10(max(top / 6, 1)))
    return next(size * n for n in (1, 2, 5, 10) if size * n >= top / 6)


def shared_places(bars: Sequence[Bars]) -> bool:
    """Whether bars of several series stand at one place, so that they must stand side by side."""
    return len({at for one in bars for at in one.x}) < sum(len(one.x) for one in bars)


def middle(panel: Panel) -> float:
    """The value in the middle of a panel of strips: what is written right of it runs to the left."""
    values = [value for mark in panel.marks if isinstance(mark, Strip) for value in mark.values]
    return (min(values) + max(values)) / 2


def drawn(kind: str, title: str, caption: str, panels: Sequence[Panel]) -> Chart | None:
    """A chart of the panels that have something in them; None if there is none."""
    full = [panel for panel in panels if panel.marks]
    return Chart(kind, title, caption, full) if full else None


def in_unit(value: float, unit: str) -> str:
    """A number for people."""
    match unit:
        case "percent":
            return f"{100 * value:.1f} %"
        case "points":
            return f"{100 * value:+.1f}"
        case "bytes":
            from polyfed.report.tables import size

            return size(value)
        case "seconds":
            return f"{value:.1f} s"
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.4g}"
