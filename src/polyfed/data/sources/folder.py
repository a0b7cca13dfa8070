"""A folder with one sub-folder per client: arrays in .npz files, tables, or images in one folder per class."""

from dataclasses import replace
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from polyfed.data.samples import BACKGROUND, VOID
from polyfed.data.sources.arrays import parts_of
from polyfed.data.sources.base import TABLES, AtSites, Background, Dataset, background_of_masks, source
from polyfed.data.sources.found import Part, gathered
from polyfed.data.sources.masks import read_pair, resized_masks, unknown_value, value_pixels
from polyfed.data.sources.pictures import IMAGES, read_image
from polyfed.data.sources.raw import Classes, Side, read_arrays
from polyfed.data.sources.tables import Table, same_columns
from polyfed.data.tokens import as_tokens
from polyfed.errors import DataError
from polyfed.registry import param

ROWS = (".npz", *TABLES)  # files that hold many samples
PAIR = ["images", "masks"]  # folders of pictures and of their masks, which have the same names
EXPECTED = (
    "class folders of images, folders images and masks, .npz files (x, y), or tables (.csv, .parquet) with a column "
    "label"
)


class Contents(NamedTuple):
    """What the clients' folders hold."""

    parts: list[Part]
    classes: Classes
    skipped: int  # files
    pixels: np.ndarray | None = None  # of masks: each class's pixels before any resizing, [N, C]
    columns: tuple[str, ...] = ()  # of numbers, where tables name them


