"""Small data and a stand-in for the config's split section."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyfed.data.partition import Iid, Partition
from polyfed.data.sources.base import Dataset

SHARED = Path(__file__).parents[2].parent / "shared" / "data"


@dataclass(frozen=True)
class Wish:
    """What config.split will say."""

    partition: Partition = Iid()
    clients: int | None = 4
    longtail: float = 1.0
    test: Any = 0.2
    val: float = 0.0
    heldout: int = 0
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


@pytest.fixture(scope="session")
def real_har(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """UCI HAR in its official layout."""
    if not (SHARED / "uci_har.npz").is_file():
        pytest.skip("skipped: no data")
    out = tmp_path_factory.mktemp("har")
    subprocess.run([sys.executable, SHARED / "unpack.py", out, "uci_har"], check=True, capture_output=True)
    return out
