"""Verify a store: repeat cells drawn at random and compare fingerprints and numbers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from polyfed.engine.run_folder import environment
from polyfed.errors import DataError, UsageError
from polyfed.measure.watch import Watch
from polyfed.papers.cell import PaperCell, cells_of
from polyfed.papers.recipe import find_items
from polyfed.papers.reproduce import Wish, run_missing
from polyfed.papers.sources import sources_of
from polyfed.papers.store import Store, StoredCell, read_cell, without_clock
from polyfed.papers.trial import differs, renewed
from polyfed.rng import generator

SAME, CLOSE, DIFFERENT, STALE, UNKNOWN = "same bits", "same numbers", "different", "stale", "unknown"
RENEWED, CURRENT = "renewed", "current"
CLOSE_BY = 0.02  # of an accuracy: what another CPU or torch may change by rounding


@dataclass(frozen=True)
class Checked:
    """What became of repeating one cell."""

    file: Path
    outcome: str
    said: str

    @property
    def failed(self) -> bool:
        """Whether the stored cell is contradicted."""
        return self.outcome == DIFFERENT


def stored_files(path: Path) -> tuple[Path, list[Path]]:
    """The root of the store that a path lies in, and the cells at or below the path."""
    files = [path] if path.is_file() else sorted(path.rglob("*.json"))
    if not files:
        raise UsageError(f"there is no cell of a store at '{path}'")
    # a cell lies at PAPER/ITEM/SCALE/PANEL/FILE below the root
    return files[0].resolve().parents[4], files


def draw(files: Sequence[Path], count: int, seed: int) -> list[Path]:
    """Cells drawn at random without repetition."""
    chosen = generator(seed, "verify").choice(len(files), size=min(count, len(files)), replace=False)
    return [files[place] for place in sorted(chosen.tolist())]


def verify(files: Sequence[Path], out: Path, watch: Watch, recipes: Path | None = None) -> list[Checked]:
    """Repeat these cells in a store of their own."""
    return [_check(file, out, watch, recipes) for file in files]


def _check(file: Path, out: Path, watch: Watch, recipes: Path | None) -> Checked:
    stored = read_cell(file)
    cell = cell_of(stored, recipes)
    if cell is None:
        return Checked(file, UNKNOWN, f"{stored.item} has no such cell any more: {stored.panel}, {stored.row}")
    if cell.identity != stored.identity:
        return Checked(file, STALE, "the recipe has other keys now, so it is not repeated")
    if sources_of(cell) != stored.sources:
        return Checked(file, STALE, "it was made by other sources of its method, so it is not repeated")
    fresh = Store(out / "store")
    failures = run_missing([cell], Wish(scale=cell.scale), fresh, out, watch, None)
    again = fresh.current(cell)
    if again is None:
        raise next(iter(failures.values()), DataError(f"{cell.name} gave no result"))
    return Checked(file, *compare(stored, again))


def renew(root: Path, files: Sequence[Path], watch: Watch, recipes: Path | None = None) -> list[Checked]:
    """Renew the stale cells among these whose first rounds have the same bits with today's sources.

    Of cells that differ in nothing but their seeds, one is tried for all.
    """
    store, tried = Store.open(root), dict[tuple[str, ...], Checked]()
    return [
        _renew(file, store, store.found[file.resolve().relative_to(root).as_posix()], tried, watch, recipes)
        for file in files
    ]


def _renew(
    file: Path,
    store: Store,
    stored: StoredCell,
    tried: dict[tuple[str, ...], Checked],
    watch: Watch,
    recipes: Path | None,
) -> Checked:
    cell = cell_of(stored, recipes)
    if cell is None or cell.identity != stored.identity:
        return Checked(file, UNKNOWN, "no recipe has this experiment any more")
    if sources_of(cell) == stored.sources:
        return Checked(file, CURRENT, "its sources are today's")
    group = (stored.item, stored.scale, stored.panel, stored.row, stored.sources, str(stored.commit))
    if group not in tried:
        watch.say(f"{cell.name}: a trial")
        tried[group] = Checked(file, *_tried(cell, stored))
    found = replace(tried[group], file=file)
    if found.outcome == RENEWED:
        store.replace(stored, renewed(cell, stored))
    return found


def _tried(cell: PaperCell, stored: StoredCell) -> tuple[str, str]:
    try:
        difference = differs(cell, stored)
    except DataError as error:
        return STALE, f"it must be run again: {error}"
    if difference:
        return STALE, difference
    return RENEWED, f"today's sources give the first rounds of seed {cell.seed} the same bits"


def cell_of(stored: StoredCell, recipes: Path | None = None) -> PaperCell | None:
    """The cell of today's recipes that a stored one stands for."""
    try:
        (item,) = find_items([stored.item], recipes)
        every = cells_of(item, stored.scale, stored.seed + 1)
    except UsageError:
        return None
    place = (stored.panel, stored.row, stored.seed)
    return next((cell for cell in every if (cell.panel, cell.row, cell.seed) == place), None)


def compare(stored: StoredCell, again: StoredCell) -> tuple[str, str]:
    """Whether a repetition is the same, and in words how it differs."""
    elsewhere = _elsewhere(stored)
    if stored.fingerprint == again.fingerprint and _furthest(stored, again)[1] == 0:
        return SAME, f"fingerprint {stored.fingerprint[:12]} and every number{elsewhere}"
    path, apart = _furthest(stored, again)
    said = f"{path} differs by {apart:.6f}" if apart else "all numbers agree, the fingerprint does not"
    if elsewhere and apart <= CLOSE_BY:
        return CLOSE, f"{said}{elsewhere}"
    return DIFFERENT, f"{said}{elsewhere}"


def _elsewhere(stored: StoredCell) -> str:
    """How the machine of a stored cell differs from this one, on which bits depend."""
    here = environment()
    told = {"cpu": stored.cpu, **stored.versions}
    other = [
        f"{name} {told[name]} there, {here[name]} here" for name in ("cpu", "torch") if told.get(name) != here[name]
    ]
    return f" (another machine: {', '.join(other)})" if other else ""


def _furthest(stored: StoredCell, again: StoredCell) -> tuple[str, float]:
    """The number that differs most, and by how much."""
    ours, theirs = _numbers(again), _numbers(stored)
    apart = {path: abs((ours.get(path) or 0.0) - (value or 0.0)) for path, value in theirs.items()}
    path = max(apart, key=lambda name: apart[name], default="")
    return path, apart.get(path, 0.0)


def _numbers(cell: StoredCell) -> dict[str, float | None]:
    clock = ("seconds", "phase_one")  # time is no result
    made = {path: value for path, value in cell.final.items() if not path.startswith(clock)}
    made |= {f"{path} (last third)": value for path, value in cell.third.items()}
    for row, numbers in without_clock(cell.numbers).items():
        made |= {f"{row}, {name}": value for name, value in numbers.items()}
    return made
