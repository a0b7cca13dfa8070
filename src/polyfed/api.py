"""The Python API: make a federation, run a method, compare several, load what was run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyfed.config import Config, Tree, identity, make_config, merge, read_config, unflatten
from polyfed.data.federation import Federation
from polyfed.data.sources.arrays import Arrays
from polyfed.engine.base import Crew, Engine
from polyfed.engine.folder import RunFolder
from polyfed.engine.replay import Predictor, replay
from polyfed.engine.rounds import Run, Watch
from polyfed.engine.work import federation_of
from polyfed.errors import DataError, UsageError, did_you_mean
from polyfed.measure.metrics import round_of_arrival
from polyfed.methods.base import Method, methods
from polyfed.models.own import hold
from polyfed.registry import Spec
from polyfed.report.progress import watching
from polyfed.report.tables import comparison_table

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
    """Run one experiment; sources are config files or mappings, keys come over them."""
    config = config_of(*sources, **keys)
    folder = RunFolder.create(config, Path(out) if out is not None else None)
    return _work(config, folder, progress, crew)


def resume(
    path: str | Path,
    progress: bool | Watch = False,
    crew: Crew | None = None,
    workers: int | None = None,
    engine: str | Mapping[str, Any] | None = None,
    **objects: Any,
) -> "Result":
    """Go on with a run where it stopped, on another engine if one is given; a finished one just gives its result.

    Python objects are passed again.
    """
    folder = RunFolder.existing(Path(path))
    if folder.result() is not None:
        return Result(folder.path)
    config = _config_of_run(folder, objects)
    if engine is not None:
        config = _on_another(config, {"name": engine} if isinstance(engine, str) else engine)
    if workers is not None:
        config = make_config(config.dump(), {"engine": {"workers": workers}})
    return _work(config, folder, progress, crew)


def _on_another(config: Config, section: Mapping[str, Any]) -> Config:
    """The same experiment on another engine; what every engine takes stays as it was, unless it is said anew."""
    before = config.engine.dump()
    if section.get("name", before["name"]) != before["name"]:
        before = {key: before[key] for key in Engine.model_fields}
    return make_config({**config.dump(), "engine": {**before, **section}})


def load(path: str | Path) -> "Result":
    """A run that was made before, finished or not."""
    return Result(RunFolder.existing(Path(path)).path)


def _work(config: Config, folder: RunFolder, progress: bool | Watch, crew: Crew | None) -> "Result":
    mine = crew if crew is not None else config.engine.open()
    try:
        with watching(progress) as watch:
            Run(config, folder, mine, watch).go()
    finally:
        if crew is None:
            mine.close()
    return Result(folder.path)


def config_of(*sources: Source, **keys: Any) -> Config:
    """One checked Config from files, mappings and keys; Python objects may stand for data, model and method."""
    return make_config(*_trees(*sources, keys))


def _trees(*sources: Source) -> list[Tree]:
    return [read_config(Path(s)) if isinstance(s, str | Path) else unflatten(_objects(s)) for s in sources]


def _config_of_run(folder: RunFolder, objects: Mapping[str, Any]) -> Config:
    """The config a run was made from; the objects it was given are given again."""
    given = unflatten(_objects(objects))
    try:
        return make_config(folder.tree(), given)
    except UsageError as error:
        raise DataError(f"the run at '{folder.path}' cannot be used here: config.yaml: {error}") from None


def _objects(tree: Mapping[str, Any]) -> Tree:
    """Arrays, modules, methods and engines given as Python objects become sections that stand for them."""
    made = dict(tree)
    data, model, method = made.get("data"), made.get("model"), made.get("method")
    if not isinstance(data, str | Mapping | Spec | None):
        made["data"] = _held(data)
    if not isinstance(model, str | Mapping | Spec | None):
        made["model"] = hold(model)
    if isinstance(method, type) and issubclass(method, Method):
        made["method"] = methods.hold(method).name
    elif isinstance(method, Method):
        methods.hold(type(method))
    return {key: _section(value) if isinstance(value, Spec) else value for key, value in made.items()}


def _section(spec: Spec) -> Tree:
    """A Spec as a section of the tree: its name and what it was given, so that other keys can come over it."""
    given = {key: getattr(spec, key) for key in spec.model_fields_set}
    return {"name": spec.name} | {k: v for k, v in given.items() if v != type(spec).model_fields[k].default}


def _held(data: Any) -> Arrays:
    """Arrays (x, y) or (x, y, x_test, y_test), or a torch data set, kept in this process."""
    if isinstance(data, torch.utils.data.Dataset):
        return Arrays.hold(*_rows(data))
    if isinstance(data, Sequence) and len(data) in (2, 4):
        parts: list[Any] = [_array(part) for part in data]
        return Arrays.hold(*parts)
    raise UsageError("data must be a name, arrays (x, y) or (x, y, x_test, y_test), or a torch data set")


def _rows(data: Any) -> tuple[np.ndarray, np.ndarray]:
    """All of a torch data set."""
    try:
        pairs = [(_array(x), int(y)) for x, y in (data[i] for i in range(len(data)))]
        return np.stack([x for x, _ in pairs]), np.array([y for _, y in pairs])
    except (TypeError, ValueError) as error:
        sentence = "a torch data set must have a length and give pairs: a sample of one shape, and its class"
        raise UsageError(f"{sentence} ({error})") from None


def _array(value: Any) -> np.ndarray:
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)


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
        missing = [key for key in identity(dict.fromkeys(Config.model_fields)) if key not in tree]
        if missing:
            raise DataError(f"the run at '{self.path}' is corrupt: config.yaml has no '{missing[0]}'")
        return tree

    @property
    def round(self) -> int:
        """The last checkpointed round."""
        found = sorted(p.name for p in (self.path / "checkpoints").glob("at-*"))
        return int(found[-1].split("-")[1]) if found else 0

    @property
    def summary(self) -> dict[str, Any]:
        """Every number of the finished run."""
        found = self.folder.result()
        if found is None:
            raise DataError(f"the run at '{self.path}' is not finished; go on with: polyfed resume {self.path}")
        if not isinstance(found, dict) or "fingerprint" not in found:
            raise DataError(f"the run at '{self.path}' is corrupt: summary.json is not a summary")
        return found

    def __getitem__(self, key: str) -> Any:
        """A number by its place: result["personal.accuracy"]."""
        value: Any = self.summary
        for word in key.split("."):
            value = value[word]
        return value

    @property
    def fingerprint(self) -> str:
        """The hash of everything that was learnt."""
        return self.summary["fingerprint"]

    def records(self, table: str) -> Any:
        """A table of records as a pandas DataFrame: rounds, clients, classes or training."""
        import pandas

        path = self.path / f"{table}.csv"
        if not path.exists():
            raise DataError(f"the run at '{self.path}' has no {table}.csv")
        return pandas.read_csv(path)

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
        with np.load(self.path / "counts.npz", allow_pickle=False) as file:
            return dict(file)

    def round_of_arrival(self, level: float, measure: str = "global") -> int | None:
        """RoA@x: the first evaluated round whose accuracy is at least `level`; None if never."""
        rows = self.rounds[self.rounds["measure"] == measure]
        if rows.empty:
            raise UsageError(
                f"the run has no measure '{measure}'; {did_you_mean(measure, set(self.rounds['measure']))}"
            )
        return round_of_arrival(list(zip(rows["round"], rows["accuracy"], strict=True)), level)

    def client(self, id: int, **objects: Any) -> Predictor:
        """The model that answers for a client."""
        return replay(_config_of_run(self.folder, objects), self.folder, id)

    def global_model(self, **objects: Any) -> Predictor:
        """The model that answers for all."""
        return replay(_config_of_run(self.folder, objects), self.folder, None)

    def table(self) -> str:
        """Its numbers as a table."""
        return comparison_table([self.summary]).text()

    def __repr__(self) -> str:
        return f"<run {self.path}{'' if self.finished else ', not finished'}>"


@dataclass
class Comparison:
    """Several methods on the same seeds, splits, initial models and batches."""

    path: Path
    results: list[Result]

    @property
    def summaries(self) -> list[dict[str, Any]]:
        """The summary of each run."""
        return [r.summary for r in self.results]

    def table(self, form: str = "text") -> str:
        """Mean ± std over seeds, as text, markdown, csv or latex."""
        return getattr(comparison_table(self.summaries), form)()


def compare(
    *sources: Source,
    methods: Sequence[str | type[Method]] | None = None,
    seeds: int | Sequence[int] | None = None,
    out: str | Path | None = None,
    progress: bool | Watch = False,
    **keys: Any,
) -> Comparison:
    """Run each method on each seed; `fedprox={"mu": 0.1}` sets a method's own parameters. Workers serve all runs."""
    asked = {key: value for key, value in (("methods", methods), ("seeds", seeds)) if value is not None}
    configs = comparison_configs(*sources, {**keys, **asked})
    first = configs[0]
    folder = comparison_folder(first, Path(out) if out is not None else None)
    crew = first.engine.open()
    results = []
    try:
        with watching(progress) as watch:
            for config in configs:
                cell = RunFolder.create(config, folder / f"{config.method.name}-s{config.seed}".replace("/", "_"))
                watch.say(f"{config.method.name}, seed {config.seed}")
                Run(config, cell, crew, watch).go()
                results.append(Result(cell.path))
    finally:
        crew.close()
    made = Comparison(folder, results)
    for form, ending in (("markdown", "md"), ("csv", "csv"), ("latex", "tex"), ("text", "txt")):
        (folder / f"table.{ending}").write_text(made.table(form), encoding="utf-8")
    return made


