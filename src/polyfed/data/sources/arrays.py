"""Samples given from Python, kept in this process so that their description stays plain data."""

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from polyfed import rng
from polyfed.data.sources.base import Background, Dataset, Source, background_of_masks, source
from polyfed.data.sources.found import Found, Item, Part, gathered
from polyfed.data.sources.pictures import pixels
from polyfed.data.sources.raw import Classes, as_labels, as_samples
from polyfed.data.tokens import as_tokens
from polyfed.errors import DataError, UsageError
from polyfed.registry import param

_held: dict[str, Found] = {}
_items: dict[str, tuple[Item, ...]] = {}  # the data sets they were read from


@source("arrays")
class Arrays(Source):
    """Samples the caller holds, as arrays or data sets of torch; made with `Arrays.hold`."""

    key: str = param(..., "fingerprint of the samples, as given by Arrays.hold")
    classes: Classes = param(None, "how many classes there are, or their names; by default those found")
    tokens: bool = param(False, "whether samples are token ids: whole numbers [N, length], 0 for padding")
    background: Background = background_of_masks()
    live: bool | None = param(
        None,
        "whether items of data sets that change at random are read anew each epoch; false takes what was read once",
    )

    @classmethod
    def hold(
        cls,
        x: Any,
        y: Any,
        x_test: Any = None,
        y_test: Any = None,
        users: Sequence[Any] | np.ndarray | None = None,
        users_test: Sequence[Any] | np.ndarray | None = None,
        class_names: Sequence[str] | None = None,
        **settings: Any,
    ) -> "Arrays":
        """Keep these arrays and describe them; the same arrays always get the same key.

        Images are uint8 [N, H, W] or [N, H, W, C]; anything else is float32 [N, ...] with channels first, taken as it
        is. Labels are numbers from 0 on, or words. `users` names the user of every training row, and `users_test` of
        every test row. Settings are those of every source (limit, size, augment). Large arrays are not copied: leave
        them as they are while a run uses them.
        """
        if class_names is not None:
            settings["classes"] = tuple(class_names)
        return cls.hold_found(
            gathered(cls.name, parts_of(x, y, x_test, y_test, users=users, users_test=users_test)), **settings
        )

    @classmethod
    def hold_found(cls, found: Found, **settings: Any) -> "Arrays":
        """Keep what was found and describe it."""
        key = _fingerprint(found)
        _held[key], _items[key] = found, found.items
        return cls(key=key, **settings)

    @property
    def natural_partition(self) -> str:
        """By user where the samples came with users."""
        held = _held.get(self.key)
        return "users" if held is not None and held.users is not None else super().natural_partition

    def load(self) -> Dataset:
        found = self._found()
        if self.live:
            _check_items(found.items)
        if self.live is None and found.moving:
            raise UsageError(
                f"{found.moving} changes at random when it is read again: leave that to data.augment, or say "
                "data.live=true (read anew each epoch) or data.live=false (taken as it was read once)"
            )
        made = found.dataset(self.name, self.classes, None if self.size == "auto" else self.size)
        return as_tokens(made) if self.tokens else made

    def reader(self) -> Callable[[int], np.ndarray] | None:
        if not self.live:
            return None
        items = _items[self.key]

        def read(row: int) -> np.ndarray:
            at = bisect_right(items, row, key=lambda item: item.first) - 1
            return as_array(items[at].data[items[at].item + row - items[at].first][0])

        return read

    def _found(self) -> Found:
        if self.key not in _held:
            raise DataError(f"the arrays of this run ({self.key}) were given as Python objects; pass them again")
        return _held[self.key]


def items_of(key: str) -> tuple[Item, ...]:
    """The data sets behind samples that are held, for a process that has to read them anew."""
    return _items[key]


def give_items(key: str, items: tuple[Item, ...]) -> None:
    """Have the data sets of another process here."""
    _items[key] = items


def _check_items(items: tuple[Item, ...]) -> None:
    """Each item is the same whenever the global generators are: a key decides what is read."""
    if not items:
        raise UsageError("data.live=true reads items of data sets anew, and here there are arrays, which do not change")
    for item in items:
        read = []
        for _ in range(2):
            with rng.seeded(0, "reading"):
                read.append(as_array(item.data[item.item][0]))
        if not np.array_equal(*read):
            raise UsageError(
                "data.live=true: a data set draws from a generator of its own, so no seed decides what is read; let it "
                "draw from the global generators of torch, numpy or Python, or say data.live=false"
            )


def as_array(value: Any) -> Any:
    """Tensors and pictures as arrays."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy()
    if hasattr(value, "convert") and hasattr(value, "mode"):  # a picture of Pillow's
        return pixels(value)
    return value if value is None or isinstance(value, str) else np.asarray(value)


def parts_of(
    x: Any,
    y: Any,
    x_test: Any = None,
    y_test: Any = None,
    *,
    users: Any = None,
    users_test: Any = None,
    where: str = "",
) -> list[Part]:
    """Training arrays, and test arrays where there are any; `where` says whose they are."""
    if (x_test is None) != (y_test is None):
        raise DataError("arrays: x_test and y_test must be given together")
    if x_test is None and users_test is not None and not isinstance(users_test, str):
        raise DataError("arrays: users_test names the users of test samples, and there are none")
    given = [("x", x, "y", y, users, False), ("x_test", x_test, "y_test", y_test, users_test, True)]
    of = f" of {where}" if where else ""
    return [
        _part(f"{a}{of}", rows, f"{b}{of}", labels, *rest) for a, rows, b, labels, *rest in given if rows is not None
    ]


def _part(name: str, x: Any, labels: str, y: Any, users: Any, test: bool) -> Part:
    part = Part(name, as_samples(x, name), as_labels(y, labels), users, test)
    if len(part.x) != len(part.y):
        raise DataError(f"{name}: {len(part.x)} samples but {len(part.y)} labels")
    return part


def _fingerprint(found: Found) -> str:
    digest = hashlib.blake2b(digest_size=8)
    pieces = [found.x] if isinstance(found.x, np.ndarray) else found.x
    for array in (*pieces, found.y, found.users):
        if array is not None:
            digest.update(f"{array.dtype}{array.shape}".encode())
            whole = np.ascontiguousarray(array)
            digest.update(whole.tobytes() if whole.dtype.kind == "U" else whole.data)
    digest.update(repr((found.train, found.user_names)).encode())
    return digest.hexdigest()
