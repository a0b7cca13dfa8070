"""Code outside polyfed, named by a config as `file.py:Class` or `package.module:Class`: found, hashed, asked for, run.

Whatever reads a config that a stranger may have written asks first (`asking`); see engine/trust.py for who says yes.
"""

import ast
import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.abc import MetaPathFinder, SourceLoader
from importlib.machinery import ModuleSpec
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Any

from polyfed.files import read_plain

Files = dict[str, str]  # the files whose code would run, with the hash of each
Permit = Callable[[str, str, Files], None]  # raises, if what a kind and a name lead to may not run
_permit: ContextVar[Permit | None] = ContextVar("permit", default=None)
_admitted: dict[str, Files] = {}  # what ran in this process, by its name
_loaded: dict[str, Files] = {}  # files that were loaded by their path, with all that ran for each


@dataclass(frozen=True)
class Code:
    """What a name leads to: the files whose code would run, and how to run it."""

    files: Files
    load: Callable[[], ModuleType]


@contextmanager
def asking(permit: Permit) -> Iterator[None]:
    """Inside, code outside polyfed runs only if `permit` does not raise."""
    token = _permit.set(permit)
    try:
        yield
    finally:
        _permit.reset(token)


def admit(kind: str, name: str, files: Files) -> None:
    """Ask whether this may run, where somebody wants to be asked, and remember what it was."""
    permit = _permit.get()
    if permit is not None:
        permit(kind, name, files)
    _admitted[name] = files


def files_of(name: str) -> Files:
    """The files behind `file.py:Class` or `package.module:Class`, as they ran here; none that cannot be found."""
    if name not in _admitted:
        try:
            return find(name.rpartition(":")[0]).files
        except (ImportError, OSError, ValueError):
            return {}
    return _admitted[name]


def find(where: str) -> Code:
    """A file or a module that can be imported; nothing of it runs yet."""
    return _file(where) if where.endswith(".py") else _module(where)


# ---- files


class _Read(SourceLoader):
    """Runs the bytes that were hashed: not what the file holds by then, nor what a cache beside it does."""

    def __init__(self, path: str, source: bytes):
        self.path, self.source = path, source

    def get_filename(self, fullname: str) -> str:
        """Where the code is from."""
        return self.path

    def get_data(self, path: bytes | str) -> bytes:
        """The code."""
        return self.source


def _file(path: str) -> Code:
    """A user's file by its path, with the files beside it that it imports; it is loaded once, under a stable name."""
    file = Path(path).resolve()
    name = f"polyfed_user_{file.stem}"
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) == str(file):
        return Code(_loaded[str(file)], lambda: known)
    if not file.is_file():
        raise FileNotFoundError(f"no file {file}")
    source = read_plain(file)
    beside = _siblings(file, source)
    files = {str(file): _hash(source)} | {one.path: _hash(one.source) for one in beside.values()}

    def load() -> ModuleType:
        with _finding(beside):
            module = _run(name, _Read(str(file), source))
            for sibling in beside:  # one that is imported later, in a function, runs as it was hashed too
                importlib.import_module(sibling)
        _loaded[str(file)] = files
        return module

    return Code(files, load)


def _run(name: str, loader: _Read) -> ModuleType:
    """The module of that name, from the bytes that were hashed."""
    description = importlib.util.spec_from_file_location(name, loader.path, loader=loader)
    assert description is not None
    module = importlib.util.module_from_spec(description)
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _siblings(file: Path, source: bytes) -> dict[str, _Read]:
    """The files beside this one that it imports by name, and those that they import; nothing of them runs yet."""
    found: dict[str, _Read] = {}
    waiting = [source]
    while waiting:
        for name in _imported(waiting.pop(), file):
            beside = file.parent / f"{name}.py"
            if name not in found and beside != file and beside.is_file():
                found[name] = _Read(str(beside), read_plain(beside))
                waiting.append(found[name].source)
    for name, one in found.items():
        other = getattr(sys.modules.get(name), "__file__", None)
        if other not in (None, one.path):
            raise ImportError(f"it imports '{name}' from beside it, but {other} has that name already: rename the file")
    return found


def _imported(source: bytes, file: Path) -> Iterator[str]:
    """The modules that some code imports by a plain name, anywhere in it."""
    for node in ast.walk(ast.parse(source, str(file))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if "." not in alias.name)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module and "." not in node.module:
            yield node.module


@contextmanager
def _finding(beside: Mapping[str, _Read]) -> Iterator[None]:
    """Inside, imports of these names find the bytes that were hashed."""

    class Beside(MetaPathFinder):
        def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
            one = beside.get(name)
            return None if one is None else importlib.util.spec_from_file_location(name, one.path, loader=one)

    finder = Beside()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


# ---- modules


def _module(name: str) -> Code:
    """A module by its name: importing it runs the packages around it too."""
    files: Files = {}
    places = None
    for part in accumulate(name.split("."), "{}.{}".format):
        found = _spec(part, places)
        if found.has_location and found.origin is not None:
            files[str(Path(found.origin).resolve())] = _content(Path(found.origin))
        elif found.loader is not None and found.submodule_search_locations is None:
            files[f"module {part}"] = "part of Python"
        places = found.submodule_search_locations
    return Code(files, lambda: importlib.import_module(name))


def _spec(name: str, places: list[str] | None) -> ModuleSpec:
    """Where a module lies; unlike importlib's own search, this runs nothing of the package it is in."""
    known = getattr(sys.modules.get(name), "__spec__", None)
    if known is not None:
        return known
    for finder in sys.meta_path:
        found = finder.find_spec(name, places)
        if found is not None:
            return found
    raise ModuleNotFoundError(f"No module named '{name}'")


def _content(file: Path) -> str:
    """The hash of a file; none, where it is part of an archive, say: then it is not known again."""
    try:
        return _hash(read_plain(file))
    except OSError:
        return ""


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
