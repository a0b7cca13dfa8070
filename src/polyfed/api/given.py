"""What a caller gives: files, mappings, keys and Python objects become one checked config."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polyfed.config import Config, Tree, make_config, read_config, unflatten
from polyfed.data.sources import objects
from polyfed.engine.run_folder import RunFolder
from polyfed.errors import DataError, UsageError
from polyfed.methods.base import Method, methods
from polyfed.models.own import hold
from polyfed.registry import Spec

Source = str | Path | Mapping[str, Any]


def config_of(*sources: Source, **keys: Any) -> Config:
    """One checked Config from files, mappings and keys; Python objects may stand for data, model and method."""
    return make_config(*trees_of(*sources, keys))


def trees_of(*sources: Source) -> list[Tree]:
    """Each source as a tree of keys."""
    return [read_config(Path(s)) if isinstance(s, str | Path) else unflatten(sections_of(s)) for s in sources]


def config_of_run(folder: RunFolder, objects: Mapping[str, Any], trust: bool) -> Config:
    """The config a run was made from; the objects it was given are given again."""
    given = unflatten(sections_of(objects))
    try:
        return folder.made_of(given, trust)
    except UsageError as error:
        raise DataError(f"the run at '{folder.path}' cannot be used here: config.yaml: {error}") from None


def sections_of(tree: Mapping[str, Any]) -> Tree:
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
