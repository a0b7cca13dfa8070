"""The same classes seen in several ways: photographs and drawings, digits of several makers."""

import bz2
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from polyfed.data.sources.base import Dataset, Size, Source, find, misplaced, source
from polyfed.data.sources.folder import files_in
from polyfed.data.sources.idx import Mnist
from polyfed.data.sources.pictures import IMAGES, read_coloured
from polyfed.data.sources.raw import in_colour, pixel_statistics, resized
from polyfed.errors import DataError
from polyfed.registry import param

SIDE = 32  # of the digits


class Domains(Source):
    """Samples that come with their domains."""

    @property
    def natural_partition(self) -> str:
        """Every domain is cut into the same number of clients."""
        return "domains"


class DomainFolders(Domains):
    """DOMAIN/CLASS/*.jpg or *.png; every domain has the same classes, and there is no official test."""

    of_pictures: ClassVar[bool] = True
    domains: ClassVar[tuple[str, ...]] = ()
    folder: ClassVar[str] = ""
    classes: ClassVar[int] = 0

    size: Size = param(
        64, "side (or [H, W]) to which images are resized; auto: they stay as they are, and must have one size"
    )

    def load(self) -> Dataset:
        top = self._top()
        names = self._class_names(top)
        files, y, domains, skipped = list[Path](), list[int](), list[int](), 0
        for d, domain in enumerate(self.domains):
            for c, kind in enumerate(names):
                some, others = files_in(top / domain / kind, IMAGES)
                files, y, domains = files + some, y + [c] * len(some), domains + [d] * len(some)
                skipped += others
        x = read_coloured(self.name, files, None if self.size == "auto" else self.size)
        notes = {"files_skipped": skipped} if skipped else {}
        of: dict[str, Any] = {"domains": np.array(domains, np.int64), "domain_names": self.domains, "notes": notes}
        return Dataset(self.name, x, np.array(y, np.int64), len(y), names, **of, unscaled=True)

    def _top(self) -> Path:
        for place in (self.home() / self.folder, self.home()):
            if (place / self.domains[0]).is_dir():
                return place
        raise self._misplaced(self.home() / self.domains[0], "is no folder")

    def _class_names(self, top: Path) -> tuple[str, ...]:
        """The class folders' names, sorted; every domain has them all."""
        found: tuple[str, ...] = ()
        for domain in self.domains:
            if not (top / domain).is_dir():
                raise self._misplaced(top / domain, "is no folder")
            here = tuple(sorted(p.name for p in (top / domain).iterdir() if p.is_dir() and p.name[0] != "."))
            if not here:
                raise self._misplaced(top / domain, "holds no class folder")
            if found and here != found:
                odd = min(set(here) ^ set(found))
                raise self._misplaced(top / domain, f"and {top / self.domains[0]} do not both have the class '{odd}'")
            found = here
        return found

    def _misplaced(self, path: Path, what: str) -> DataError:
        layout = f"the folders {', '.join(self.domains)}, each with its {self.classes} class folders of images"
        return misplaced(self.name, path, what, layout)


@source("pacs", paper="Li et al. 2017")
class Pacs(DomainFolders):
    """9991 photographs, paintings, cartoons and sketches of 7 kinds; domains are the four styles."""

    domains = ("photo", "art_painting", "cartoon", "sketch")
    folder, classes = "PACS", 7


@source("office-home", paper="Venkateswara et al. 2017")
class OfficeHome(DomainFolders):
    """About 15500 pictures of 65 everyday objects; domains are Art, Clipart, Product and Real World."""

    domains = ("Art", "Clipart", "Product", "Real World")
    folder, classes = "OfficeHomeDataset_10072016", 65


