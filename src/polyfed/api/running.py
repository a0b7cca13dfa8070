"""What is done with one run: make it, go on with it, load it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polyfed.api.comparison import Comparison, compared
from polyfed.api.given import Source, config_of, config_of_run, sections_of
from polyfed.api.result import Result
from polyfed.comparison.folder import FILE, ComparisonFolder, is_comparison
from polyfed.comparison.jobs import Jobs
from polyfed.config import Config, make_config, merge, unflatten
from polyfed.data.federation import Federation
from polyfed.engine.base import Crew, Engine
from polyfed.engine.rounds import Run, rehearse
from polyfed.engine.run_folder import RunFolder, refuse_taken
from polyfed.engine.trust import only_our_places
from polyfed.engine.work import World, federation_of
from polyfed.errors import UsageError
from polyfed.measure.seconds import Stopwatch
from polyfed.measure.watch import Watch
from polyfed.registry import Spec
from polyfed.report.progress import watching


def federation(*sources: Source, **keys: Any) -> Federation:
    """The clients' data a config describes: who holds what, before anything is trained."""
    return federation_of(config_of(*sources, **keys))


def run(
    *sources: Source,
    out: str | Path | None = None,
    progress: bool | Watch = False,
    crew: Crew | None = None,
    **keys: Any,
) -> Result:
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
    clock = Stopwatch()
    config, place = config_of(*sources, **keys), None if out is None else Path(out)
    if place is not None:
        refuse_taken(place)  # before data are read for nothing
    world = rehearse(config)
    return _work(config, RunFolder.create(config, place), progress, crew, world, clock)


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
) -> Result | Comparison:
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
        return compared(comparison, progress)
    folder = RunFolder.existing(Path(path))
    if jobs is not None or share is not None:
        raise UsageError(f"'{path}' is one run; jobs and share belong to a comparison")
    if folder.result() is not None:
        return Result(folder.path)
    config = config_of_run(folder, objects, trust)
    if not trust:
        only_our_places(folder.place, folder.config.name, _kept(config, engine))
    if engine is not None:
        config = _on_another(config, {"name": engine} if isinstance(engine, str) else engine)
    if workers is not None:
        config = make_config(config.dump(), {"engine": {"workers": workers}})
    return _work(config, folder, progress, crew)


def load(path: str | Path) -> Result | Comparison:
    """A run or comparison that was made before, finished or not."""
    if is_comparison(Path(path)):
        return Comparison(ComparisonFolder.existing(Path(path)))
    return Result(RunFolder.existing(Path(path)).path)


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
    given = unflatten(sections_of(objects))
    if engine is not None:
        given = merge(given, unflatten({"engine": engine}))
    if workers is not None:
        given = merge(given, {"engine": {"workers": workers}})
    return ComparisonFolder.existing(path).again(given, trust)


def _work(
    config: Config,
    folder: RunFolder,
    progress: bool | Watch,
    crew: Crew | None,
    world: World | None = None,
    clock: Stopwatch | None = None,
) -> Result:
    mine = crew if crew is not None else config.engine.open()
    try:
        with watching(progress) as watch:
            Run(config, folder, mine, watch, world, clock).go()
    finally:
        if crew is None:
            mine.close()
    return Result(folder.path)
