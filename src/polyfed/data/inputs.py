"""New samples to predict: rows of a .npy, .npz or .csv file, a picture, or a folder of them."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from polyfed.data.preparation import Preparation
from polyfed.data.sources.folder import files_in
from polyfed.data.sources.pictures import IMAGES, read_image
from polyfed.data.sources.raw import in_colour
from polyfed.data.sources.tables import Columns, Table, category_ids
from polyfed.data.tokens import Tokenizer
from polyfed.errors import DataError, UsageError
from polyfed.files import plain_file


class Inputs(NamedTuple):
    """Raw samples, and what each is called: its row, or its file."""

    kind: str  # row or file
    names: list[str]
    x: np.ndarray
    skipped: int = 0  # files that are no pictures
    notes: Mapping[str, int] = MappingProxyType({})  # how many texts were cut, or words are no category


def read_inputs(path: Path, preparation: Preparation) -> Inputs:
    """What a file or a folder holds, in the shape the preparation takes."""
    if path.is_dir():
        return _pictures(path, preparation)
    ending = path.suffix.lower()
    reads = preparation.reads or {}
    if ending in (".csv", ".jsonl", ".txt") and ("text" in reads or "table" in reads):
        return _words(path, reads)
    if ending in IMAGES:
        return Inputs("file", [path.name], _picture(path, preparation)[None])
    readers = {".npy": _array, ".npz": _array, ".csv": _table}
    if ending not in readers:
        raise UsageError(f"cannot read '{path}': inputs are .npy, .npz, .csv, a picture or a folder of pictures")
    x = readers[ending](path, preparation)
    return Inputs("row", list(map(str, range(len(x)))), x)


def _array(path: Path, preparation: Preparation) -> np.ndarray:
    """An array, or `x` of several; nothing in it can execute."""
    try:
        found = np.load(plain_file(path), allow_pickle=False)
        x = found["x"] if isinstance(found, np.lib.npyio.NpzFile) else found
    except KeyError:
        raise DataError(f"{path} must hold the array x") from None
    except Exception as error:  # zipfile, zlib, numpy and the file system each have their own
        raise DataError(f"{path} is not a readable array of plain numbers: {error}") from None
    if x.ndim == 0:
        raise DataError(f"{path} holds a single number, expected rows")
    return x


def _table(path: Path, preparation: Preparation) -> np.ndarray:
    """A sample per line, its numbers in order; a first line without any number names the columns."""
    try:
        with plain_file(path).open(encoding="utf-8-sig") as file:
            named = not any(map(_is_number, file.readline().strip().split(",")))
        options = {"delimiter": ",", "comments": None, "quotechar": '"', "encoding": "utf-8-sig", "ndmin": 2}
        if path.stat().st_size == 0:
            raise ValueError("it is empty")
        with warnings.catch_warnings(action="error", category=UserWarning):  # that there are no rows
            rows = np.loadtxt(path, skiprows=int(named), **options)  # type: ignore[call-overload]
    except UserWarning:
        raise DataError(f"{path} is not a table of numbers, a sample per line: it has no samples") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is not a table of numbers, a sample per line: {error}") from None
    wide = int(np.prod(preparation.shape))
    if rows.shape[1] != wide:
        shape = " x ".join(map(str, preparation.shape))
        raise DataError(f"{path} has {rows.shape[1]} numbers per line, expected {wide} ({shape})")
    rows = rows.reshape(-1, *preparation.shape)
    if not preparation.images:
        return rows
    if not np.array_equal(rows, np.clip(np.rint(rows), 0, 255)):
        raise DataError(f"{path} must hold whole numbers from 0 to 255: they are pixels")
    return rows.astype(np.uint8)


def _words(path: Path, reads: Mapping[str, Any]) -> Inputs:
    """Texts (a column `text`, or a line each) as tokens, or rows of a table with categories by the names of columns."""
    text = reads.get("text")
    if text is not None and path.suffix.lower() == ".txt":
        try:
            x, notes = _tokens(text, plain_file(path).read_text(encoding="utf-8-sig").splitlines())
        except (OSError, ValueError) as error:
            raise DataError(f"{path} is no readable text: {error}") from None
    elif text is not None:
        column = str(text["column"])
        x, notes = _tokens(text, Table(path, Columns("", "", "", "", (column,), (column,))).texts(column))
    else:
        x, notes = _table_rows(path, reads["table"])
    return Inputs("row", list(map(str, range(len(x)))), x, notes=notes)


def _tokens(text: Mapping[str, Any], texts: Sequence[str]) -> tuple[np.ndarray, dict[str, int]]:
    known = {key: value for key, value in text.items() if key != "column"}
    return Tokenizer(**known).rows(texts)


def _table_rows(path: Path, told: Mapping[str, Any]) -> tuple[np.ndarray, dict[str, int]]:
    """Categories as ids, a word that was not declared as 0, then the numbers, in the order of the training table."""
    declared, numbers = told["categories"], tuple(told["numbers"])
    table = Table(path, Columns("", "", "", "", numbers, tuple(declared)))
    x = table.numbers()
    ids, notes = category_ids({name: table.column(name) for name in declared}, declared, len(x))
    return np.concatenate([ids, x], axis=1), notes


def _is_number(cell: str) -> bool:
    try:
        float(cell.strip().strip('"'))
    except ValueError:
        return False
    return True


def _pictures(folder: Path, preparation: Preparation) -> Inputs:
    files, others = files_in(folder, IMAGES)
    if not files:
        raise DataError(f"there is no picture ({', '.join(IMAGES)}) in the folder '{folder}'")
    x = np.stack([_picture(file, preparation) for file in files])
    return Inputs("file", [file.name for file in files], x, others)


def _picture(file: Path, preparation: Preparation) -> np.ndarray:
    """A picture as the data set's own were read: grey ones get colours where those have them."""
    if not preparation.images:
        raise UsageError(f"{file} is a picture, and the model takes rows of {list(preparation.shape)} numbers")
    high, wide, channels = preparation.shape
    picture = read_image(file, (high, wide) if preparation.any_size else None)
    if picture.shape[:2] != (high, wide):
        got = f"{picture.shape[1]} x {picture.shape[0]}"
        raise DataError(f"{file} has {got} pixels, expected {wide} x {high}: resize it first")
    if picture.shape[2] not in (1, channels):
        raise DataError(f"{file} has {picture.shape[2]} channels, and the model takes {channels}: convert it first")
    return in_colour(picture[None], channels)[0]