@source("folder")
class Folder(AtSites):
    """Users (and domains) are the sub-folders; classes are the union of the class folders, sorted, or the labels."""

    of_pictures: ClassVar[bool] = True

    root: Path = param(..., f"folder with one sub-folder per client: {EXPECTED}")

    classes: Classes = param(None, "how many classes there are, or their names; by default those found")
    tokens: bool = param(False, "whether samples are token ids: whole numbers [N, length], 0 for padding")
    background: Background = background_of_masks()

    normalise: bool = param(
        False, "numbers less their mean, by their spread, over all clients' training rows; a deployed site's own"
    )

    @property
    def natural_partition(self) -> str:
        """One folder, one client."""
        return "users"

    def load(self) -> Dataset:
        clients = _subfolders(self.home(), "one sub-folder per client")
        return self._read(clients, _files_beside(self.home()))

    def of_one(self, folder: Path) -> Dataset:
        if not folder.is_dir() or not any(_visible(path) for path in folder.iterdir()):
            raise DataError(f"{self.name}: {folder} must hold {EXPECTED}")
        return self._read([folder])

    def _read(self, clients: list[Path], beside: int = 0) -> Dataset:
        """The clients' samples; `beside` files lie next to their folders."""
        of_rows = any(path.suffix.lower() in ROWS for client in clients for path in client.iterdir())
        side = None if self.size == "auto" else self.size
        of_masks = any(_is_pair(client) for client in clients)
        read = self._rows if of_rows else self._masks if of_masks else self._images
        parts, classes, skipped, pixels, columns = read(clients, side)
        for folder in clients:
            if not any(part.users == folder.name for part in parts if len(part.y)):
                raise DataError(f"{self.name}: the client folder {folder} holds no samples")
        found = gathered(self.name, parts, [client.name for client in clients])
        skipped += beside + (0 if of_rows else sum(map(_files_beside, clients)))
        notes = {"files_skipped": skipped} if skipped else {}
        made = found.dataset(self.name, classes, side, notes, pixels=pixels, columns=columns)
        if self.normalise and (made.images or self.tokens):
            raise DataError(f"{self.name}: data.normalise is for numbers, and here are {_what(made)}")
        return as_tokens(made) if self.tokens else replace(made, unscaled=self.normalise)

    def _images(self, clients: list[Path], side: Side | None) -> Contents:
        """Every image of every class folder of every client."""
        per_client = {client: _subfolders(client, EXPECTED) for client in clients}
        classes = self._names(sorted({folder.name for folders in per_client.values() for folder in folders}))
        parts, skipped = [], 0
        for client, folders in per_client.items():
            for folder in folders:
                label = np.array([folder.name])
                files, others = files_in(folder, IMAGES)
                parts += [Part(str(file), read_image(file, side)[None], label, client.name) for file in files]
                skipped += others
        return Contents(parts, classes, skipped)

    def _masks(self, clients: list[Path], side: Side | None) -> Contents:
        """Every picture of every client's folder images/, and the mask of that name in its folder masks/."""
        parts, values, skipped = [], [], 0
        for client in clients:
            if not _is_pair(client):
                raise DataError(f"{self.name}: {client} must hold the folders images and masks, like the other clients")
            images, others = files_in(client / "images", IMAGES)
            masks, strange = files_in(client / "masks", (".png",))
            by_name = {mask.stem: mask for mask in masks}
            for image in images:
                if image.stem not in by_name:
                    raise DataError(f"{self.name}: {image} has no mask; expected {client / 'masks' / image.stem}.png")
                x, mask = (one[None] for one in read_pair(image, by_name[image.stem], side))
                values.append(self._values(mask, str(by_name[image.stem])))
                mask = mask if side is None else resized_masks(mask, side)
                parts.append(Part(str(image), x, mask, client.name))
            skipped += others + strange + len(by_name.keys() - {image.stem for image in images})
        pixels = np.concatenate(values or [np.zeros((0, VOID))])[:, :VOID]
        found = int(np.flatnonzero(pixels.sum(0)).max(initial=0)) + 1
        classes = found if self.classes is None else self.classes
        return Contents(parts, classes, skipped, pixels[:, : _many(classes)])

    def _values(self, masks: np.ndarray, where: str) -> np.ndarray:
        """How many pixels of each value these masks have; one that is no class is refused."""
        values = value_pixels(masks)
        strange = unknown_value(values, BACKGROUND if self.classes is None else _many(self.classes))
        if strange:
            raise DataError(f"{self.name}: {where} {strange[1]}")
        return values

    def _rows(self, clients: list[Path], side: Side | None) -> Contents:
        """Every .npz file and table of every client; pictures that a table names lie beside it."""
        parts, skipped, columns = [], 0, dict[Path, tuple[str, ...]]()
        for client in clients:
            files, _ = files_in(client, ROWS)
            tables = {file: Table(file) for file in files if file.suffix.lower() in TABLES}
            columns |= {file: table.named for file, table in tables.items() if not table.of_pictures}
            for file in files:
                if file in tables:
                    parts += tables[file].parts(client, side, self.classes, client.name)
                else:
                    whose = {"users": client.name, "users_test": client.name, "where": str(file)}
                    parts += self._known(parts_of(*read_arrays(file), **whose))
            named = {file.name for file in files}.union(*(table.beside for table in tables.values()))
            skipped += sum(path.name not in named for path in client.iterdir() if _visible(path))
        return Contents(parts, self.classes, skipped, columns=same_columns(self.name, columns))

    def _known(self, parts: list[Part]) -> list[Part]:
        """The same, after every mask among them was looked through for values that are no class."""
        for part in parts:
            for row, mask in enumerate(part.y if part.y.ndim > 1 else ()):
                self._values(mask[None], f"{part.where}: the mask of row {row}")
        return parts

    def _names(self, found: list[str]) -> tuple[str, ...]:
        """The class folders' names, or those that were declared."""
        if self.classes is None or self.classes == len(found):
            return tuple(found)
        strange = [name for name in found if isinstance(self.classes, int) or name not in self.classes]
        if strange:
            raise DataError(f"{self.name}: there is a class folder '{strange[0]}', but data.classes={self.classes!r}")
        return self.classes  # type: ignore[return-value]


def _what(made: Dataset) -> str:
    return "pictures, which are always normalised" if made.images else "tokens"


def _many(classes: int | tuple[str, ...]) -> int:
    return classes if isinstance(classes, int) else len(classes)


def _subfolders(folder: Path, expected: str) -> list[Path]:
    if not folder.is_dir():
        raise DataError(f"folder: the folder {folder} does not exist; it must hold {expected}")
    inside = sorted(path for path in folder.iterdir() if _visible(path))
    folders = [path for path in inside if path.is_dir()]
    if not folders:
        raise DataError(f"folder: {folder} must hold {expected}; there are none")
    return folders


def _is_pair(client: Path) -> bool:
    return sorted(path.name for path in client.iterdir() if _visible(path) and path.is_dir()) == PAIR


def _files_beside(folder: Path) -> int:
    """How many files lie next to the folders in a folder; nobody reads them."""
    return sum(_visible(path) and not path.is_dir() for path in folder.iterdir())


def files_in(folder: Path, endings: tuple[str, ...]) -> tuple[list[Path], int]:
    """The files with these endings, and how many other ones there are."""
    inside = sorted(path for path in folder.iterdir() if _visible(path))
    wanted = [path for path in inside if path.suffix.lower() in endings]
    return wanted, len(inside) - len(wanted)


def _visible(path: Path) -> bool:
    return not path.name.startswith(".")
