"""Which lists in a comparison are axes: those of keys that take one value each."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from polyfed.config import DEFAULTS, NAMED, Config, Split, Tree, merge, named_sections, registry_of, unflatten
from polyfed.errors import UsageError
from polyfed.registry import Spec, registries

MOST = 1000  # values of an axis
LISTS = (list, tuple, set, Sequence)
Path = tuple[str, ...]


@dataclass(frozen=True)
class Axis:
    """A key and the values it takes in turn."""

    key: str
    values: tuple[Any, ...]


def by_type(tree: Tree) -> Callable[[Path], bool]:
    """Says of an experiment's lists whether they are axes, by what their keys take."""
    whole = merge(named_sections(DEFAULTS), tree)
    return lambda path: not takes_list(path, whole)


def by_type_of(method: str, section: Tree) -> Callable[[Path], bool]:
    """The same for the parameters of one method."""
    spec = registry_of("method").get(method)
    return lambda path: not _spec_takes_list(spec, path, section)


def by_name(axes: Sequence[str], above: str = "") -> Callable[[Path], bool]:
    """The same where the axes were written down: nothing needs to be known of methods, models and data."""
    return lambda path: above + key_of(path) in axes


def take_axes(tree: Tree, is_axis: Callable[[Path], bool]) -> tuple[list[Axis], Tree]:
    """The axes of a tree, and the tree without them."""
    axes, rest = [], tree
    for path, values in lists(tree):
        if is_axis(path):
            axes.append(_axis(path, values))
            rest = _without(rest, path)
    return axes, rest


def lists(tree: Tree, above: Path = ()) -> Iterator[tuple[Path, Sequence[Any]]]:
    """Every list in a tree, by its path."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from lists(value, (*above, key))
        elif isinstance(value, list | tuple):
            yield (*above, key), value


def key_of(path: Sequence[str]) -> str:
    """A path as a person writes it: `model`, not `model.name`."""
    bare = len(path) > 1 and path[-1] == "name" and path[-2] in (*NAMED, "base")
    return ".".join(path[:-1] if bare else path)


def _axis(path: Sequence[str], values: Sequence[Any]) -> Axis:
    key = key_of(path)
    if not values:
        raise UsageError(f"'{key}' is an empty list; give the values to compare")
    if len(values) > MOST:
        raise UsageError(f"'{key}' has {len(values)} values; an axis has at most {MOST}")
    twice = [v for at, v in enumerate(values) if v in values[:at]]
    if twice:
        raise UsageError(f"'{key}' has the value {twice[0]!r} twice")
    return Axis(key, tuple(values))


def _without(tree: Tree, path: Sequence[str]) -> Tree:
    first, *rest = path
    if not rest:
        return {key: value for key, value in tree.items() if key != first}
    return {**tree, first: _without(tree[first], rest)}


def combinations(axes: Sequence[Axis]) -> Iterator[Tree]:
    """Every setting: a value for each axis, the last axis changing fastest."""
    if not axes:
        yield {}
        return
    for setting in combinations(axes[:-1]):
        for value in axes[-1].values:
            yield {**setting, axes[-1].key: value}


def applied(tree: Tree, setting: Tree) -> Tree:
    """A tree with a setting over it."""
    for key, value in setting.items():
        tree = merge(tree, unflatten({key: value}))
    return tree


# ---- what a key takes


def takes_list(path: Path, tree: Tree) -> bool:
    """Whether the key at a path of an experiment's tree has a list for its value."""
    first, *rest = path
    if first in NAMED:
        return bool(rest) and any(_spec_takes_list(s, rest, tree[first]) for s in _chosen(first, tree[first]))
    if first == "split" and rest and rest[0] not in Split.model_fields:
        return any(_spec_takes_list(s, rest, tree[first]) for s in _chosen("partition", tree[first], "partition"))
    return _spec_takes_list(Config, path, tree)


def _spec_takes_list(spec: type[BaseModel], path: Sequence[str], section: Tree) -> bool:
    field = spec.model_fields.get(path[0])
    if field is None:
        return False  # an unknown key: the config says so
    if len(path) == 1:
        return _is_list(field.annotation)
    if get_origin(field.annotation) is dict:  # what each of its names has
        return _is_list(get_args(field.annotation)[1])
    kind, inside = getattr(field.annotation, "kind", ""), section[path[0]]
    if kind in registries:
        nested = _chosen(kind, inside) if "name" in inside else [type(field.default)]
        return any(_spec_takes_list(s, path[1:], inside) for s in nested)
    section_of = field.annotation
    known = isinstance(section_of, type) and issubclass(section_of, BaseModel)
    return known and _spec_takes_list(section_of, path[1:], inside)  # type: ignore[arg-type]


def _chosen(kind: str, section: Tree, word: str = "name") -> list[type[Spec]]:
    """What a section names; several where the name itself is an axis."""
    named = section.get(word)
    names = named if isinstance(named, list | tuple) else [named]
    plain = [n.get("name") if isinstance(n, dict) else n for n in names]
    return [registry_of(kind).get(name) for name in plain if name is not None]


def _is_list(annotation: Any) -> bool:
    origin = get_origin(annotation) or annotation
    if origin in (Annotated, Union, UnionType):
        return any(_is_list(one) for one in get_args(annotation))
    return origin in LISTS
