"""How long cells that are not done will take: by what is in the store, else by a calibration.

A cell of the same row with another seed tells most, then one of another method in the same setting, then a few timed
steps of its model on its data. All are minutes of one core.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from polyfed.config import Tree
from polyfed.papers.calibrate import Calibration
from polyfed.papers.cell import PaperCell, digest
from polyfed.papers.found import ItemFound
from polyfed.papers.left import Left, differ_greatly
from polyfed.papers.store import StoredCell

Way = Callable[[PaperCell], str]
Sum = Callable[[Sequence[PaperCell]], Left]


@dataclass
class Times:
    """Minutes of finished cells, by what is run there and by its setting alone, and a calibration for the others."""

    calibration: Calibration
    taken: dict[str, list[float]] = field(default_factory=dict)

    @staticmethod
    def of(every: Iterable[ItemFound], calibration: Calibration) -> "Times":
        """What the cells of these items took; a stale one counts where its experiment is still today's."""
        made, seen = Times(calibration), set[str]()
        for found in every:
            for cell, stored in _finished(found):
                if cell.identity not in seen:
                    seen.add(cell.identity)
                    for key in _kin(cell):
                        made.taken.setdefault(key, []).append(stored.minutes)
        return made

    def minutes(self, cell: PaperCell, measure: bool = False) -> float | None:
        """Minutes of one core that a cell takes; None where nothing tells. `measure` times what is not known yet."""
        for key in _kin(cell):
            if key in self.taken:
                return fmean(self.taken[key])
        return self.calibration.minutes(cell, measure)

    def left(self, cells: Iterable[PaperCell], measure: bool = False) -> Left:
        """What these cells take together, each experiment once."""
        seeds = Counter(cell.first or cell for cell in {cell.identity: cell for cell in cells}.values())
        each = {cell: self.minutes(cell, measure) for cell in seeds}
        known = {cell: minutes for cell, minutes in each.items() if minutes is not None}
        return Left(seeds.total(), sum(seeds[cell] for cell in known), sum(seeds[cell] * known[cell] for cell in known))


def parts_left(cells: Sequence[PaperCell], times: Times, measure: bool = False) -> list[Left]:
    """What these cells of an item take: in one sum, or where they differ greatly in length by data set or panel."""
    return _apart("", cells, (_data_set, _panel), lambda some: times.left(some, measure)) if cells else []


def _apart(only: str, cells: Sequence[PaperCell], ways: Sequence[Way], left: Sum) -> list[Left]:
    groups = _groups(cells, ways[0]) if ways and differ_greatly([*map(left, _groups(cells, _panel).values())]) else {}
    if not groups or any(name in cell.panel for name, some in groups.items() for cell in cells if cell not in some):
        return [replace(left(cells), only=only)]
    return [part for name, some in groups.items() for part in _apart(name, some, ways[1:], left)]


def _groups(cells: Sequence[PaperCell], way: Way) -> dict[str, list[PaperCell]]:
    made: dict[str, list[PaperCell]] = {}
    for cell in cells:
        made.setdefault(way(cell), []).append(cell)
    return made


def _data_set(cell: PaperCell) -> str:
    """`CIFAR-10,` of `CIFAR-10, VGG8`: with its comma or colon it is not the beginning of another's name."""
    return re.split(r"(?<=[,:])", cell.panel)[0]


def _panel(cell: PaperCell) -> str:
    return cell.panel


def _finished(found: ItemFound) -> Iterator[tuple[PaperCell, StoredCell]]:
    yield from found.current.items()
    for cell, stored in found.stale.items():
        if stored.identity == cell.identity:
            yield cell, stored


def _kin(cell: PaperCell) -> tuple[str, str]:
    """What all seeds of a row have in common, and what all rows of its setting have."""
    run = {key: value for key, value in cell.counting.items() if key != "seed"}
    return f"run {digest(run)}", f"setting {digest(_setting(cell))}"


def _setting(cell: PaperCell) -> Tree:
    """The setting of a row; panels of a demo that differ in the method alone are rows of one setting."""
    if not cell.item.demo:
        return cell.setting
    kept = {key: value for key, value in cell.tree.get("experiment", {}).items() if key != "method"}
    return {**cell.tree, "demo": cell.item.demo, "experiment": kept}
