"""Several runs on disk: a comparison, read and made."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polyfed.api.given import Source, trees_of
from polyfed.api.result import Result
from polyfed.comparison.folder import FORMS, ComparisonFolder, is_comparison, refuse_strangers
from polyfed.comparison.grid import Grid, check_baseline, make_grid
from polyfed.comparison.jobs import Jobs
from polyfed.comparison.run import run_cells
from polyfed.comparison.tune import FOLDER, Tuning, read_tuning
from polyfed.config import Tree, merge
from polyfed.engine.rounds import rehearse
from polyfed.engine.run_folder import claim
from polyfed.errors import DataError, Interrupted, PolyfedError, UsageError, did_you_mean
from polyfed.files import write_file
from polyfed.measure.watch import Watch
from polyfed.methods.base import Method
from polyfed.report.forms import Table
from polyfed.report.progress import watching
from polyfed.report.tables import choose_columns, comparison_table


@dataclass
class Comparison:
    """Several methods on the same seeds, splits, initial models and batches: a directory, read."""

    folder: ComparisonFolder
    failures: Mapping[str, PolyfedError] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """Where its runs and tables are."""
        return self.folder.path

    @property
    def results(self) -> list[Result]:
        """Its finished runs."""
        return [Result(self.folder.run(cell).path) for cell in self.folder.results()]

    @property
    def summaries(self) -> list[dict[str, Any]]:
        """The summary of each finished run."""
        return [result.summary for result in self.results]

    @property
    def clients(self) -> Any:
        """`Result.clients` of every finished run as one pandas DataFrame.

        Each row begins with the run's method (its row in the table), its seed, and a column for each key that the
        comparison varies; the accuracy of every client's own model in the end is where `measure` is personal_final.
        """
        import pandas

        from polyfed.report.runs import records

        tables = []
        for cell in self.folder.results():
            table = records(self.folder.run(cell).path, "clients")
            about = {"method": cell.row, "seed": cell.seed, **cell.setting}
            tables.append(pandas.concat([pandas.DataFrame(about, index=table.index), table], axis=1))
        if not tables:
            raise DataError(
                f"no run of the comparison at '{self.path}' is finished; go on with: polyfed resume {self.path}"
            )
        return pandas.concat(tables, ignore_index=True)

    @property
    def missing(self) -> list[str]:
        """The names of the cells that are not finished."""
        done = self.folder.results()
        return [cell.name for cell in self.folder.grid.cells if cell not in done]

    @property
    def finished(self) -> bool:
        """Whether every run came to its end."""
        return not self.missing

    def table(self, form: str = "text", baseline: str | None = None, columns: Sequence[str] | None = None) -> str:
        """Mean ± std over seeds, as text, markdown, csv or latex; against a baseline, with the columns you choose."""
        if form not in FORMS:
            raise UsageError(f"there is no form '{form}' of a table; {did_you_mean(form, FORMS)}")
        return getattr(self.as_table(baseline, columns), form)()

    def as_table(self, baseline: str | None = None, columns: Sequence[str] | None = None) -> Table:
        """The table itself."""
        grid, chosen_columns = self.folder.grid, choose_columns(columns)
        check_baseline(baseline, grid.rows)
        chosen = baseline or grid.baseline
        missing = self.missing
        notes = [*[grid.note] * bool(grid.note), *([f"not finished: {', '.join(missing)}"] if missing else [])]
        return comparison_table(self.folder.found(clients=chosen is not None), chosen, chosen_columns, notes)

    def write_tables(self, baseline: str | None = None, columns: Sequence[str] | None = None) -> None:
        """The table in every form, beside the runs."""
        table = self.as_table(baseline, columns)
        for form, ending in FORMS.items():
            write_file(self.folder.place / f"table.{ending}", getattr(table, form)().encode())

    def __repr__(self) -> str:
        return f"<comparison {self.path}{'' if self.finished else ', not finished'}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: the table of what is finished."""
        from polyfed.report.notebook import as_html

        return as_html(repr(self), self.as_table() if self.folder.results() else None)


