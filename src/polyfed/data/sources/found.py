"""Samples as they were found, wherever that was: their labels, whose they are, and which of them are official tests."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from polyfed.data.sources.base import Dataset
from polyfed.data.sources.raw import Classes, Side, class_names_of, in_colour, pixel_statistics, resized
from polyfed.errors import DataError


class SizesDiffer(DataError):
    """Images have different sizes, and no side was given to bring them to."""


class Part(NamedTuple):
    """What one place holds: samples of one shape, and labels that are whole numbers or words."""

    where: str  # what a sentence calls it
    x: np.ndarray
    y: np.ndarray
    users: Any = None  # the client's name, or one for each row; None: nobody's
    test: bool = False
    items: tuple[Any, int] | None = None  # the data set it was read from, and its first item there
    moving: bool = False  # whether that gives something else when it is read again


class Item(NamedTuple):
    """Where a training row can be read anew."""

    first: int  # row
    data: Any
    item: int


@dataclass(frozen=True, eq=False)
class Found:
    """All parts together, training rows first; `x` is one array, or one per part where their shapes differ."""

    x: np.ndarray | list[np.ndarray]
    y: np.ndarray
    train: int
    users: np.ndarray | None = None
    user_names: tuple[str, ...] = ()
    differ: str = ""  # which shapes differ, in words
    items: tuple[Item, ...] = ()
    moving: str = ""  # what gives something else when it is read again

    def dataset(
        self, name: str, classes: Classes, side: Side | None, notes: dict[str, int] | None = None, **told: Any
    ) -> Dataset:
        """The checked data set; images of different sizes are brought to one side, if there is one.

        `told` are further fields of the data set.
        """
        x = self.x if isinstance(self.x, np.ndarray) else self._of_one_size(name, self.x, side)
        y, class_names = class_names_of(self.y, classes, name)
        mean, std = pixel_statistics(x[: self.train]) if x.dtype == np.uint8 and self.train else (None, None)
        of = (self.users, self.user_names)
        return Dataset(name, x, y, self.train, class_names, mean, std, *of, *of, notes=notes or {}, **told)

    def _of_one_size(self, name: str, parts: list[np.ndarray], side: Side | None) -> np.ndarray:
        images = all(x.dtype == np.uint8 and x.ndim == 4 for x in parts)
        if images and side is not None:
            return np.concatenate([resized(x, side) for x in parts])
        if images:
            raise SizesDiffer(f"{name}: {self.differ}; data.size=N gives all images one side")
        raise DataError(f"{name}: {self.differ}; bring them to one shape first")


def gathered(name: str, parts: Sequence[Part], clients: Sequence[str] | None = None) -> Found:
    """Parts from anywhere as one; `clients` are all there are, in their order, where they are not to be sorted."""
    parts = [part for part in sorted(parts, key=lambda part: part.test) if len(part.y)]
    if not parts or parts[0].test:
        raise DataError(f"{name}: there is no sample to train on")
    parts = _in_colour(parts)
    train = sum(len(part.y) for part in parts if not part.test)
    users, names = _users(name, parts, train, clients)
    x, differ = _one_array(parts)
    moving = next((part.where for part in parts if part.moving), "")
    return Found(x, _labels(name, parts), train, users, names, differ, _items(parts), moving)


def _in_colour(parts: list[Part]) -> list[Part]:
    """Grey pictures among coloured ones get their channels."""
    depths = {part.x.shape[3] for part in parts if part.x.dtype == np.uint8 and part.x.ndim == 4}
    if depths != {1, 3}:
        return parts
    return [part._replace(x=in_colour(part.x, 3)) for part in parts]


def _one_array(parts: list[Part]) -> tuple[np.ndarray | list[np.ndarray], str]:
    """All samples in one piece where they have one shape; what was given in one piece is not copied."""
    first = parts[0]
    for part in parts:
        if part.x.shape[1:] != first.x.shape[1:] or part.x.dtype != first.x.dtype:
            here, there = (f"{one.x.dtype} {list(one.x.shape[1:])}" for one in (part, first))
            said = f"the samples of {part.where} are {here}, those of {first.where} {there}"
            return [each.x for each in parts], said
    return (first.x if len(parts) == 1 else np.concatenate([part.x for part in parts])), ""


def _labels(name: str, parts: list[Part]) -> np.ndarray:
    """All labels; numbers in one place and words in another are refused."""
    first = parts[0]
    for part in parts:
        if part.y.shape[1:] != first.y.shape[1:]:
            here, there = ("x".join(map(str, one.y.shape[1:])) or "one label" for one in (part, first))
            said = f"the masks of {part.where} are {here}, those of {first.where} {there}"
            raise DataError(f"{name}: {said}; data.size=[H, W] brings all to one size")
        if part.y.dtype.kind != first.y.dtype.kind:
            numbers, words = (first, part) if first.y.dtype.kind == "i" else (part, first)
            raise DataError(f"{name}: the labels of {numbers.where} are numbers, those of {words.where} are words")
    return np.concatenate([part.y for part in parts])


def _users(
    name: str, parts: list[Part], train: int, clients: Sequence[str] | None
) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """The user of every row as a place among their names, or -1 for nobody."""
    if all(part.users is None for part in parts):
        return None, ()
    each = [_of_rows(name, part) for part in parts]
    told = [users for users in each if users is not None]
    known = np.array(clients) if clients is not None else in_order(np.concatenate(told))
    place = {value: at for at, value in enumerate(known.tolist())}
    ids = [
        np.full(len(part.y), -1) if users is None else np.array([place[value] for value in users.tolist()])
        for part, users in zip(parts, each, strict=True)
    ]
    made = np.concatenate(ids)
    idle = np.setdiff1d(np.arange(len(known)), made[:train])
    if len(idle):
        raise DataError(f"{name}: client '{known[idle[0]]}' has no sample to train on")
    return made, tuple(map(str, known.tolist()))


def _of_rows(name: str, part: Part) -> np.ndarray | None:
    """The user of each row of a part; None for nobody's rows."""
    if part.users is None or isinstance(part.users, str):
        return None if part.users is None else np.full(len(part.y), part.users)
    users = np.asarray(part.users)
    if users.shape != part.y.shape[:1]:
        what = "test" if part.test else "training"
        raise DataError(f"{name}: {len(part.y)} {what} samples but {users.size} users")
    return users


def in_order(values: np.ndarray) -> np.ndarray:
    """Each value once, sorted; words that are whole numbers are sorted as numbers."""
    known = np.unique(values)
    if known.dtype.kind == "U" and np.char.isdecimal(known).all():
        return known[np.argsort(known.astype(np.int64), kind="stable")]
    return known


def _items(parts: list[Part]) -> tuple[Item, ...]:
    """Where training rows can be read anew; nowhere unless all of them can."""
    made, row = [], 0
    for part in parts:
        if part.test:
            continue
        if part.items is None:
            return ()
        made.append(Item(row, *part.items))
        row += len(part.y)
    return tuple(made)
