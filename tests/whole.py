"""Whether two directories or files hold the same, apart from times and names: nothing lost, nothing left half done."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from polyfed.measure.seconds import PHASES
from polyfed.message import digest_of

FREE = ("log.txt", "lock", "environment.json")  # tell of sittings, not of results
LEFT = "was left behind"
TIMES = {"seconds", *PHASES}  # columns and keys that differ from run to run


def differences(one: Path, other: Path) -> Iterator[str]:
    """In what a directory or file differs from another that is known to be whole."""
    if other.is_file():
        yield from [] if one.is_file() and one.read_bytes() == other.read_bytes() else [f"{one.name} differs"]
        return
    ours, theirs = (_files(path) for path in (one, other))
    yield from (f"{name} is missing" for name in sorted(theirs.keys() - ours.keys()))
    yield from (f"{name} {LEFT}" for name in sorted(ours.keys() - theirs.keys()))
    for name in sorted(ours.keys() & theirs.keys()):
        try:
            if name not in FREE and _content(ours[name]) != _content(theirs[name]):
                yield f"{name} differs"
        except ValueError as error:
            yield f"{name} is corrupt: {error}"


def _files(folder: Path) -> dict[str, Path]:
    return {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}


def _content(path: Path) -> Any:
    """What a file says, without times; ValueError if it is not whole."""
    if path.name == "head.json":
        outer = json.loads(path.read_text())
        if digest_of(outer["head"].encode()) != outer["sha256"]:
            raise ValueError("its digest is another one")
        return _timeless(json.loads(outer["head"]))
    if path.suffix == ".json":
        return _timeless(json.loads(path.read_text()))
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            return [_timeless(row) for row in csv.DictReader(file, strict=True)]
    return path.read_bytes()


def _timeless(value: Any) -> Any:
    """A value without what tells of time or place."""
    if not isinstance(value, dict):
        return value
    return {key: _timeless(each) for key, each in value.items() if key not in {*TIMES, "run", "records"}}
