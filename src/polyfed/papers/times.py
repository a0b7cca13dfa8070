"""How long cells that are not done will take: by what is in the store, else by a calibration.

A cell of the same row with another seed tells most, then one of another method in the same setting, then a few timed
steps of its model on its data. All are minutes of one core.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from statistics import fmean

from polyfed.papers.calibrate import Calibration
from polyfed.papers.cell import PaperCell, digest
from polyfed.papers.found import ItemFound
from polyfed.papers.left import Left
from polyfed.papers.store import StoredCell


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


def _finished(found: ItemFound) -> Iterator[tuple[PaperCell, StoredCell]]:
    yield from found.current.items()
    for cell, stored in found.stale.items():
        if stored.identity == cell.identity:
            yield cell, stored


def _kin(cell: PaperCell) -> tuple[str, str]:
    """What all seeds of a row have in common, and what all rows of its setting have."""
    run = {key: value for key, value in cell.counting.items() if key != "seed"}
    setting = [cell.item.id, cell.scale] if cell.item.demo else cell.setting
    return f"run {digest(run)}", f"setting {digest(setting)}"
