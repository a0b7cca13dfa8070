"""Small data and a stand-in for the config's split section."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from polyfed.data.partition import Iid, Partition
from polyfed.data.sources.base import Dataset

EQUAL = Iid()


@dataclass(frozen=True)
class Wish:
    """What config.split will say."""

    partition: Partition = EQUAL
    clients: int | None = 4
    longtail: float = 1.0
    test: Any = 0.2
    val: float = 0.0
    heldout: int = 0
    public: int = 0
    seed: int | None = None


@pytest.fixture(scope="session")
def wish() -> type[Wish]:
    return Wish


@pytest.fixture(scope="session")
def labelled() -> Callable[..., Dataset]:
    """A data set of which only the labels matter."""

    def make(train: Any, test: Any = (), **more: Any) -> Dataset:
        y = np.concatenate([np.asarray(train, np.int64), np.asarray(test, np.int64)])
        x = np.arange(len(y), dtype=np.float32)[:, None]
        names = tuple(str(c) for c in range(int(y.max()) + 1))
        return Dataset("toy", x, y, len(train), names, **more)

    return make
