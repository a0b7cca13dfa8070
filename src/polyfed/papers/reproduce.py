"""Reproduce a paper's table or figure: what is in the store is taken from it, what is missing is run and put there."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from polyfed.comparison.folder import ComparisonFolder
from polyfed.comparison.grid import Cell, make_grid
from polyfed.comparison.phases import sources
from polyfed.comparison.process import fault
from polyfed.comparison.run import run_cells
from polyfed.comparison.standing import Onlooker, State, States
from polyfed.config import Tree
from polyfed.engine.run_folder import RunFolder
from polyfed.engine.threads import threads
from polyfed.errors import DataError, Interrupted, PolyfedError
from polyfed.measure.watch import Watch
from polyfed.papers.at_hand import data_names, is_here, with_data
from polyfed.papers.cell import PaperCell, cells_of, slug
from polyfed.papers.demos import demo_of
from polyfed.papers.found import ItemFound
from polyfed.papers.recipe import Item
from polyfed.papers.sources import sources_of
from polyfed.papers.store import Store, from_demo, from_run

SECONDS = 60


@dataclass(frozen=True)
class Wish:
    """What is asked for: a scale, how many seeds, which panels and rows, and when to begin no further cell."""

    scale: str = "cpu"
    seeds: int | None = None
    only: str = ""
    rows: str = ""
    minutes: float | None = None
    who: Tree = field(default_factory=dict)  # a comparison's `jobs` and `share`

    def cells(self, item: Item) -> list[PaperCell]:
        """The cells of an item that are asked for."""
        return cells_of(item, self.scale, self.seeds, self.only, self.rows)


def reproduce(items: Sequence[Item], wish: Wish, store: Store, out: Path, watch: Watch) -> list[ItemFound]:
    """Run what is missing of these items, one item after the other, then say what there is."""
    until = None if wish.minutes is None else time.monotonic() + SECONDS * wish.minutes
    made = []
    for item in items:
        cells = wish.cells(item)
        failures = run_missing(cells, wish, store, out, watch, until)
        made.append(ItemFound.of(item, wish.scale, cells, store, failures))
    return made


def run_missing(
    cells: Sequence[PaperCell], wish: Wish, store: Store, out: Path, watch: Watch, until: float | None
) -> dict[str, PolyfedError]:
    """Run the cells that the store has not, each experiment once; return what failed, by the names of cells."""
    missing = {cell.identity: cell for cell in reversed(cells) if store.current(cell) is None}
    wanted = [cell for cell in cells if missing.get(cell.identity) is cell]
    todo = with_data(wanted)
    absent = _without_data([cell for cell in wanted if cell not in todo])
    if absent and todo:
        watch.say(absent)  # the others are run all the same
    if not todo:
        return {f"{wanted[0].item.id} ({wish.scale})": DataError(absent)} if absent else {}
    if todo[0].item.demo:
        return _run_demos(todo, store, watch, until)
    item = todo[0].item
    finished = [cell for cell in cells_of(item, wish.scale, wish.seeds) if store.current(cell) is not None]
    return _run_grid(todo, finished, wish, store, out, watch, until)


def _without_data(cells: Sequence[PaperCell]) -> str:
    """What is left out for want of data, in a sentence; nothing where nothing is."""
    names = list(dict.fromkeys(name for cell in cells for name in data_names(cell) if not is_here(name)))
    if not names:
        return ""
    cure = " and ".join(f"`polyfed data get {name}`" for name in names)
    return f"{len(cells)} cells are left out, because {', '.join(names)} is not here: {cure} brings it, or says how"


def _run_demos(todo: Sequence[PaperCell], store: Store, watch: Watch, until: float | None) -> dict[str, PolyfedError]:
    failures: dict[str, PolyfedError] = {}
    for cell in todo:
        if until is not None and time.monotonic() > until:
            break
        watch.say(f"{cell.name} begins")
        began = time.perf_counter()
        try:
            with threads(1):
                found = demo_of(cell.item.demo)(cell.seed, cell.tree)
            store.put(cell, from_demo(cell, found, (time.perf_counter() - began) / SECONDS))
        except Interrupted:
            raise
        except Exception as error:
            failures[cell.name] = fault(error)
            watch.say(f"{cell.name} failed: {failures[cell.name]}")
    return failures


def _run_grid(
    todo: Sequence[PaperCell],
    finished: Sequence[PaperCell],
    wish: Wish,
    store: Store,
    out: Path,
    watch: Watch,
    until: float | None,
) -> dict[str, PolyfedError]:
    """The missing cells as a comparison that grows; a folder is named after the sources, too, so none is mixed.

    Finished cells whose runs lie there lend their rounds.
    """
    item = todo[0].item
    path = out / f"{item.id}-{wish.scale}"
    labels = {cell: f"{slug(cell.panel)}.{slug(cell.row)}.{sources_of(cell)[:8]}" for cell in [*finished, *todo]}
    rows = {label: {"name": label, **cell.tree} for cell, label in labels.items()}
    grid = make_grid({"rows": list(rows.values()), "seeds": sorted({cell.seed for cell in todo}), **wish.who})
    by_place = {(label, cell.seed): cell for cell, label in labels.items()}
    asked = {cell: by_place[cell.row, cell.seed] for cell in grid.cells if (cell.row, cell.seed) in by_place}
    chosen = {cell: place for cell, place in asked.items() if place in todo}
    there = [cell for cell in asked if cell in chosen or RunFolder(path / cell.name).result() is not None]
    lending = {source for cell, source in sources(there).items() if cell in chosen}
    cells = tuple(cell for cell in there if cell in chosen or cell in lending)
    folder = ComparisonFolder.open(replace(grid, cells=cells), path, grows=True)
    failures = run_cells(folder, Keeper(watch, folder, chosen, store), until)
    names = {cell.name: asked[cell].name for cell in cells}
    return {names[name]: error for name, error in failures.items()}


class Keeper:
    """A watch that puts every cell into the store as soon as it is done, and passes on what it is told."""

    def __init__(self, watch: Watch, folder: ComparisonFolder, cells: dict[Cell, PaperCell], store: Store):
        self.watch, self.folder, self.open, self.store = watch, folder, dict(cells), store

    def cells(self, states: States, left: float | None) -> None:
        """A cell's state changed."""
        for cell in [cell for cell in self.open if states[cell] is State.DONE]:
            place = self.open.pop(cell)
            self.store.put(place, from_run(place, self.folder.run(cell)))
        if isinstance(self.watch, Onlooker):
            self.watch.cells(states, left)

    def round_of(self, cell: Cell, done: int, rounds: int, numbers: dict[str, Any]) -> None:
        """A round of a cell is committed."""
        if isinstance(self.watch, Onlooker):
            self.watch.round_of(cell, done, rounds, numbers)
        else:
            self.watch.round(done, rounds, numbers)

    def round(self, done: int, rounds: int, numbers: dict[str, Any]) -> None:
        """A round is committed."""
        self.watch.round(done, rounds, numbers)

    def say(self, text: str) -> None:
        """A line for people."""
        self.watch.say(text)
