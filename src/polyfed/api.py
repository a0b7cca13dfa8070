"""The Python API: make a federation, run a method, compare several, load what was run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from polyfed.comparison.folder import FILE, FORMS, ComparisonFolder, Found, is_comparison, refuse_strangers
from polyfed.comparison.grid import Grid, check_baseline, make_grid
from polyfed.comparison.jobs import Jobs
from polyfed.comparison.run import run_cells
from polyfed.comparison.tune import FOLDER, Tuning, read_tuning
from polyfed.config import ABSENT, Config, Tree, flatten, identity, make_config, merge, read_config, unflatten
from polyfed.data.federation import Federation
from polyfed.data.sources import objects
from polyfed.engine.base import Crew, Engine
from polyfed.engine.rounds import Run, rehearse
from polyfed.engine.run_folder import RunFolder, claim, refuse_taken
from polyfed.engine.trust import only_our_places
from polyfed.engine.work import World, federation_of
from polyfed.errors import DataError, Interrupted, PolyfedError, UsageError, did_you_mean, reading
from polyfed.files import write_file
from polyfed.measure.metrics import round_of_arrival
from polyfed.measure.watch import Watch
from polyfed.methods.base import Method, methods
from polyfed.models.own import hold
from polyfed.models.per_client import models_of
from polyfed.registry import Spec
from polyfed.report.forms import Table
from polyfed.report.progress import watching
from polyfed.report.tables import choose_columns, comparison_table
from polyfed.use.predictor import Predictor
from polyfed.use.replay import replay

__all__ = ["Comparison", "Result", "compare", "federation", "load", "methods", "resume", "run"]
Source = str | Path | Mapping[str, Any]


def federation(*sources: Source, **keys: Any) -> Federation:
    """The clients' data a config describes: who holds what, before anything is trained."""
    return federation_of(config_of(*sources, **keys))


def run(
    *sources: Source,
    out: str | Path | None = None,
    progress: bool | Watch = False,
    crew: Crew | None = None,
    **keys: Any,
) -> "Result":
    """Run one experiment.

    Args:
        *sources: Config files or mappings of keys; a later one overrides an earlier one.
        out: The run directory, by default a new one under `$POLYFED_OUT` or `./runs`. It must not exist, or be empty,
            or hold a run that failed before its first round was over. A run that is refused leaves no directory.
        progress: Whether progress is shown; or an object that is told of it.
        crew: Workers that were opened before and stay open afterwards; by default the run opens its own.
        **keys: Keys that override those of the sources. Arrays, modules and methods may stand for `data`, `model` and
            `method`.
    """
    config, place = config_of(*sources, **keys), None if out is None else Path(out)
    if place is not None:
        refuse_taken(place)  # before data are read for nothing
    world = rehearse(config)
    return _work(config, RunFolder.create(config, place), progress, crew, world)


def resume(
    path: str | Path,
    progress: bool | Watch = False,
    crew: Crew | None = None,
    workers: int | None = None,
    engine: str | Mapping[str, Any] | None = None,
    trust: bool = False,
    jobs: Jobs | None = None,
    share: bool | None = None,
    **objects: Any,
) -> "Result | Comparison":
    """Go on with a run or comparison where it stopped, on another engine if one is given; a finished one is just read.

    Args:
        path: The directory of the run or comparison.
        progress: Whether progress is shown; or an object that is told of it.
        crew: Workers that were opened before and stay open afterwards; by default the run opens its own.
        workers: Another number of workers; the bits stay the same.
        engine: Another engine, by name or as its section of a config.
        jobs: How many cells of a comparison run at once; it may change from sitting to sitting.
        share: Whether methods on top of another take its rounds; it may change too.
        trust: Whether code outside polyfed that the run names may be executed. Without it, such code is executed only
            if this user made the run here with that very code.
        **objects: The Python objects that stood for `data`, `model` or `method` are passed again.
    """
    if is_comparison(Path(path)):
        who = {key: value for key, value in {"jobs": jobs, "share": share}.items() if value is not None}
        comparison = _comparison_on_another(Path(path), engine, workers, {**objects, **who}, trust)
        if not trust:
            only_our_places(comparison.place, FILE, _kept(comparison.grid.cells[0].config, engine))
        return _compared(comparison, progress)
    folder = RunFolder.existing(Path(path))
    if jobs is not None or share is not None:
        raise UsageError(f"'{path}' is one run; jobs and share belong to a comparison")
    if folder.result() is not None:
        return Result(folder.path)
    config = _config_of_run(folder, objects, trust)
    if not trust:
        only_our_places(folder.place, folder.config.name, _kept(config, engine))
    if engine is not None:
        config = _on_another(config, {"name": engine} if isinstance(engine, str) else engine)
    if workers is not None:
        config = make_config(config.dump(), {"engine": {"workers": workers}})
    return _work(config, folder, progress, crew)


def _kept(config: Config, engine: Any) -> list[Spec]:
    """What a run goes on with and nobody said anew."""
    return [config.track, *([] if engine is not None else [config.engine])]


