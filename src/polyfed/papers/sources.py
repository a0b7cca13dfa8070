"""Which sources a cell's numbers come from, as one hash: where it differs, a stored number is stale."""

import ast
import hashlib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import polyfed
from polyfed.config import Config
from polyfed.papers.cell import PaperCell
from polyfed.papers.demos import demo_of
from polyfed.registry import specs_in

ROOT = Path(polyfed.__file__).parent
ALWAYS = ("polyfed.parts.fit", "polyfed.parts.steps", "polyfed.data.split", "polyfed.data.longtail")
# imports are followed into these rooms; what only reads, writes, runs or shows changes no number
ROOMS = ("polyfed.methods", "polyfed.parts", "polyfed.models", "polyfed.threats", "polyfed.params", "polyfed.data")
FOLLOWED = (*ROOMS, "polyfed.papers.demos")
LEFT_OUT = ("polyfed.data.sources", "polyfed.data.inputs")


def sources_of(cell: PaperCell) -> str:
    """The hash of all sources that a cell's numbers depend on; a seed changes none of them."""
    return _hash(_named_by(cell.first or cell))


@cache
def _named_by(cell: PaperCell) -> frozenset[str]:
    """The modules that a cell names: those of all that its experiment chooses, and that of its demo."""
    chosen = {name for config, _ in cell.trained for name in _modules(config)}
    own = {demo_of(cell.item.demo).function.__module__} if cell.item.demo else set()
    return frozenset({*ALWAYS, *chosen, *own})


def _modules(config: Config) -> Iterator[str]:
    """Of an experiment: its method with its bases, the model, the partition, what attacks and defends."""
    chosen = (config.method, config.model, config.split.partition, config.attack, config.defence, config.privacy)
    for spec in (inner for one in chosen for inner in specs_in(one)):
        for cls in type(spec).__mro__:
            if cls.__module__.startswith(FOLLOWED) and spec.name != "none":
                yield cls.__module__


@cache
def _hash(modules: frozenset[str]) -> str:
    made = hashlib.sha256()
    for module in sorted(_reached(modules)):
        made.update(module.encode())
        made.update(_meaning(module).encode())
    return made.hexdigest()[:16]


def _reached(modules: Iterable[str]) -> set[str]:
    """These modules and all that they import, directly or not, in the rooms that are followed."""
    found: set[str] = set()
    open_ones = list(modules)
    while open_ones:
        module = open_ones.pop()
        if module not in found and _file(module) is not None:
            found.add(module)
            open_ones += _imports(module)
    return found


@cache
def _imports(module: str) -> tuple[str, ...]:
    """What a module imports from the followed rooms."""
    made: list[str] = []
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.ImportFrom) and node.module:
            made += [_home(node.module, alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            made += [alias.name for alias in node.names]
    inside = [name for name in made if name.startswith(FOLLOWED) and not name.startswith(LEFT_OUT)]
    return tuple(name for name in dict.fromkeys(inside) if _file(name) is not None)


def _home(module: str, name: str) -> str:
    """The module that a name comes from; a package's own file only gathers names, so it is asked and left out."""
    if _file(module) is not None:
        return module
    if _file(f"{module}.{name}") is not None or not module.startswith(FOLLOWED):
        return f"{module}.{name}"
    for node in ast.walk(ast.parse((_path(module) / "__init__.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and name in [one.asname or one.name for one in node.names]:
            return _home(node.module, name)
    return f"{module}.{name}"


def _path(module: str) -> Path:
    return ROOT.joinpath(*module.split(".")[1:])


@cache
def _file(module: str) -> Path | None:
    """The file of a module of polyfed; None for a package or a name inside a module."""
    path = _path(module).with_suffix(".py")
    return path if module.startswith("polyfed.") and path.is_file() else None


@cache
def _tree(module: str) -> ast.Module:
    path = _file(module)
    return ast.parse(path.read_text(encoding="utf-8") if path else "")


@cache
def _meaning(module: str) -> str:
    path = _file(module)
    return meaning_of(path.read_text(encoding="utf-8") if path else "")


def meaning_of(text: str) -> str:
    """A source without comments, docstrings and layout, which change no number."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node, clean=False):
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)
