"""A folder with one sub-folder per client: arrays in .npz files, or images in one folder per class."""

from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field

from polyfed.data.sources.base import Dataset, Source, source
from polyfed.data.sources.raw import MOST_CLASSES, numbered, pixel_statistics, read_arrays
from polyfed.errors import DataError
from polyfed.files import plain_file
from polyfed.registry import param

IMAGES = (".png", ".jpg", ".jpeg")


class Found(NamedTuple):
    """What one file holds, and whose it is."""

    file: Path
    client: int
    x: np.ndarray
    y: np.ndarray


@source("folder")
class Folder(Source):
    """Users (and domains) are the sub-folders; classes are the union of the class folders, sorted, or the labels."""

    root: Path = param(..., "folder with one sub-folder per client: .npz files (x, y) or class folders of png or jpg")

    classes: Annotated[int, Field(ge=1, le=MOST_CLASSES)] | tuple[str, ...] | None = param(
        None, "how many classes there are, or their names; by default those found"
    )

    @property
    def natural_partition(self) -> str:
        """One folder, one client."""
        return "users"

    def load(self) -> Dataset:
        return self._read(_subfolders(self.home(), "one sub-folder per client"))

    def of_one(self, folder: Path) -> Dataset:
        """The samples of one client's folder alone: what a site of a federation sees."""
        if not folder.is_dir() or not any(_visible(path) for path in folder.iterdir()):
            raise DataError(f"{self.name}: {folder} must hold .npz files (x, y) or class folders of images")
        return self._read([folder])

    def _read(self, clients: list[Path]) -> Dataset:
        of_arrays = any(path.suffix == ".npz" for client in clients for path in client.iterdir())
        found, class_names, skipped = (self._arrays if of_arrays else self._images)(clients)
        for client, folder in enumerate(clients):
            if not any(item.client == client and len(item.y) for item in found):
                raise DataError(f"{self.name}: the client folder {folder} holds no samples")
        _same_shape(self.name, found)
        x, y = np.concatenate([item.x for item in found]), np.concatenate([item.y for item in found])
        mean, std = pixel_statistics(x) if x.dtype == np.uint8 else (None, None)
        users = np.concatenate([np.full(len(item.y), item.client) for item in found])
        names = tuple(client.name for client in clients)
        notes = {"files_skipped": skipped} if skipped else {}
        return Dataset(self.name, x, y, len(y), class_names, mean, std, users, names, users, names, notes=notes)

    def _images(self, clients: list[Path]) -> "Contents":
        """Every image of every class folder of every client."""
        side = None if self.size == "auto" else self.size
        per_client = [_subfolders(client, "class folders of images, or .npz files") for client in clients]
        class_names = self._names(sorted({folder.name for folders in per_client for folder in folders}))
        found, skipped = [], 0
        for client, folders in enumerate(per_client):
            for folder in folders:
                label = np.array([class_names.index(folder.name)])
                files, others = files_in(folder, IMAGES)
                found += [Found(file, client, read_image(file, side)[None], label) for file in files]
                skipped += others
        channels = max((item.x.shape[3] for item in found), default=1)
        return [item._replace(x=in_colour(item.x, channels)) for item in found], tuple(class_names), skipped

    def _arrays(self, clients: list[Path]) -> "Contents":
        """Every .npz file of every client."""
        found, skipped = [], 0
        for client, folder in enumerate(clients):
            files, others = files_in(folder, (".npz",))
            found += [Found(file, client, *read_arrays(file)) for file in files]
            skipped += others
        named = range(self.classes) if isinstance(self.classes, int) else self.classes
        names = named or numbered([item.y for item in found], self.name)
        return found, tuple(map(str, names)), skipped

    def _names(self, found: list[str]) -> list[str]:
        """The class folders' names, or those that were declared."""
        if self.classes is None or self.classes == len(found):
            return found
        strange = [name for name in found if isinstance(self.classes, int) or name not in self.classes]
        if strange:
            raise DataError(f"{self.name}: there is a class folder '{strange[0]}', but data.classes={self.classes!r}")
        return list(self.classes)  # type: ignore[arg-type]


Contents = tuple[list[Found], tuple[str, ...], int]


def read_image(file: Path, side: int | None) -> np.ndarray:
    """One picture as uint8 [H, W, C], grey or in colour, resized to a square if a side is given."""
    from PIL import Image

    try:
        with Image.open(plain_file(file)) as picture:
            plain = picture.convert("L" if picture.mode in ("1", "L") else "RGB")
            if side is not None and plain.size != (side, side):
                plain = plain.resize((side, side), Image.Resampling.BILINEAR)
            array = np.asarray(plain)
    except Exception as error:  # Pillow raises what its decoders raise
        raise DataError(f"{file} is not a readable image: {error}") from None
    return array[..., None] if array.ndim == 2 else array


def in_colour(image: np.ndarray, channels: int) -> np.ndarray:
    """A grey picture among coloured ones gets their channels."""
    return image if image.shape[3] == channels else np.repeat(image, channels, axis=3)


def _subfolders(folder: Path, expected: str) -> list[Path]:
    inside = sorted(path for path in folder.iterdir() if _visible(path)) if folder.is_dir() else []
    folders = [path for path in inside if path.is_dir()]
    if not folders:
        raise DataError(f"folder: {folder} must hold {expected}; there are none")
    return folders


def files_in(folder: Path, endings: tuple[str, ...]) -> tuple[list[Path], int]:
    """The files with these endings, and how many other ones there are."""
    inside = sorted(path for path in folder.iterdir() if _visible(path))
    wanted = [path for path in inside if path.suffix.lower() in endings]
    return wanted, len(inside) - len(wanted)


def _visible(path: Path) -> bool:
    return not path.name.startswith(".")


def _same_shape(name: str, found: list[Found]) -> None:
    first = found[0]
    for item in found:
        if item.x.shape[1:] != first.x.shape[1:] or item.x.dtype != first.x.dtype:
            here, there = (f"{one.x.dtype} {list(one.x.shape[1:])}" for one in (item, first))
            cure = "; data.size gives all images one side" if item.file.suffix != ".npz" else ""
            raise DataError(f"{name}: the samples of {item.file} are {here}, those of {first.file} {there}{cure}")
