"""What a spawned worker does not inherit from its parent: the samples, and objects that live in one process."""

from dataclasses import dataclass, fields
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch

from polyfed.config import Config
from polyfed.data.sources.arrays import Arrays, give_items, items_of
from polyfed.data.sources.base import Dataset
from polyfed.engine.local.channel import Reader, Writer, Written, unnamed_file
from polyfed.errors import UsageError
from polyfed.models.own import Held, give, given
from polyfed.registry import Spec, registries, specs_in

KEPT = 2  # data sets: while one is put here, a worker may still look at the one before it


@dataclass(frozen=True)
class Shelved:
    """A data set whose arrays lie on a shelf."""

    plain: dict[str, Any]
    arrays: Written


class Shelf:
    """Data sets that lie once in shared memory, for all workers of a crew."""

    def __init__(self) -> None:
        self._slate = Writer(unnamed_file())
        self._kept: list[tuple[Dataset, Shelved]] = []

    def put(self, dataset: Dataset) -> Shelved:
        """Lay a data set down, unless it lies here already."""
        for known, shelved in self._kept:
            if known is dataset:
                return shelved
        given = {each.name: getattr(dataset, each.name) for each in fields(dataset)}
        arrays = {name: value for name, value in given.items() if isinstance(value, np.ndarray)}
        plain = {name: value for name, value in given.items() if name not in arrays}
        written = self._slate.write({name: torch.from_numpy(array) for name, array in arrays.items()}, b"")
        self._kept.append((dataset, Shelved(plain, written)))
        while len(self._kept) > KEPT:
            self._slate.given_back(self._kept.pop(0)[1].arrays.start)
        return self._kept[-1][1]

    def reader(self) -> Reader:
        """The shelf as a worker sees it: what it writes there stays its own."""
        return Reader(self._slate.file, private=True)

    def close(self) -> None:
        """Give the memory back."""
        self._slate.close()


def taken(shelved: Shelved, shelf: Reader) -> Dataset:
    """A data set where it lies."""
    tensors, _ = shelf.read(shelved.arrays)
    arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in tensors.items()}
    return Dataset(**shelved.plain, **arrays)


# ---- objects


def objects_of(config: Config) -> bytes:
    """What a config names and a new process could not find: classes of the script itself, modules given as objects."""
    objects = {(spec.kind, spec.name): type(spec) for spec in specs_in(config) if not _found_by_name(spec)}
    modules = {spec.key: given(spec.key) for spec in specs_in(config) if isinstance(spec, Held)}
    data = config.data
    items = {data.key: items_of(data.key)} if isinstance(data, Arrays) and data.live else {}
    if not objects and not modules and not items:
        return b""
    for spec in objects.values():  # what lay around a class when it was made served to build it, and is not carried
        spec.__pydantic_parent_namespace__ = None
    from joblib import wrap_non_picklable_objects  # it has cloudpickle with it

    try:
        return bytes(ForkingPickler.dumps(wrap_non_picklable_objects((objects, modules, items), keep_wrapper=False)))
    except Exception as error:
        names = ", ".join([*(name for _, name in objects), *modules, *("the data set of data.live" for _ in items)])
        raise UsageError(
            f"{names}: a spawned worker cannot be given this object ({type(error).__name__}: {error}); "
            "put it into a file and name it by import path (file.py:Class), or set engine.workers=0"
        ) from error


def hold_objects(content: bytes) -> None:
    """Have the objects of another process here, under their names."""
    if content:
        objects, modules, items = ForkingPickler.loads(content)
        for (kind, name), spec in objects.items():
            registries[kind].hold(spec, name)
        for key, module in modules.items():
            give(key, module)
        for key, some in items.items():
            give_items(key, some)


def _found_by_name(spec: Spec) -> bool:
    """Whether its name leads a new process to its class: it is one of ours, or at an import path."""
    where, _, attribute = spec.name.rpartition(":")
    if not where:
        return type(spec).__module__.startswith("polyfed.")
    return where != "__main__" and not where.startswith("polyfed_user_") and "<locals>" not in attribute