def compare(
    *sources: Source,
    methods: Sequence[str | type[Method]] | None = None,
    seeds: int | Sequence[int] | None = None,
    baseline: str | None = None,
    columns: Sequence[str] | None = None,
    out: str | Path | None = None,
    progress: bool | Watch = False,
    jobs: Jobs | None = None,
    share: bool | None = None,
    **keys: Any,
) -> Comparison:
    """Run each method, in each setting, on each seed.

    A run that fails does not stop the others: it is among the `failures` and can be tried again by the same call.

    Args:
        *sources: Config files or mappings of keys; a later one overrides an earlier one.
        methods: The rows, by name or as classes.
        seeds: A number of seeds, or the seeds themselves.
        baseline: The row the others are set against.
        columns: The columns of its tables, by name and in order; by default the usual ones.
        out: The directory of the comparison; it may hold the same comparison, begun earlier.
        progress: Whether progress is shown; or an object that is told of it.
        jobs: How many cells run at once; "auto" takes as many as keep the cores busy. It changes no result.
        share: Whether a method on top of another takes the rounds of a cell that is that other, which is the default.
            It changes no result.
        **keys: Keys that override those of the sources. `fedprox={"mu": 0.1}` sets a method's own parameters, and
            `fedprox={"train.lr": 0.1}` any other key for its row alone; a list for a key that takes one value is an
            axis of the grid; `tune={"train.lr": [0.01, 0.1]}` lets each row have the value that is best on the
            validation data of the first seed.
    """
    choose_columns(columns)  # before anything runs
    asked = {"methods": methods, "seeds": seeds, "baseline": baseline, "jobs": jobs, "share": share}
    tree: Tree = {}
    for layer in trees_of(*sources, {**keys, **{key: value for key, value in asked.items() if value is not None}}):
        tree = merge(tree, layer)
    place = None if out is None else Path(out)
    if "tune" in tree:
        tree, place = _tuned(read_tuning(tree), place, progress)
    return compared(_opened(make_grid(tree), place), progress, tree.get("baseline"), columns)


def _opened(grid: Grid, place: Path | None) -> ComparisonFolder:
    """The folder of a comparison; a new one is refused before it has a directory, if its cells would be."""
    if place is None or not is_comparison(place):
        refuse_strangers(place, grid)
        _rehearse_one(grid)
    return ComparisonFolder.open(grid, place)


def _rehearse_one(grid: Grid) -> None:
    """Refuse a comparison before it has a directory, if all of its cells are refused, and alike."""
    refusals: set[str] = set()
    for cell in grid.cells:
        try:
            rehearse(cell.config)
            return
        except (UsageError, DataError) as error:
            refusal = error
        refusals.add(str(refusal))
        if len(refusals) > 1:
            return
    raise refusal


def _tuned(tuning: Tuning, path: Path | None, progress: bool | Watch) -> tuple[Tree, Path]:
    """Run the candidates; the tree of the comparison with what was chosen, and where it belongs."""
    if path is not None and not is_comparison(path):
        refuse_strangers(path, tuning.grid)
    path = path or claim(None, f"compare-{tuning.grid.cells[0].config.data.name}")
    folder = _opened(tuning.grid, path / FOLDER)
    try:
        with watching(progress) as watch:
            run_cells(folder, watch)
    except Interrupted:
        raise Interrupted(f"interrupted while tuning; go on with the same command and --out {path}") from None
    return tuning.chosen(folder), path


def compared(
    folder: ComparisonFolder,
    progress: bool | Watch,
    baseline: str | None = None,
    columns: Sequence[str] | None = None,
) -> Comparison:
    """Do what is missing, then write the tables."""
    with watching(progress) as watch:
        made = Comparison(folder, run_cells(folder, watch))
    made.write_tables(baseline, columns)
    return made
