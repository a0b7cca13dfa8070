"""The words of a command line that set keys: `train.lr=0.1`."""

import re

from polyfed.config.trees import Tree, merge, named_sections, unflatten
from polyfed.config.yaml_text import read_yaml
from polyfed.errors import UsageError


def read_assignments(words: list[str]) -> Tree:
    """The tree of `key=value` words from a command line."""
    tree: Tree = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_][\w+-]*(\.[A-Za-z_][\w+-]*)*", key):
            raise UsageError(f"'{word}' is not key=value, for example train.lr=0.1")
        tree = merge(named_sections(tree), named_sections(unflatten({key: read_yaml(text, f"the value of '{key}'")})))
    return tree