def _on_another(config: Config, section: Mapping[str, Any]) -> Config:
    """The same experiment on another engine; what every engine takes stays as it was, unless it is said anew."""
    before = config.engine.dump()
    if section.get("name", before["name"]) != before["name"]:
        before = {key: before[key] for key in Engine.model_fields}
    return make_config({**config.dump(), "engine": {**before, **section}})


def _comparison_on_another(
    path: Path, engine: str | Mapping[str, Any] | None, workers: int | None, objects: Mapping[str, Any], trust: bool
) -> ComparisonFolder:
    """The same comparison, its engine said anew."""
    given = unflatten(_objects(objects))
    if engine is not None:
        given = merge(given, unflatten({"engine": engine}))
    if workers is not None:
        given = merge(given, {"engine": {"workers": workers}})
    return ComparisonFolder.existing(path).again(given, trust)


def load(path: str | Path) -> "Result | Comparison":
    """A run or comparison that was made before, finished or not."""
    if is_comparison(Path(path)):
        return Comparison(ComparisonFolder.existing(Path(path)))
    return Result(RunFolder.existing(Path(path)).path)


def _work(
    config: Config, folder: RunFolder, progress: bool | Watch, crew: Crew | None, world: World | None = None
) -> "Result":
    mine = crew if crew is not None else config.engine.open()
    try:
        with watching(progress) as watch:
            Run(config, folder, mine, watch, world).go()
    finally:
        if crew is None:
            mine.close()
    return Result(folder.path)


def config_of(*sources: Source, **keys: Any) -> Config:
    """One checked Config from files, mappings and keys; Python objects may stand for data, model and method."""
    return make_config(*_trees(*sources, keys))


def _trees(*sources: Source) -> list[Tree]:
    return [read_config(Path(s)) if isinstance(s, str | Path) else unflatten(_objects(s)) for s in sources]


def _config_of_run(folder: RunFolder, objects: Mapping[str, Any], trust: bool) -> Config:
    """The config a run was made from; the objects it was given are given again."""
    given = unflatten(_objects(objects))
    try:
        return folder.made_of(given, trust)
    except UsageError as error:
        raise DataError(f"the run at '{folder.path}' cannot be used here: config.yaml: {error}") from None


def _objects(tree: Mapping[str, Any]) -> Tree:
    """Arrays, modules, methods and engines given as Python objects become sections that stand for them."""
    made = dict(tree)
    method = made.get("method")
    for key, keep in (("data", objects.hold), ("model", hold)):
        value: Any = made.get(key)
        if _several(value):
            made[key] = list(value)
        elif key == "data" and isinstance(value, Path):
            made[key] = str(value)
        elif not isinstance(value, str | Mapping | Spec | None) or (key == "data" and objects.is_samples(value)):
            made[key] = keep(value)
    if isinstance(method, type) and issubclass(method, Method):
        made["method"] = methods.hold(method).name
    elif isinstance(method, Method):
        methods.hold(type(method))
    return {key: _section(value) if isinstance(value, Spec) else value for key, value in made.items()}


def _several(value: Any) -> bool:
    """Names to compare, not an object."""
    return isinstance(value, list | tuple) and all(isinstance(one, str | Mapping) for one in value)


def _section(spec: Spec) -> Tree:
    """A Spec as a section of the tree: its name and what it was given, so that other keys can come over it."""
    given = {key: getattr(spec, key) for key in spec.model_fields_set}
    return {"name": spec.name} | {k: v for k, v in given.items() if v != type(spec).model_fields[k].default}


def _what_there_is(key: str, summary: Mapping[str, Any]) -> str:
    """The number nearest to a misspelt one, and all there are."""
    names = list(flatten(dict(summary)))
    near = did_you_mean(key, names) if get_close_matches(key, names, n=1, cutoff=0.5) else ""
    return f"{near}{' ' if near else ''}It has {', '.join(names)}"


