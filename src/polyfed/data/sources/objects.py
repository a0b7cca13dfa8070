"""Python objects that hold samples: arrays, data sets of torch or Hugging Face, one for all or one for each client."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import TensorDataset

from polyfed import rng
from polyfed.data.sources.arrays import Arrays, as_array, parts_of
from polyfed.data.sources.found import Part, gathered
from polyfed.data.sources.raw import Classes, as_labels, as_samples
from polyfed.errors import DataError, UsageError, did_you_mean

LAYOUTS = (
    "data must be a name, arrays (x, y) or (x, y, x_test, y_test), a mapping with x and y (and users, classes), a data "
    "set of torch or Hugging Face, a pair (train, test) of them, or one of these for each client: a list, or a mapping "
    "from names"
)
ARRAYS = ("x", "y", "x_test", "y_test", "users", "users_test")
COLUMNS = ("dataset", "x", "y", "users")
LOOKS = 4  # items of a data set that are read again, and how often
PLAIN = (str, int, float, bool, Path, type(None))


def is_samples(data: Any) -> bool:
    """Whether a mapping holds samples; a section of a config holds plain values."""
    return isinstance(data, Mapping) and any(not _is_plain(value) for value in data.values())


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):  # data.categories, say
        return all(_is_plain(one) for one in value.values())
    if isinstance(value, list | tuple):
        return all(isinstance(one, PLAIN) for one in value)
    return isinstance(value, PLAIN)


def hold(data: Any) -> Arrays:
    """Keep samples in any of the layouts in this process, and describe them."""
    if isinstance(data, Mapping) and not is_set(data):
        if _has_fields(data):
            classes = data.get("classes")
            names = classes if isinstance(classes, int | None) else tuple(map(str, classes))
            return _hold(
                list(_fields({k: v for k, v in data.items() if k != "classes"}, "the data", None)), classes=names
            )
        return _hold_clients({str(name): one for name, one in data.items()})
    if isinstance(data, list) and data and all(is_set(one) or isinstance(one, tuple) for one in data):
        width = len(str(len(data) - 1))
        return _hold_clients({f"client-{k:0{width}d}": one for k, one in enumerate(data)})
    return _hold(list(_parts(data, "the data", None)))


def _hold(parts: list[Part], clients: list[str] | None = None, classes: Classes = None) -> Arrays:
    """Classes are declared, or those that the data sets name, in their order."""
    named = [names_of(part.items[0]) if part.items else () for part in parts]
    if all(named) and classes is None:
        classes = tuple(dict.fromkeys(name for names in named for name in names))
    return Arrays.hold_found(gathered(Arrays.name, parts, clients), **({} if classes is None else {"classes": classes}))


def _hold_clients(data: Mapping[str, Any]) -> Arrays:
    """One client for each name, in their order."""
    parts = [part for name, one in data.items() for part in _parts(one, f"client '{name}'", name)]
    for name in data:
        if not any(part.users == name and len(part.y) for part in parts if not part.test):
            raise DataError(f"client '{name}' has no sample to train on")
    return _hold(parts, list(data))


def _has_fields(data: Any) -> bool:
    return isinstance(data, Mapping) and any(key in data for key in ("x", "y", "dataset"))


def _fields(data: Mapping[str, Any], where: str, client: str | None) -> Iterator[Part]:
    """Arrays by name, or a data set with the names of its columns."""
    known = COLUMNS if "dataset" in data else ARRAYS
    strange = [key for key in data if key not in known]
    if strange:
        raise UsageError(f"{where}: there is no field '{strange[0]}'; {did_you_mean(str(strange[0]), known)}")
    fields = {key: as_array(value) for key, value in data.items() if key != "dataset"}
    if "dataset" in data:
        yield from _parts(data["dataset"], where, client, fields)
        return
    if "x" not in fields or "y" not in fields:
        raise UsageError(f"{where}: x and y are needed; {LAYOUTS}")
    if client is not None:
        fields |= {"users": client, "users_test": client, "where": where}
    yield from parts_of(**fields)


def _parts(data: Any, where: str, client: str | None, columns: Mapping[str, str] | None = None) -> Iterator[Part]:
    """What one object holds, for one client or for nobody."""
    if isinstance(data, Mapping) and is_set(data):
        yield from _splits(data, where, client, columns or {})
    elif _has_fields(data):
        yield from _fields(data, where, client)
    elif is_set(data):
        yield from read_set(data, where, client, False, columns or {})
    elif isinstance(data, tuple) and len(data) == 2 and all(is_set(one) for one in data):
        for one, test in zip(data, (False, True), strict=True):
            yield from read_set(one, f"the test of {where}" if test else where, client, test, columns or {})
    elif isinstance(data, list | tuple) and len(data) in (2, 4) and not any(is_set(one) for one in data):
        arrays = [as_array(part) for part in data]
        yield from parts_of(*arrays, users=client, users_test=client, where=where if client is not None else "")
    else:
        whose = "" if client is None else f"{where} has something else: "
        raise UsageError(f"{whose}{LAYOUTS}; this is of the type {type(data).__name__}")


# ---- data sets


def is_set(data: Any) -> bool:
    """Whether this is a data set of torch or Hugging Face, or the latter's mapping from splits to data sets."""
    if isinstance(data, Mapping):
        return bool(data) and hasattr(data, "column_names")
    return isinstance(data, torch.utils.data.Dataset) or is_table(data)


def is_table(data: Any) -> bool:
    """Whether this is a data set of Hugging Face, which need not be installed."""
    return hasattr(data, "column_names") and hasattr(data, "features")


