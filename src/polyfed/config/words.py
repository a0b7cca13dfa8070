"""The words of a command line that set keys: `train.lr=0.1`."""

import re
from typing import Any

from polyfed.config.make import registry_of
from polyfed.config.sections import Config
from polyfed.config.trees import NAMED, Tree, flatten, merge, named_sections, unflatten
from polyfed.config.yaml_text import read_yaml
from polyfed.errors import UsageError

LISTED = re.compile(r"[^\s,\[\]{}\"'#]+(,\s*[^\s,\[\]{}\"'#]+)+")  # a,b without brackets, which are patterns in zsh


def read_assignments(words: list[str]) -> Tree:
    """The tree of `key=value` words from a command line; a key that is said twice is refused."""
    tree: Tree = {}
    said: dict[str, str] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_][\w+-]*(\.[A-Za-z_][\w+-]*)*", key):
            raise UsageError(f"'{word}' is not key=value, for example train.lr=0.1")
        layer = named_sections(unflatten({key: _read_value(key, text)}))
        for leaf in flatten(layer):
            if leaf in said:
                raise UsageError(f"'{key}' is given twice, as {said[leaf]} and as {word}; say which one holds")
            said[leaf] = word
        tree = merge(named_sections(tree), layer)
    return tree


def _read_value(key: str, text: str) -> Any:
    """A value as YAML has it; `a,b` is the list [a, b], unless the key takes text."""
    listed = LISTED.fullmatch(text) is not None and not _takes_text(key)
    return read_yaml(f"[{text}]" if listed else text, f"the value of '{key}'")


def _takes_text(key: str) -> bool:
    """Whether a key takes free text, as a tag or a path is, whatever is chosen for its section."""
    section, _, word = key.rpartition(".")
    specs: list[Any] = [] if section else [Config]
    if section in NAMED:
        specs = list(registry_of(section))
    takes = [str(spec.model_fields[word].annotation) for spec in specs if word in spec.model_fields]
    text, several = (any(re.search(kind, one) for one in takes) for kind in (r"\b(str|Path)\b", r"\b(list|tuple)\b"))
    return text and not several
