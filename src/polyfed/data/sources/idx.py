"""MNIST and Fashion-MNIST: idx files, gzipped or not."""

import gzip
import zlib
from pathlib import Path
from typing import ClassVar

import numpy as np

from polyfed.data.sources.base import Dataset, Numbers, Source, broken, find, misplaced, source
from polyfed.errors import DataError

UNSIGNED_BYTE = 8  # the code of the element type in an idx header


class Idx(Source):
    """Four idx files: images and labels of the training and the test part."""

    labels: ClassVar[tuple[str, ...]] = ()
    mean: ClassVar[Numbers] = ()
    std: ClassVar[Numbers] = ()

    def folders(self) -> list[Path]:
        """Where the files are looked for."""
        return [self.home()]

    def load(self) -> Dataset:
        parts = [self._part(stem) for stem in ("train", "t10k")]
        x, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        train = len(parts[0][1])
        mean, std = tuple(255 * m for m in self.mean), tuple(255 * s for s in self.std)
        users, names = self.writers()
        return Dataset(self.name, x[..., None], y, train, self.labels, mean, std, users, names)

    def writers(self) -> tuple[np.ndarray | None, tuple[str, ...]]:
        """Who made each sample, where that is known, and what they are called."""
        return None, ()

    def _part(self, stem: str) -> tuple[np.ndarray, np.ndarray]:
        image_file = find(self.name, self.folders(), f"{stem}-images-idx3-ubyte", "", ".gz")
        label_file = find(self.name, self.folders(), f"{stem}-labels-idx1-ubyte", "", ".gz")
        images, labels = read_idx(image_file, 3, self.name), read_idx(label_file, 1, self.name)
        if len(images) != len(labels):
            raise broken(self.name, image_file, f"holds {len(images)} images for {len(labels)} labels")
        return images, labels.astype(np.int64)


@source("mnist", paper="LeCun et al. 1998")
class Mnist(Idx):
    """Handwritten digits, 60000 + 10000; users are the writers if writers-{train,test}.npy lie beside the files."""

    labels = tuple(str(digit) for digit in range(10))
    mean, std = (0.1307,), (0.3081,)

    def writers(self) -> tuple[np.ndarray | None, tuple[str, ...]]:
        files = [self.home() / f"writers-{part}.npy" for part in ("train", "test")]
        if not all(file.is_file() for file in files):
            return None, ()
        try:
            numbers = np.concatenate([np.load(file, allow_pickle=False) for file in files])
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"{self.name}: {files[0].parent}/writers-*.npy cannot be read: {error}") from None
        known, users = np.unique(numbers, return_inverse=True)
        return users, tuple(map(str, known))


@source("mnist-writers", paper="LeCun et al. 1998")
class MnistWriters(Mnist):
    """MNIST by the hand that wrote it: 539 training writers are clients, 297 others wrote the global test."""

    sign: ClassVar[str] = "writers-train.npy"  # the file that shows whether they are here: MNIST alone is not enough

    @property
    def natural_partition(self) -> str:
        """One writer, one client."""
        return "users"

    def folders(self) -> list[Path]:
        return [self.home()] if self.root is not None else [self.home(), Mnist().home()]

    def writers(self) -> tuple[np.ndarray | None, tuple[str, ...]]:
        for folder in self.folders():
            found = Mnist(root=folder).writers()
            if found[0] is not None:
                return found
        layout = (
            "the four idx files of MNIST, and writers-train.npy and writers-test.npy with a writer's number per row"
        )
        raise misplaced(self.name, self.home() / "writers-train.npy", "is missing", layout)


@source("fashion-mnist", paper="Xiao et al. 2017")
class FashionMnist(Idx):
    """Articles of clothing, 60000 + 10000; Debian's package dataset-fashion-mnist will do."""

    labels = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
    mean, std = (0.2860,), (0.3530,)
    debian: ClassVar[Path] = Path("/usr/share/datasets/fashion-mnist")

    def folders(self) -> list[Path]:
        return [self.home()] if self.root is not None else [self.home(), self.debian]


def read_idx(path: Path, dims: int, name: str) -> np.ndarray:
    """The unsigned bytes of an idx file with that many dimensions."""
    raw = _content(path, name)
    header = 4 + 4 * dims
    if len(raw) < header or tuple(raw[:4]) != (0, 0, UNSIGNED_BYTE, dims):
        raise broken(name, path, f"is not an idx file of bytes with {dims} dimension(s)")
    shape = tuple(np.frombuffer(raw, ">i4", dims, offset=4).tolist())
    expected = header + int(np.prod(shape))
    if len(raw) != expected:
        raise broken(name, path, f"is damaged: {len(raw)} bytes where its header promises {expected}")
    return np.frombuffer(raw, np.uint8, offset=header).reshape(shape)


def _content(path: Path, name: str) -> bytes:
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise broken(name, path, f"cannot be read ({error})") from None