def comparison_folder(config: Config, out: Path | None) -> Path:
    """A new directory for the runs of a comparison."""
    from polyfed.engine.folder import claim

    return claim(out, f"compare-{config.data.name}")


def comparison_configs(*sources: Source) -> list[Config]:
    """One config per seed and method, each method with its own parameters; all checked before anything runs."""
    tree: Tree = {}
    for layer in _trees(*sources):
        tree = merge(tree, layer)
    names, seeds = _method_names(tree.pop("methods", None)), _seed_list(tree.pop("seeds", 3))
    for key in ("method", "seed"):
        if key in tree:
            raise UsageError(f"'{key}' has no place in a comparison; give {key}s=[...]")
    chosen = [{"name": name, **_own_parameters(tree, name)} for name in names]
    return [make_config(tree, {"seed": seed, "method": one}) for seed in seeds for one in chosen]


def _own_parameters(tree: Tree, name: str) -> Tree:
    """A method's own parameters, taken out of the tree; one from a file (mine.py:Mine) goes by its class."""
    short = name.rpartition(":")[2]
    found = tree.pop(short, {})
    if not isinstance(found, dict):
        raise UsageError(f"'{short}' must hold the method's parameters, for example {short}.key=value (got {found!r})")
    return found


def _method_names(given: Any) -> list[str]:
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, Sequence) or not names:
        example = "for example methods=[fedavg,fedprox]"
        raise UsageError(f"a comparison needs methods=[...], {example}" + (f" (got {given!r})" if given else ""))
    made = [_method_name(n) for n in names]
    twice = [n for n in made if made.count(n) > 1]
    if twice:
        raise UsageError(f"method '{twice[0]}' is in the comparison twice")
    return made


def _method_name(given: Any) -> str:
    if isinstance(given, type) and issubclass(given, Method):
        return methods.hold(given).name
    if not isinstance(given, str):
        raise UsageError(f"methods must be a list of names, for example methods=[fedavg,fedprox] (got {given!r})")
    return given


def _seed_list(seeds: Any) -> list[int]:
    found = list(range(seeds)) if isinstance(seeds, int) and not isinstance(seeds, bool) else seeds
    ok = isinstance(found, Sequence) and found and all(isinstance(s, int) and s >= 0 for s in found)
    if not ok or len(set(found)) != len(found):
        raise UsageError(f"seeds must be a number of seeds from 1 on or a list of different seeds (got {seeds!r})")
    return list(found)