class Result:
    """A run on disk, read: its numbers, its records, its models."""

    def __init__(self, path: Path):
        self.path, self.folder = path, RunFolder(path)

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return self.folder.result() is not None

    @property
    def config(self) -> Tree:
        """The complete config."""
        tree = self.folder.tree()
        missing = [key for key in identity(dict.fromkeys(Config.model_fields)) if key not in tree and key not in ABSENT]
        if missing:
            raise DataError(f"the run at '{self.path}' is corrupt: config.yaml has no '{missing[0]}'")
        return tree

    @property
    def round(self) -> int:
        """The last checkpointed round."""
        found = self.folder.checkpoints()
        return int(found[-1].split("-")[1]) if found else 0

    @property
    def summary(self) -> dict[str, Any]:
        """Every number of the finished run."""
        found = self.folder.result()
        if found is None:
            raise DataError(f"the run at '{self.path}' is not finished; go on with: polyfed resume {self.path}")
        return found

    def __getitem__(self, key: str) -> Any:
        """A number by its place: result["personal.accuracy"]."""
        value: Any = self.summary
        for word in key.split("."):
            if not isinstance(value, Mapping) or word not in value:
                raise UsageError(f"the run has no '{key}'; {_what_there_is(key, self.summary)}")
            value = value[word]
        return value

    @property
    def remarks(self) -> list[str]:
        """What is wrong with the run's files, though they can be read: records that are gone, another config."""
        from polyfed.report.runs import read

        return read(self.path).remarks()

    @property
    def fingerprint(self) -> str:
        """The hash of everything that was learnt."""
        return self.summary["fingerprint"]

    def records(self, table: str) -> Any:
        """A table of records as a pandas DataFrame: rounds, clients, classes, training or spent."""
        from polyfed.report.runs import records

        if not (self.folder.place / f"{table}.csv").exists():
            raise DataError(f"the run at '{self.path}' has no {table}.csv")
        return records(self.path, table)

    @property
    def rounds(self) -> Any:
        """Named numbers after each evaluated round."""
        return self.records("rounds")

    @property
    def clients(self) -> Any:
        """Named numbers of each client after each evaluated round."""
        return self.records("clients")

    def counts(self) -> dict[str, np.ndarray]:
        """The final confusion counts per client, as arrays [client, true, predicted]."""
        found = self.folder.counts()
        if found is None:
            raise DataError(f"the run at '{self.path}' has no counts.npz")
        return found

    def round_of_arrival(self, level: float, measure: str = "global") -> int | None:
        """RoA@x: the first evaluated round whose accuracy is at least `level`; None if never."""
        rows = self.rounds[self.rounds["measure"] == measure]
        if rows.empty:
            raise UsageError(
                f"the run has no measure '{measure}'; {did_you_mean(measure, set(self.rounds['measure']))}"
            )
        return round_of_arrival(list(zip(rows["round"], rows["accuracy"], strict=True)), level)

    def client(self, who: int | str, trust: bool = False, **objects: Any) -> Predictor:
        """The model that answers for a client, by its name or its id; for `trust` see `resume`."""
        id = self.folder.client(who)
        return replay(_config_of_run(self.folder, objects, trust), self.folder, id)

    def global_model(self, trust: bool = False, **objects: Any) -> Predictor:
        """The model that answers for all."""
        return replay(_config_of_run(self.folder, objects, trust), self.folder, None)

    def audit(
        self,
        client: int,
        images: int = 1,
        steps: int = 500,
        fresh: bool = False,
        tv: float = 0.01,
        trust: bool = False,
        **objects: Any,
    ) -> dict[str, Any]:
        """What a curious server reads from an upload of this client: labels and images, written to `audit/`.

        Args:
            client: The client whose round is repeated.
            images: How many of its samples the round is repeated on, as one step of one batch.
            steps: How long images are searched for.
            fresh: Whether it is the first round, before anybody has trained; by default the one after the last.
            tv: How strongly smooth images are preferred; less finds sharper ones where nothing is hidden.
            trust: See `resume`.
            **objects: Data or models that the run was given as Python objects.
        """
        from polyfed.threats.audit import Search
        from polyfed.use.audit import audit

        config = _config_of_run(self.folder, objects, trust)
        return audit(config, self.folder, client, images, Search(steps, tv, config.seed), fresh)

    def export(
        self,
        form: str,
        client: int | str | None = None,
        out: str | Path | None = None,
        trust: bool = False,
        **objects: Any,
    ) -> Path:
        """Write a client's model, or the global one, as a directory of its own: safetensors, onnx or torch-export."""
        from polyfed.use.card import card
        from polyfed.use.export import export

        id = None if client is None else self.folder.client(client)
        config = _config_of_run(self.folder, objects, trust)
        who = "global" if id is None else f"client-{self.folder.called(id)}"
        where = self._export_folder() / f"{who}-{form}" if out is None else Path(out)
        predictor, data = replay(config, self.folder, id), federation_of(config)
        own = config.model.common if id is None else models_of(config.model, data.split.names)[id]
        told = config.model_copy(update={"model": own}).dump()

        def text(worst: float) -> str:
            with reading(f"the run at '{self.path}'"):
                return card(self.folder, told, id, predictor, form, worst)

        rows = data.as_trained.x if data.dataset.incomplete else data.dataset.x  # none with a value missing
        return export(config, own, predictor, form, where, rows, text)

    def _export_folder(self) -> Path:
        place = self.folder.place / "export"
        place.exists()  # a link is refused
        return place.path

    def table(self) -> str:
        """Its numbers as a table."""
        return comparison_table([Found(self.summary["method"], self.summary["seed"], self.summary)]).text()

    def __repr__(self) -> str:
        return f"<run {self.path}{'' if self.finished else ', not finished'}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: its table, once it is finished."""
        from polyfed.report.notebook import as_html

        made = None
        if self.finished:
            made = comparison_table([Found(self.summary["method"], self.summary["seed"], self.summary)])
        return as_html(repr(self), made)


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
    for layer in _trees(*sources, {**keys, **{key: value for key, value in asked.items() if value is not None}}):
        tree = merge(tree, layer)
    place = None if out is None else Path(out)
    if "tune" in tree:
        tree, place = _tuned(read_tuning(tree), place, progress)
    return _compared(_opened(make_grid(tree), place), progress, tree.get("baseline"), columns)


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


def _compared(
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