def _splits(data: Mapping[str, Any], where: str, client: str | None, columns: Mapping[str, str]) -> Iterator[Part]:
    """The splits train and test of Hugging Face; another one would be left out silently, so it is refused."""
    strange = [name for name in data if name not in ("train", "test")]
    if strange or "train" not in data:
        told = f"has the split '{strange[0]}'" if strange else "has no split 'train'"
        raise UsageError(f"{where} {told}: give a mapping with the splits train and, if there is one, test")
    for name in ("train", "test"):
        if name in data:
            of = f"the test of {where}" if name == "test" else where
            yield from read_set(data[name], of, client, name == "test", columns)


def read_set(data: Any, where: str, client: str | None, test: bool, columns: Mapping[str, str]) -> Iterator[Part]:
    """All of a data set, each item once; items of different shapes are parts of their own."""
    users: Any = client
    if is_table(data):
        data, users = as_pairs(data, where, columns, client)
    elif columns:
        raise UsageError(f"{where} is a data set of torch and has no columns: its items are pairs (x, y)")
    if type(data) is TensorDataset and len(data.tensors) == 2:
        x, y = (as_array(tensor) for tensor in data.tensors)
        yield Part(where, as_samples(x, where), as_labels(y, where), users, test, (data, 0))
        return
    xs, labels = _items(data, where)
    moving = _changes(data, xs)
    if len({x.shape for x in xs}) == 1:
        yield Part(where, as_samples(np.stack(xs), where), labels, users, test, (data, 0), moving)
        return
    for at, x in enumerate(xs):
        user = users[at] if isinstance(users, list) else users
        here = f"item {at} of {where}"
        yield Part(here, as_samples(x[None], here), labels[at : at + 1], user, test, (data, at), moving)


def names_of(data: Any) -> tuple[str, ...]:
    """What the classes of a data set are called, where it says so as torchvision's do."""
    names = getattr(data, "classes", None)
    return tuple(names) if isinstance(names, list | tuple) and all(isinstance(name, str) for name in names) else ()


def _items(data: Any, where: str) -> tuple[list[np.ndarray], np.ndarray]:
    """Every item, read in order while the global generators follow a key: the same data set reads the same.

    A label is a word where the data set has names for its classes: those of another client may be numbered otherwise.
    """
    pairs = []
    try:
        count = len(data)
        with rng.seeded(0, "reading"):
            for at in range(count):
                x, y = data[at]
                pairs.append((as_array(x), _label(y)))
    except (TypeError, ValueError, KeyError) as error:
        sentence = "a torch data set must have a length and give pairs: a sample, and its class as a number or a word"
        raise UsageError(f"{where}: {sentence} ({type(error).__name__}: {error})") from None
    if not pairs:
        raise DataError(f"{where} holds no sample")
    labels, names = as_labels([y for _, y in pairs], where), names_of(data)
    if names and labels.dtype.kind == "i":
        if labels.min() < 0 or labels.max() >= len(names):
            found = f"labels run from {labels.min()} to {labels.max()}"
            raise DataError(f"{where}: {found}, and the data set names {len(names)} classes")
        labels = np.array(names)[labels]
    return [x for x, _ in pairs], labels


def _label(y: Any) -> int | str:
    if isinstance(y, str):
        return y
    number = int(y)
    if number != y:
        raise ValueError(f"the class {y} is not a whole number")
    return number


def _changes(data: Any, read: list[np.ndarray]) -> bool:
    """Whether some items are others when they are read again."""
    some = np.unique(np.linspace(0, len(read) - 1, LOOKS).astype(int)).tolist()
    for look in range(LOOKS):
        with rng.seeded(0, "reading again", look):
            if any(not np.array_equal(as_array(data[at][0]), read[at], equal_nan=True) for at in some):
                return True
    return False


# ---- Hugging Face


class Pairs:
    """A table of Hugging Face as items (x, y)."""

    def __init__(self, table: Any, x: str, y: str):
        self.table, self.x, self.y = table, x, y
        self.dtype = "uint8" if getattr(table.features[x], "dtype", "") == "uint8" else None
        self.classes = getattr(table.features[y], "names", None)

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, at: int) -> tuple[Any, Any]:
        row = self.table[at]
        return (row[self.x] if self.dtype is None else np.asarray(row[self.x], self.dtype)), row[self.y]


def as_pairs(table: Any, where: str, columns: Mapping[str, str], client: str | None) -> tuple[Pairs, Any]:
    """Its items, and whose they are: a column of clients is taken where it is named, or called client."""
    have = list(table.column_names)
    for field, column in columns.items():
        if column not in have:
            raise UsageError(f"{where} has no column '{column}' for {field}; its columns are {', '.join(have)}")
    users = columns.get("users", "client" if client is None and "client" in have else None)
    y = columns.get("y") or _column(
        table, [c for c in have if c != users], ("label", "labels", "y"), "ClassLabel", where, "y"
    )
    x = columns.get("x") or _column(
        table, [c for c in have if c not in (y, users)], ("image", "x"), "Image", where, "x"
    )
    return Pairs(table, x, y), client if users is None else [str(user) for user in table[users]]


def _column(table: Any, columns: list[str], usual: tuple[str, ...], kind: str, where: str, field: str) -> str:
    """The one column that can be meant: of a usual name, of the right kind, or the only one."""
    of_kind = [column for column in columns if type(table.features[column]).__name__ == kind]
    for some in ([column for column in usual if column in columns], of_kind, columns):
        if len(some) == 1:
            return some[0]
    asked = f'data={{"dataset": ..., "{field}": "name of the column"}}'
    raise UsageError(f"{where} has the columns {', '.join(table.column_names)}; say which is {field}: {asked}")