@source("digits3")
class Digits3(Domains):
    """Digits of MNIST, MNIST-M and USPS at 32 x 32 in colour; each domain has its own official test."""

    def load(self) -> Dataset:
        readers = {"mnist": self._mnist, "mnist-m": self._mnist_m, "usps": self._usps}
        parts = [(test, d, *read(test)) for test in (False, True) for d, read in enumerate(readers.values())]
        x = np.concatenate([part[2] for part in parts])
        y = np.concatenate([part[3] for part in parts])
        domains = np.concatenate([np.full(len(part[3]), part[1]) for part in parts])
        train = sum(len(part[3]) for part in parts if not part[0])
        names, mean, std = tuple(map(str, range(10))), *pixel_statistics(x[:train])
        return Dataset(self.name, x, y, train, names, mean, std, None, (), domains, tuple(readers))

    def _mnist(self, test: bool) -> tuple[np.ndarray, np.ndarray]:
        """MNIST's idx files in the folder mnist, padded by two pixels on every side."""
        folder = self.home() / "mnist"
        data = Mnist(root=folder if self.root is not None or folder.is_dir() else None).load()
        rows = slice(data.train, None) if test else slice(data.train)
        return _padded(data.x[rows]), data.y[rows]

    def _mnist_m(self, test: bool) -> tuple[np.ndarray, np.ndarray]:
        """The pictures and lists of the authors' release: a line is a file's name and its digit."""
        part = "mnist_m_test" if test else "mnist_m_train"
        places = [self.home() / "mnist_m", self.home()]
        place = next((place for place in places if (place / f"{part}_labels.txt").is_file()), None)
        if place is None:
            layout = f"{part}_labels.txt, with lines 'FILE.png DIGIT', and the pictures in {part}"
            raise misplaced(self.name, places[0] / f"{part}_labels.txt", "is missing", layout)
        listed = place / f"{part}_labels.txt"
        lines = [line.split() for line in listed.read_text(encoding="utf-8").splitlines() if line.strip()]
        if any(len(line) != 2 or not line[1].isdecimal() for line in lines):
            raise misplaced(self.name, listed, "is damaged", "lines 'FILE.png DIGIT'")
        x = read_coloured(self.name, [place / part / file for file, _ in lines], SIDE)
        return x, np.array([int(digit) for _, digit in lines], np.int64)

    def _usps(self, test: bool) -> tuple[np.ndarray, np.ndarray]:
        """The libsvm files usps and usps.t, packed or not: 256 numbers from -1 to 1, labels from 1 on."""
        stem = "usps.t" if test else "usps"
        file = find_by_hand(self.name, [self.home() / "usps", self.home()], stem)
        try:
            text = (bz2.decompress(file.read_bytes()) if file.suffix == ".bz2" else file.read_bytes()).decode("ascii")
            lines = [line.split() for line in text.splitlines() if line.strip()]
            y = np.array([int(float(line[0])) - 1 for line in lines], np.int64)
            x = np.zeros((len(lines), 256), np.float32)
            for row, line in zip(x, lines, strict=True):
                for cell in line[1:]:
                    at, value = cell.split(":")
                    row[int(at) - 1] = (float(value) + 1) / 2
        except (OSError, ValueError, IndexError) as error:
            raise misplaced(
                self.name, file, f"is damaged ({error})", "libsvm lines 'LABEL 1:VALUE ... 256:VALUE'"
            ) from None
        pixels = np.rint(255 * x.clip(0, 1)).astype(np.uint8).reshape(-1, 16, 16, 1)
        return _padded(resized(pixels, 28)), y


def find_by_hand(name: str, folders: list[Path], file: str) -> Path:
    """A file, packed by bzip2 or not, that the user has placed."""
    try:
        return find(name, folders, file, "", ".bz2")
    except DataError:
        layout = "usps.bz2 and usps.t.bz2 of the libsvm data sets, in a folder usps"
        raise misplaced(name, folders[0] / f"{file}.bz2", "is missing", layout) from None


def _padded(images: np.ndarray) -> np.ndarray:
    """28 x 28 grey pictures in the middle of 32 x 32 coloured ones."""
    return in_colour(np.pad(images, ((0, 0), (2, 2), (2, 2), (0, 0))), 3)
