"""torch.export's loader unpickles, imports and evaluates what an archive says: it is looked through first."""

import ast
import json
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from polyfed.errors import DataError

# tensors as plain bytes, tables as JSON, and nothing else: no pickled tensor or object, no library
PLAIN = re.compile(
    r"[^/]+/(data/(weights/weight_\d+|constants/tensor_\d+|(weights|constants)/model_\w+_config\.json)"
    r"|models/model\.json|archive_(format|version)|byteorder|\.data/(version|serialization_id))"
)
SAMPLES = re.compile(r"[^/]+/data/sample_inputs/model\.pt")  # pickled, so it must be empty
SIZES = {"Symbol", "Integer", "Add", "Mul", "Pow", "Max", "Min", "FloorDiv", "Mod"}  # what the size of a tensor may say


def refuse_code(file: Path) -> None:
    """Refuse an archive in which anything could execute: only tensors, arithmetic on them and sizes may be there."""
    try:
        with zipfile.ZipFile(file) as archive:
            for entry in archive.infolist():
                empty = SAMPLES.fullmatch(entry.filename) and not entry.file_size
                if not empty and not PLAIN.fullmatch(entry.filename):
                    raise _Foreign(f"it holds '{entry.filename}'")
            for name in archive.namelist():
                if name.endswith(".json"):
                    _refuse_foreign(json.loads(archive.read(name)))
    except _Foreign as found:
        raise DataError(f"'{file}' is refused, because loading it could execute code: {found}") from None
    except (OSError, ValueError, zipfile.BadZipFile, RecursionError) as error:
        raise DataError(f"cannot read the exported model '{file}': {error}") from None


class _Foreign(Exception):
    """Something beside tensors and arithmetic."""


def _refuse_foreign(table: Any) -> None:
    for key, value in _leaves(table):
        if key == "use_pickle" and value is not False:
            raise _Foreign("a tensor is pickled")
        if isinstance(value, str) and not RULES.get(key, _is_word)(value):
            raise _Foreign(f"its {key} is {value[:80]!r}")


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every value that is no table itself, and every key, with the key it stands under."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield "key", name
            yield from _leaves(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner, key)
    else:
        yield key, value


def _is_size(text: str) -> bool:
    """Whether an expression is arithmetic on sizes."""
    try:
        nodes = list(ast.walk(ast.parse(text, mode="eval")))
    except (SyntaxError, ValueError):
        return False
    plain = (ast.Expression, ast.Call, ast.Name, ast.Load, ast.Constant, ast.keyword, ast.UnaryOp, ast.USub)
    return (
        all(isinstance(node, plain) for node in nodes)
        and all(isinstance(node.func, ast.Name) for node in nodes if isinstance(node, ast.Call))
        and all(node.id in SIZES for node in nodes if isinstance(node, ast.Name))
        and all(_is_word(str(node.value)) for node in nodes if isinstance(node, ast.Constant))
    )


def _only(pattern: str) -> Callable[[str], bool]:
    return lambda text: re.fullmatch(pattern, text) is not None


_is_word = _only(r"[\w.]*")  # names become source text of the module, so they must be names
_is_tree = _only(r'([\[\]{}\s,:01]|null|"(type|context|children_spec|null|\[\]|builtins\.(tuple|list|dict))")*')
RULES: dict[str, Callable[[str], bool]] = {
    "target": _only(
        r"torch\.ops\.aten\.(?!from_file)\w+\.\w+|_operator\.(getitem|add|sub|mul|floordiv|mod|neg|eq|ne|lt|le|gt|ge)"
    ),
    "expr_str": _is_size,
    "guards_code": _only("(?!)"),  # none at all
    "stack_trace": _only("(?!)"),
    "nn_module_stack": _only("(?!)"),
    "as_float": _only(r"[\w.+-]*"),
    "in_spec": _is_tree,
    "out_spec": _is_tree,
    "torch_version": _only(r"[\w.+]*"),
}
