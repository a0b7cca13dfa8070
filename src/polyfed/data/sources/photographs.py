"""Small photographs and house numbers: Tiny ImageNet, CINIC-10 and SVHN in their official layouts."""

from pathlib import Path
from typing import ClassVar

import numpy as np

from polyfed.data.sources.base import Dataset, Source, broken, find, source
from polyfed.data.sources.cifar import TEN
from polyfed.data.sources.folder import files_in
from polyfed.data.sources.pictures import IMAGES, read_coloured
from polyfed.data.sources.raw import pixel_statistics
from polyfed.files import plain_file
from polyfed.registry import param

Listed = tuple[list[Path], list[int]]  # files of pictures, and the class of each


class Photographs(Source):
    """Pictures in class folders, in an official training and test part."""

    of_pictures: ClassVar[bool] = True

    def gathered(self, parts: tuple[Listed, Listed], names: tuple[str, ...], skipped: int = 0) -> Dataset:
        """Both parts read into one array."""
        (files, y), (test_files, test_y) = parts
        x = read_coloured(self.name, [*files, *test_files], None if self.size == "auto" else self.size)
        mean, std = pixel_statistics(x[: len(y)])
        notes = {"files_skipped": skipped} if skipped else {}
        return Dataset(self.name, x, np.array([*y, *test_y], np.int64), len(y), names, mean, std, notes=notes)


@source("tiny-imagenet", paper="Le and Yang 2015")
class TinyImageNet(Photographs):
    """64 x 64 photographs of 200 kinds, 100000 + 10000; the official validation part is the test."""

    def load(self) -> Dataset:
        file = find(self.name, [self.home() / "tiny-imagenet-200", self.home()], "wnids.txt")
        top, ids = file.parent, tuple(file.read_text(encoding="utf-8").split())
        train, skipped = self._training(top, ids)
        return self.gathered((train, self._validation(top, ids)), self._words(top, ids), skipped)

    def _training(self, top: Path, ids: tuple[str, ...]) -> tuple[Listed, int]:
        files, y, skipped = list[Path](), list[int](), 0
        for c, name in enumerate(ids):
            folder = top / "train" / name / "images"
            if not folder.is_dir():
                raise broken(self.name, folder, "is missing")
            some, others = files_in(folder, IMAGES)
            files, y, skipped = files + some, y + [c] * len(some), skipped + others
        if not files:
            raise broken(self.name, top / "train", "holds no picture")
        return (files, y), skipped

    def _validation(self, top: Path, ids: tuple[str, ...]) -> Listed:
        """A line of the list is a file, its class and a box."""
        listed = find(self.name, [top / "val"], "val_annotations.txt")
        place = {name: c for c, name in enumerate(ids)}
        lines = [line.split() for line in listed.read_text(encoding="utf-8").splitlines() if line.strip()]
        if any(len(line) < 2 or line[1] not in place for line in lines):
            raise broken(self.name, listed, "is damaged: a line names no class of wnids.txt")
        return [listed.parent / "images" / line[0] for line in lines], [place[line[1]] for line in lines]

    def _words(self, top: Path, ids: tuple[str, ...]) -> tuple[str, ...]:
        """What the classes are called: the first word for each, or its id."""
        file = top / "words.txt"
        lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
        words = dict(line.split("\t", 1) for line in lines if "\t" in line)
        return tuple(words.get(name, name).split(",")[0] for name in ids)


@source("cinic10", paper="Darlow et al. 2018")
class Cinic10(Photographs):
    """32 x 32 photographs of CIFAR-10's ten kinds out of ImageNet and CIFAR-10, 90000 + 90000."""

    valid: bool = param(False, "whether the 90000 pictures of the official validation part are trained on too")

    def load(self) -> Dataset:
        tops = [self.home() / "CINIC-10", self.home()]
        top = next((top for top in tops if (top / "train").is_dir()), None)
        if top is None:
            raise broken(self.name, self.home() / "train", "is missing")
        parts, skipped = [], 0
        for folders in (("train", "valid") if self.valid else ("train",), ("test",)):
            files, y = list[Path](), list[int]()
            for folder in (top / part / name for part in folders for name in TEN):
                if not folder.is_dir():
                    raise broken(self.name, folder, "is missing")
                some, others = files_in(folder, IMAGES)
                files, y, skipped = files + some, y + [TEN.index(folder.name)] * len(some), skipped + others
            if not files:
                raise broken(self.name, top / folders[0], "holds no picture")
            parts.append((files, y))
        return self.gathered((parts[0], parts[1]), TEN, skipped)


@source("svhn", paper="Netzer et al. 2011")
class Svhn(Source):
    """32 x 32 digits of house numbers, cropped, 73257 + 26032."""

    def load(self) -> Dataset:
        parts = [self._part(part) for part in ("train", "test")]
        x, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        train = len(parts[0][1])
        return Dataset(self.name, x, y, train, tuple(map(str, range(10))), *pixel_statistics(x[:train]))

    def _part(self, part: str) -> tuple[np.ndarray, np.ndarray]:
        """A file of MATLAB's version 5: X [32, 32, 3, N], and y from 1 to 10, where 10 is the digit 0."""
        from scipy.io import loadmat

        file = find(self.name, [self.home()], f"{part}_32x32.mat")
        try:
            found = loadmat(plain_file(file), variable_names=["X", "y"])
            x, y = found["X"], found["y"].reshape(-1).astype(np.int64)
        except Exception as error:  # scipy, zlib and the file system each have their own
            raise broken(self.name, file, f"is not a readable .mat file with X and y ({error})") from None
        if x.dtype != np.uint8 or x.shape != (32, 32, 3, len(y)):
            what = f"is damaged: {x.dtype} {list(x.shape)} where uint8 {[32, 32, 3, len(y)]} were expected"
            raise broken(self.name, file, what)
        return np.ascontiguousarray(x.transpose(3, 0, 1, 2)), np.where(y == 10, 0, y)
