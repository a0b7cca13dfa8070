"""CIFAR-10 and CIFAR-100 in their official binary version; the pickled one is never opened."""

from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from polyfed.data.sources.base import Dataset, Numbers, Source, broken, find, source
from polyfed.registry import param

PIXELS = 3 * 32 * 32
MEAN: Numbers = tuple(255 * m for m in (0.4914, 0.4822, 0.4465))
STD: Numbers = tuple(255 * s for s in (0.2023, 0.1994, 0.2010))
TEN = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


class Cifar(Source):
    """Files of fixed-length records: label bytes, then 1024 red, green and blue bytes."""

    files: ClassVar[dict[str, int]] = {}  # records in every file; the last file is the test part
    label_bytes: ClassVar[int] = 1
    folder: ClassVar[str] = ""
    pickled: ClassVar[tuple[str, str]] = ("", "")

    def load(self) -> Dataset:
        folders = [self.home() / self.folder, self.home()]  # what `data get` brings goes before what was there
        self._refuse_pickles(self.home())
        n, at = sum(self.files.values()), 0
        x, y = np.empty((n, 32, 32, 3), np.uint8), np.empty(n, np.int64)
        for file, count in self.files.items():
            path = find(self.name, folders, file)
            x[at : at + count], y[at : at + count] = read_records(
                path, self.label_bytes, count, self.name, self.label_at
            )
            at += count
        train = n - count
        return Dataset(self.name, x, y, train, self.label_names(path.parent), MEAN, STD)

    @property
    def label_at(self) -> int:
        """Which of a record's label bytes is the label; the last one."""
        return self.label_bytes - 1

    def label_names(self, folder: Path) -> tuple[str, ...]:
        """What the classes are called."""
        return TEN

    def _refuse_pickles(self, home: Path) -> None:
        folder, file = self.pickled
        first = next(iter(self.files))
        if any((home / f / first).is_file() for f in ("", self.folder)):
            return
        for place in (home, home / folder):
            if (place / file).is_file():
                what = "holds only the pickled (Python) version, which could execute code; the binary one is needed"
                raise broken(self.name, place, what)


@source("cifar10", paper="Krizhevsky 2009")
class Cifar10(Cifar):
    """Small photographs of ten kinds, 50000 + 10000."""

    files = {**{f"data_batch_{i}.bin": 10_000 for i in range(1, 6)}, "test_batch.bin": 10_000}
    folder = "cifar-10-batches-bin"
    pickled = ("cifar-10-batches-py", "data_batch_1")


@source("cifar100", paper="Krizhevsky 2009")
class Cifar100(Cifar):
    """Small photographs of a hundred kinds, or of their twenty superclasses, 50000 + 10000."""

    files = {"train.bin": 50_000, "test.bin": 10_000}
    label_bytes = 2  # coarse, fine
    folder = "cifar-100-binary"
    pickled = ("cifar-100-python", "train")

    labels: Literal["fine", "coarse"] = param("fine", "fine: the hundred classes; coarse: the twenty superclasses")

    @property
    def label_at(self) -> int:
        """The coarse label comes before the fine one."""
        return 0 if self.labels == "coarse" else 1

    def label_names(self, folder: Path) -> tuple[str, ...]:
        file, many = folder / f"{self.labels}_label_names.txt", 20 if self.labels == "coarse" else 100
        words = file.read_text(encoding="utf-8").split() if file.is_file() else []
        return tuple(words) if len(words) == many else tuple(str(c) for c in range(many))


def read_records(
    path: Path, label_bytes: int, count: int, name: str, label_at: int = -1
) -> tuple[np.ndarray, np.ndarray]:
    """Images [n, 32, 32, 3] and one label byte of every record, by default the last."""
    length = label_bytes + PIXELS
    try:
        raw = np.fromfile(path, np.uint8)
    except OSError as error:
        raise broken(name, path, f"cannot be read ({error})") from None
    if len(raw) != count * length:
        what = f"is damaged: {len(raw)} bytes where {count} records of {length} bytes were expected"
        raise broken(name, path, what)
    records = raw.reshape(count, length)
    images = records[:, label_bytes:].reshape(count, 3, 32, 32).transpose(0, 2, 3, 1)
    return images, records[:, range(label_bytes)[label_at]].astype(np.int64)
