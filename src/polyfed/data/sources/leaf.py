"""LEAF's JSON files: natural clients by the thousand, read file by file and kept as arrays for the next time."""

import hashlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from polyfed.data.sources.base import Dataset, Source, misplaced, source
from polyfed.data.sources.raw import pixel_statistics
from polyfed.data.sources.unpack import install
from polyfed.errors import DataError
from polyfed.files import plain_file

SIDE = 28
LAYOUT = "LEAF's JSON files in data/train and data/test, or in data/all_data (users, user_data with x and y)"
NAMES = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
KEPT = ".polyfed-arrays"  # where the arrays of the last reading lie


class Labels(NamedTuple):
    """All but the pixels: classes, the place of each row's user among the names, and how many rows are training."""

    y: np.ndarray
    users: np.ndarray
    names: np.ndarray
    train: np.ndarray


@source("femnist", paper="Caldas et al. 2018")
class Femnist(Source):
    """Handwritten characters of 62 kinds; users are the writers (3550 in all), and test rows are their writers' own."""

    @property
    def natural_partition(self) -> str:
        """One writer, one client."""
        return "users"

    def load(self) -> Dataset:
        files = self._files()
        kept = self.home() / KEPT / _fingerprint(self.home(), [file for file, _ in files])
        if not (kept / "labels.npz").is_file():
            try:
                return self._made(files, kept)
            except OSError:  # the folder cannot be written: it is read anew each time
                with tempfile.TemporaryDirectory() as spare:
                    return self._made(files, Path(spare) / "made")
        return self._dataset(kept)

    def _files(self) -> list[tuple[Path, bool]]:
        """The JSON files and whether they are tests, training files first."""
        for top in (self.home() / "data", self.home()):
            train, test = (sorted((top / part).glob("*.json")) for part in ("train", "test"))
            if train:
                return [*((file, False) for file in train), *((file, True) for file in test)]
            if everything := sorted((top / "all_data").glob("*.json")):
                return [(file, False) for file in everything]
        raise misplaced(self.name, self.home(), "holds no JSON file", LAYOUT)

    def _made(self, files: list[tuple[Path, bool]], kept: Path) -> Dataset:
        """Read one file at a time; pixels go to the disk at once, so that memory stays flat."""
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent, prefix=".making-") as made:
            folder = Path(made) / "whole"
            folder.mkdir()
            labels = self._write(files, folder / "images.bin")
            np.savez(folder / "labels.npz", **labels._asdict())
            install(folder, kept)
        return self._dataset(kept)

    def _write(self, files: list[tuple[Path, bool]], target: Path) -> Labels:
        place, y, users, train = dict[str, int](), [], [], 0
        with target.open("wb") as pixels:
            for file, test in files:
                for writer, rows, classes in self._read(file):
                    pixels.write(rows.tobytes())
                    y.append(classes)
                    users.append(np.full(len(classes), place.setdefault(writer, len(place))))
                    train += 0 if test else len(classes)
        if not y:
            raise misplaced(self.name, self.home(), "holds no sample", LAYOUT)
        return Labels(np.concatenate(y), np.concatenate(users), np.array(list(place), str), np.array(train))

    def _read(self, file: Path) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        """A writer's name, pixels and classes after the other."""
        try:
            found = json.loads(plain_file(file).read_bytes())
            writers = [(str(user), found["user_data"][user]) for user in found["users"]]
            for writer, data in writers:
                rows, classes = _pixels(data["x"]), np.array(data["y"], np.int64)
                if classes.shape != (len(rows),):
                    raise ValueError(f"writer '{writer}' has {len(rows)} samples but {classes.size} labels")
                yield writer, rows, classes
        except (OSError, ValueError, KeyError, TypeError) as error:
            why = f"has no '{error.args[0]}'" if isinstance(error, KeyError) else f"is damaged ({error})"
            raise misplaced(self.name, file, why, LAYOUT) from None

    def _dataset(self, kept: Path) -> Dataset:
        with np.load(kept / "labels.npz", allow_pickle=False) as file:
            labels = Labels(*(file[field] for field in Labels._fields))
        x = np.fromfile(kept / "images.bin", np.uint8)
        if len(x) != len(labels.y) * SIDE * SIDE:
            raise DataError(f"{self.name}: {kept} is damaged; delete that folder, and the JSON files are read again")
        x, train = x.reshape(-1, SIDE, SIDE, 1), int(labels.train)
        mean, std = pixel_statistics(x[:train])
        names = tuple(labels.names.tolist())
        return Dataset(self.name, x, labels.y, train, NAMES, mean, std, labels.users, names)


def _pixels(x: Any) -> np.ndarray:
    """Rows of 784 numbers from 0 to 1 as bytes."""
    rows = np.array(x, np.float32).reshape(len(x), -1)
    if rows.shape[1:] != (SIDE * SIDE,) and len(x):
        raise ValueError(f"samples have {rows.shape[1]} numbers where {SIDE * SIDE} were expected")
    if not (rows.min(initial=0) >= 0 and rows.max(initial=0) <= 1):
        raise ValueError("a pixel is not a number from 0 to 1")
    return np.rint(255 * rows).astype(np.uint8)


def _fingerprint(home: Path, files: list[Path]) -> str:
    """What tells one state of the files from another: their names, sizes and times."""
    digest = hashlib.blake2b(digest_size=8)
    for file in files:
        known = file.stat()
        digest.update(f"{file.relative_to(home)}/{known.st_size}/{known.st_mtime_ns};".encode())
    return digest.hexdigest()
