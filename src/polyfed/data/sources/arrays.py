"""Samples given from Python, kept in this process so that their description stays plain data."""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from polyfed.data.sources.base import Dataset, Source, source
from polyfed.data.sources.raw import as_labels, as_samples, numbered, pixel_statistics
from polyfed.errors import DataError
from polyfed.registry import param

_held: dict[str, Dataset] = {}


@source("arrays")
class Arrays(Source):
    """Arrays the caller holds; made with `Arrays.hold`."""

    key: str = param(..., "fingerprint of the arrays, as given by Arrays.hold")

    @classmethod
    def hold(
        cls,
        x: Any,
        y: Any,
        x_test: Any = None,
        y_test: Any = None,
        users: Sequence[Any] | np.ndarray | None = None,
        class_names: Sequence[str] | None = None,
        **settings: Any,
    ) -> "Arrays":
        """Keep these arrays and describe them; the same arrays always get the same key.

        Images are uint8 [N, H, W] or [N, H, W, C]; anything else is float32 [N, ...] with channels first, taken as it
        is. `users` names the user of every training row. Settings are those of every source (limit, size, augment).
        Large arrays are not copied: leave them as they are while a run uses them.
        """
        dataset = _dataset(x, y, x_test, y_test, users, class_names)
        key = _fingerprint(dataset)
        _held[key] = dataset
        return cls(key=key, **settings)

    @property
    def natural_partition(self) -> str:
        """By user where the arrays came with users."""
        held = _held.get(self.key)
        return "users" if held is not None and held.users is not None else super().natural_partition

    def load(self) -> Dataset:
        if self.key not in _held:
            raise DataError(f"the arrays of this run ({self.key}) were given as Python objects; pass them again")
        return _held[self.key]


def _dataset(x: Any, y: Any, x_test: Any, y_test: Any, users: Any, class_names: Sequence[str] | None) -> Dataset:
    rows, labels = as_samples(x, "x"), as_labels(y, "y")
    if len(rows) != len(labels):
        raise DataError(f"arrays: {len(rows)} samples but {len(labels)} labels")
    train = len(labels)
    mean, std = pixel_statistics(rows) if rows.dtype == np.uint8 else (None, None)
    if (x_test is None) != (y_test is None):
        raise DataError("arrays: x_test and y_test must be given together")
    if x_test is not None:
        rows, labels = _with_test(rows, labels, as_samples(x_test, "x_test"), as_labels(y_test, "y_test"))
    names = tuple(class_names) if class_names else tuple(map(str, numbered([labels], "arrays")))
    ids, user_names = _users(users, train, len(labels))
    return Dataset("arrays", rows, labels, train, names, mean, std, ids, user_names)


def _with_test(x: np.ndarray, y: np.ndarray, x_test: np.ndarray, y_test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if x.shape[1:] != x_test.shape[1:] or x.dtype != x_test.dtype:
        here, there = (f"{one.dtype} {list(one.shape[1:])}" for one in (x, x_test))
        raise DataError(f"arrays: training samples are {here}, test samples {there}")
    if len(x_test) != len(y_test):
        raise DataError(f"arrays: {len(x_test)} test samples but {len(y_test)} test labels")
    return np.concatenate([x, x_test]), np.concatenate([y, y_test])


def _users(users: Any, train: int, total: int) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """The user of every row; official test rows are nobody's."""
    if users is None:
        return None, ()
    known, ids = np.unique(np.asarray(users), return_inverse=True)
    if len(ids) != train:
        raise DataError(f"arrays: {train} training samples but {len(ids)} users")
    return np.concatenate([ids, np.full(total - train, -1)]), tuple(map(str, known))


def _fingerprint(data: Dataset) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for array in (data.x, data.y, data.users):
        if array is not None:
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
    digest.update(repr((data.train, data.class_names, data.user_names)).encode())
    return digest.hexdigest()
