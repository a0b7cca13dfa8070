"""Trees of keys and values: from files, merged, flattened and unflattened."""

from pathlib import Path
from typing import Any

from polyfed.config.yaml_text import read_yaml
from polyfed.errors import UsageError
from polyfed.files import Place, read_plain
from polyfed.registry import in_words

# sections for which a bare value sets the name
NAMED = ("method", "model", "data", "attack", "defence", "engine", "track", "privacy")
BY_CLIENT = "per_client"  # a key whose mapping is by clients, whose names may be anything
BY_COLUMN = "categories"  # one whose mapping is by columns of a table, whose names may be anything too
Tree = dict[str, Any]


def named_sections(tree: Tree, names: tuple[str, ...] = (*NAMED, "base")) -> Tree:
    """A bare value for a section that is chosen by name becomes its name; so does a base's, or a client's model."""
    made = {}
    for key, value in tree.items():
        if key in names and isinstance(value, str | list):  # a list is an axis of a comparison
            value = {"name": value}
        if key == BY_CLIENT and isinstance(value, dict):
            made[key] = {str(who): {"name": one} if isinstance(one, str) else one for who, one in value.items()}
        elif key == BY_COLUMN and isinstance(value, dict):
            made[key] = value
        else:
            made[key] = named_sections(value, ("base",)) if isinstance(value, dict) else value
    return made


def merge(under: Tree, over: Tree) -> Tree:
    """Two trees as one; where both say something the second holds."""
    made = dict(under)
    for key, value in over.items():
        below = made.get(key)
        if isinstance(below, dict) and isinstance(value, dict) and (is_section(below) or is_section(value)):
            value = merge(below, value)
        made[key] = value
    return made


def is_section(mapping: Tree) -> bool:
    """Whether this is a part of the tree; a mapping by numbers (a schedule) is one value, replaced as a whole."""
    return not mapping or any(isinstance(key, str) for key in mapping)


def read_config(path: Path | Place) -> Tree:
    """The tree of a config file."""
    try:
        text = read_plain(path).decode()
    except UnicodeDecodeError:
        raise UsageError(f"cannot read config file '{path}': it is not UTF-8 text") from None
    except OSError as error:
        raise UsageError(f"cannot read config file '{path}': {error.strerror or error}") from None
    tree = read_yaml(text, f"config file '{path}'")
    if not isinstance(tree, dict):
        held = "is empty" if tree is None else f"holds a {type(tree).__name__}"
        raise UsageError(f"config file '{path}' must hold keys and values, but it {held}")
    try:
        return unflatten(in_words(tree, str(path)))
    except RecursionError:
        raise UsageError(f"config file '{path}' holds a part that contains itself") from None


def unflatten(tree: Tree, names: tuple[str, ...] = (*NAMED, "base")) -> Tree:
    """`train.lr: 0.1` means the same as `train: {lr: 0.1}`, in a file as on the command line."""
    made: Tree = {}
    for key, value in tree.items():
        words = key.split(".") if isinstance(key, str) else [key]
        nested = isinstance(value, dict) and is_section(value) and words[-1] not in (BY_CLIENT, BY_COLUMN)
        layer = unflatten(value, ("base",)) if nested else value
        for word in reversed(words):
            layer = {word: layer}
        made = merge(named_sections(made, names), named_sections(layer, names))
    return made


def flatten(tree: Tree, above: str = "") -> Tree:
    """The leaves of a tree by their dotted keys."""
    made: Tree = {}
    for key, value in tree.items():
        place = f"{above}{key}"
        made |= flatten(value, f"{place}.") if isinstance(value, dict) and value else {place: value}
    return made
