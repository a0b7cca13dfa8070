"""Which keys of an experiment decide its bits, and which may change from one sitting to the next."""

import json

from polyfed.config.trees import Tree, flatten, is_section

BESIDE = ("track", "tag")  # keys that change nothing that is computed
# keys that may change between sittings
FREE = ("device", "eval", "checkpoint", "init", "engine", "data.root", "data.file", *BESIDE)
# sections that say nothing: as if they were not there
ABSENT = {section: {"name": "none"} for section in ("attack", "defence", "privacy")}
FIXED = ("engine.server_threads",)  # keys inside the free ones that may not


def identity(tree: Tree) -> Tree:
    """A complete tree without the keys that change nothing of what is computed: two runs with the same are the same."""
    return {key: value for key, value in tree.items() if key not in BESIDE and not _absent(key, value)}


def _absent(key: str, value: object) -> bool:
    """Whether a section says nothing."""
    return key in ABSENT and value == ABSENT[key]


def deciding(tree: Tree, path: str = "") -> Tree:
    """The keys of a complete tree that decide a run's bits, dotted, with their values as JSON has them."""
    made: Tree = {}
    for key, value in tree.items():
        if _absent(dotted := f"{path}{key}", value):
            continue
        if dotted in FREE:
            given = flatten({key: value}, path)
            made |= {fixed: given[fixed] for fixed in FIXED if fixed in given}
        else:
            nested = isinstance(value, dict) and value and is_section(value)
            made |= deciding(value, f"{dotted}.") if nested else {dotted: json.loads(json.dumps(value))}
    return made


def differences(theirs: Tree, ours: Tree) -> list[str]:
    """What differs between two trees of deciding keys, in words."""
    keys = [key for key in {**theirs, **ours} if theirs.get(key) != ours.get(key)]
    return [f"{key} ({theirs.get(key)}, now {ours.get(key)})" for key in keys]
