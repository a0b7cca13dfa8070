"""A comparison directory: its grid in comparison.yaml, a run per cell, its tables. Nothing else is needed to go on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polyfed.comparison.grid import NOTED, WHO, Cell, Grid, experiment, make_grid, read_grid
from polyfed.comparison.values import value_at
from polyfed.config import Tree, merge, read_config, write_yaml
from polyfed.engine.run_folder import PASSING, RunFolder, alone, claim
from polyfed.engine.trust import NOTE, only_ours, seal
from polyfed.errors import DataError, UsageError
from polyfed.files import Place, write_file
from polyfed.measure.metrics import accuracy
from polyfed.registry import specs_in

FILE = "comparison.yaml"
FORMS = {"markdown": "md", "csv": "csv", "latex": "tex", "text": "txt"}
OURS = {FILE, NOTE, "lock", "report.html", "tuning", *(f"table.{ending}" for ending in FORMS.values())}


@dataclass(frozen=True)
class Found:
    """What one cell achieved: where it stands, its summary, and each client's own accuracy where it is asked for."""

    row: str
    seed: int
    summary: Mapping[str, Any]
    setting: Mapping[str, Any] = field(default_factory=dict)
    clients: Mapping[int, float] = field(default_factory=dict)
    own: Mapping[str, Any] = field(default_factory=dict)  # its values of the keys that rows set for themselves


def is_comparison(path: Path) -> bool:
    """Whether a directory holds a comparison."""
    return (Place(path) / FILE).is_file()


class ComparisonFolder:
    """A grid and the directory its runs are in."""

    def __init__(self, path: Path, grid: Grid):
        self.path, self.place, self.grid = path, Place(path), grid

    @staticmethod
    def open(grid: Grid, path: Path | None, grows: bool = False) -> "ComparisonFolder":
        """A new one, or one that was begun with the same grid; one that grows may have lost and won other cells."""
        if path is None:
            path = claim(None, f"compare-{grid.cells[0].config.data.name}")
        elif not is_comparison(path) and not grows:
            refuse_strangers(path, grid)
        folder = ComparisonFolder(path, grid)
        try:
            path.mkdir(parents=True, exist_ok=True)
            with folder.alone():
                folder._agree(grows)
        except OSError as error:
            raise UsageError(f"cannot write to '{path}': {error.strerror}") from None
        return folder

    @staticmethod
    def existing(path: Path) -> "ComparisonFolder":
        """One that is there, to be read: what it compares need not be known here."""
        if not is_comparison(path):
            raise DataError(f"'{path}' is not a comparison: it has no {FILE}")
        try:
            return ComparisonFolder(path, read_grid(read_config(Place(path) / FILE)))
        except UsageError as error:
            raise DataError(f"the comparison at '{path}' is corrupt: {FILE}: {error}") from None

    def again(self, given: Tree, trust: bool = False) -> "ComparisonFolder":
        """The same, to go on with: Python objects it was made with, and who does the work, are given anew."""
        try:
            with only_ours(self.place, FILE, trust):
                return ComparisonFolder(self.path, make_grid(merge(self.grid.tree, given)))
        except UsageError as error:
            raise DataError(f"the comparison at '{self.path}' cannot be used here: {FILE}: {error}") from None

    def _agree(self, grows: bool) -> None:
        """Write the grid down; if one is written already, it must be the same."""
        if is_comparison(self.path) and not grows:
            before = ComparisonFolder.existing(self.path)
            theirs = before.again({}).grid
            if not self.grid.same_as(theirs) and before.never_trained():
                self._write_grid()
            elif not self.grid.same_as(theirs):
                ours = self.grid.tree
                keys = [
                    k for k in {**theirs.tree, **ours} if k not in (*NOTED, *WHO) and theirs.tree.get(k) != ours.get(k)
                ]
                raise UsageError(
                    f"'{self.path}' holds another comparison (other {', '.join(keys)}); give another --out"
                )
        else:
            self._write_grid()

    def _write_grid(self) -> None:
        content = write_yaml(self.grid.tree).encode()
        seal(self.place, content, (spec for cell in self.grid.cells for spec in specs_in(cell.config)))
        write_file(self.place / FILE, content)

    def never_trained(self) -> bool:
        """Whether no round of any cell was ever completed, so that another comparison may begin here."""
        return all(self.run(cell).never_trained() for cell in self.grid.cells)

    def alone(self) -> Any:
        """Hold the lock of the directory while a file or a cell is created; other processes wait for it."""
        return alone(self.place, f"the comparison at '{self.path}'", patient=True)

    def run(self, cell: Cell) -> RunFolder:
        """Where a cell runs; there may be nothing yet."""
        return RunFolder(self.place / cell.name)

    def begin(self, cell: Cell) -> RunFolder:
        """A cell's run: a new one, or one that was begun with the same config."""
        run = self.run(cell)
        with self.alone():
            run.place.mkdir()
            if not run.config.exists():
                run.begin(cell.config)
            elif run.never_trained() and experiment(run.made_of()) != experiment(cell.config):
                with run.locked():  # nobody is in its first round just now
                    run.begin(cell.config)
        if experiment(run.made_of()) != experiment(cell.config):
            raise DataError(f"'{run.path}' was begun with another config; give another --out")
        return run

    def results(self) -> dict[Cell, dict[str, Any]]:
        """The summaries of the finished cells."""
        found = {cell: self.run(cell).result() for cell in self.grid.cells}
        return {cell: summary for cell, summary in found.items() if summary is not None}

    def found(self, clients: bool = False) -> list[Found]:
        """What the finished cells achieved; with each client's own accuracy if asked."""
        return [
            Found(
                cell.row,
                cell.seed,
                summary,
                cell.setting,
                accuracies(self.run(cell)) if clients else {},
                self.own(self.run(cell).tree()) if self.grid.own else {},
            )
            for cell, summary in self.results().items()
        ]

    def own(self, config: Tree) -> dict[str, Any]:
        """The values, in a run's config, of the keys that rows set for themselves."""
        return {key: value_at(config, key) for key in self.grid.own}


def accuracies(run: RunFolder) -> dict[int, float]:
    """The accuracy of each participant's own model after finish, where it has test samples."""
    counts = run.counts() or {}
    if "final_personal" not in counts:
        return {}
    try:
        tables = dict(zip(counts["final_personal_clients"].tolist(), counts["final_personal"], strict=True))
        return {client: accuracy(table) for client, table in tables.items() if table.sum()}
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"the run at '{run.path}' is corrupt: counts.npz: {error}") from None


def refuse_strangers(path: Path | None, grid: Grid) -> None:
    """A new comparison may begin where there is nothing but what a comparison of this grid may have left."""
    if path is not None and _strangers(path, grid):
        raise UsageError(f"'{path}' exists and is not empty; a comparison never overwrites: give another --out")


def _strangers(path: Path, grid: Grid) -> list[str]:
    """What lies in a directory and is no part of a comparison of this grid."""
    if not path.exists():
        return []
    if not path.is_dir():
        return [path.name]
    ours = OURS | {cell.name for cell in grid.cells}
    names = (entry.name for entry in path.iterdir())
    return [name for name in names if name not in ours and not PASSING.fullmatch(name)]
