"""Which version of the sources made a result: a hash of the code that a cell's method, model and data use."""

import ast
import hashlib
from pathlib import Path

from polyfed.config import Config

ROOT = Path(__file__).parent.parent
ALWAYS = (  # what every run uses, whatever its classes import
    "polyfed.data.federation",
    "polyfed.data.split",
    "polyfed.methods.sites.client",
    "polyfed.methods.sites.server",
    "polyfed.parts.average",
    "polyfed.parts.fit",
    "polyfed.parts.steps",
)
DECIDE = ("rng", "params", "data", "models", "parts", "methods")  # the rooms whose code decides a run's bits


def sources_hash(config: Config, root: Path = ROOT) -> str:
    """A hash of the modules that the experiment's classes are written in and of all that these import.

    Comments, docstrings and layout do not count.
    """
    chosen = (config.method, config.model.common, config.data, config.split.partition)
    first = {kind.__module__ for one in chosen for kind in type(one).__mro__ if kind.__module__.startswith("polyfed.")}
    first |= set(ALWAYS)
    code = [f"{name}\n{_code(_file(name, root))}" for name in sorted(_closure(first, root))]
    return hashlib.sha256("\n".join(code).encode()).hexdigest()[:16]


def _closure(names: set[str], root: Path) -> set[str]:
    """The modules of the deciding rooms among these, and whatever they import."""
    found: set[str] = set()
    open_ = {name for name in names if _decides(name, root)}
    while open_:
        found |= open_
        open_ = {other for name in open_ for other in _imports(_file(name, root)) if _decides(other, root)} - found
    return found


def _decides(name: str, root: Path) -> bool:
    room = name.split(".")[1] if name.startswith("polyfed.") else ""
    return room in DECIDE and _file(name, root).name != "__init__.py"


def _file(name: str, root: Path) -> Path:
    path = root.joinpath(*name.split(".")[1:])
    return path.with_suffix(".py") if path.with_suffix(".py").is_file() else path / "__init__.py"


def _imports(file: Path) -> set[str]:
    """The modules of polyfed that a file imports, or may be importing from."""
    if not file.is_file():
        return set()
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module, *(f"{node.module}.{one.name}" for one in node.names)}
        elif isinstance(node, ast.Import):
            names |= {one.name for one in node.names}
    return {name for name in names if name.startswith("polyfed.")}


def _code(file: Path) -> str:
    """A file as its statements alone."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node, clean=False):
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)
