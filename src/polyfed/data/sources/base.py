"""What every source gives: a Dataset, checked in one place, loaded once per process."""

import json
import os
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from polyfed.data.fields import Kind, size_or_auto
from polyfed.data.samples import BACKGROUND
from polyfed.data.sources.masks import by_pixels, class_pixels, folders, unknown_value, value_pixels
from polyfed.data.sources.raw import Numbers
from polyfed.errors import DataError
from polyfed.registry import Registry, Spec, param

TABLES = (".csv", ".parquet")  # endings of files with a row per sample


@dataclass(frozen=True, eq=False)
class Dataset:
    """All samples of a source: official training rows first, then official test rows.

    Images are uint8 [N, H, W, C], tokens int64 [N, length] with 0 for padding, anything else float32 with channels
    first; mean and std are per channel in raw units; users and domains are places in their tuples of names, or -1
    for nobody. Test rows that have a user are that user's own test (or domain's, where a split goes by domain);
    where `pooled_users` is true, splitting by user takes both alike. Where samples are `incomplete`, a missing
    value is NaN, and is filled once the split is known. Where `y` is uint8 [N, H, W], it holds masks: a class for
    every pixel, or 255 for none.
    """

    name: str
    x: np.ndarray
    y: np.ndarray
    train: int
    class_names: tuple[str, ...]
    mean: Numbers | None = None
    std: Numbers | None = None
    users: np.ndarray | None = None
    user_names: tuple[str, ...] = ()
    domains: np.ndarray | None = None
    domain_names: tuple[str, ...] = ()
    pooled_users: bool = False
    notes: dict[str, int] = field(default_factory=dict)
    incomplete: bool = False
    unscaled: bool = False  # mean and std are still to come: from training rows alone, once the split is known
    corrupted: bool = False  # whether that was done to it already
    categories: tuple[int, ...] = ()  # how many categories each of the first columns has; the others are numbers
    reads: dict[str, Any] | None = None  # how new text or new rows of a table are read, as plain data
    columns: tuple[str, ...] = ()  # of numbers from tables: what they are called, in order
    pixels: np.ndarray | None = None  # of masks: each class's pixels before any resizing, [N, C]
    apart: bool = False  # of masks: whether every user's images are sorted into folders as if there were no others

    def __post_init__(self) -> None:
        complaint = _complaint(self)
        if complaint:
            raise DataError(f"{self.name}: {complaint}")

    @property
    def images(self) -> bool:
        """Whether x holds pixels."""
        return self.x.dtype == np.uint8

    @property
    def tokens(self) -> bool:
        """Whether x holds token ids."""
        return self.x.dtype == np.int64

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a sample, channels first."""
        rest = self.x.shape[1:]
        return (rest[-1], *rest[:-1]) if self.images else tuple(rest)

    @property
    def masks(self) -> bool:
        """Whether every pixel has a label of its own."""
        return self.y.ndim > 1

    @property
    def labels(self) -> np.ndarray:
        """What a split goes by: one class per row; of masks the folder that each image belongs to."""
        return self.y if self.folders is None else self.folders

    @cached_property
    def class_pixels(self) -> np.ndarray:
        """Of masks: how many pixels of every class each has, [N, C]."""
        return class_pixels(self.y, self.classes) if self.pixels is None else self.pixels

    @cached_property
    def order(self) -> np.ndarray:
        """The classes as a long tail goes by them: in label order, or those with most training pixels first."""
        return by_pixels(self.class_pixels[: self.train]) if self.masks else np.arange(self.classes)

    @cached_property
    def folders(self) -> np.ndarray | None:
        """Of masks: the class that each image shows best, equally many images each; training and test rows apart."""
        if not self.masks:
            return None
        made, tested = np.empty(len(self.y), np.int64), np.arange(len(self.y)) >= self.train
        users = self.users if self.apart and self.users is not None else np.zeros(len(self.y), np.int64)
        for user in np.unique(users):
            rows = np.flatnonzero(users == user)
            order = by_pixels(self.class_pixels[rows[~tested[rows]]]) if self.apart else self.order
            for part in (rows[~tested[rows]], rows[tested[rows]]):
                made[part] = folders(self.class_pixels[part], order)
        return made

    @property
    def classes(self) -> int:
        """How many classes there are, whether or not every one has samples."""
        return len(self.class_names)


def _complaint(data: Dataset) -> str:
    """What is wrong with a Dataset, or nothing."""
    n = len(data.x)
    if len(data.y) != n:
        return f"{n} samples but {len(data.y)} labels"
    if not n or not 0 <= data.train <= n:
        return f"{data.train} training samples among {n}"
    if data.tokens:
        return _strange_tokens(data) or _strange_labels(data) or _strange_owners(data)
    if data.x.dtype not in (np.uint8, np.float32) or (data.images and data.x.ndim != 4):
        return f"samples must be uint8 images [N, H, W, C] or float32, not {data.x.dtype} {list(data.x.shape)}"
    if data.masks:
        return _strange_masks(data)
    if strange_labels := _strange_labels(data):
        return strange_labels
    strange = np.isinf if data.incomplete else _not_finite
    if not data.images and strange(data.x).any():
        row = int(np.flatnonzero(strange(data.x.reshape(n, -1)).any(axis=1))[0])
        return f"row {row} holds a value that is not a finite number"
    return _strange_owners(data)


def _strange_labels(data: Dataset) -> str:
    low, high = int(data.y.min()), int(data.y.max())
    return (
        f"labels run from {low} to {high}, expected 0 to {data.classes - 1}" if low < 0 or high >= data.classes else ""
    )


def _strange_tokens(data: Dataset) -> str:
    if data.x.ndim != 2 or data.masks:
        return f"tokens must be int64 [N, length] with one label each, not {list(data.x.shape)}"
    return f"token ids are numbers from 0 (padding) on, and one is {data.x.min()}" if data.x.min() < 0 else ""


def _strange_masks(data: Dataset) -> str:
    if data.y.dtype != np.uint8 or not data.images or data.y.shape != data.x.shape[:3]:
        shapes = f"{data.y.dtype} {list(data.y.shape)} beside {data.x.dtype} {list(data.x.shape)}"
        return f"masks must be uint8 [N, H, W] beside uint8 images [N, H, W, C], not {shapes}"
    if data.classes > BACKGROUND:
        return f"masks can have at most {BACKGROUND} classes, not {data.classes}"
    strange = unknown_value(value_pixels(data.y), data.classes)
    return f"the mask of row {strange[0]} {strange[1]}" if strange else _strange_owners(data)


def _strange_owners(data: Dataset) -> str:
    n = len(data.x)
    return _strange_ids(data.users, data.user_names, n, "user") or _strange_ids(
        data.domains, data.domain_names, n, "domain"
    )


def _not_finite(x: np.ndarray) -> np.ndarray:
    return ~np.isfinite(x)


def _strange_ids(ids: np.ndarray | None, names: tuple[str, ...], n: int, what: str) -> str:
    if ids is None:
        return ""
    if len(ids) != n:
        return f"{n} samples but {len(ids)} {what} ids"
    return "" if ids.min() >= -1 and ids.max() < len(names) else f"a {what} id without a name"


Size = Annotated[int | tuple[int, int] | Literal["auto"], size_or_auto()]


def size_of_images(default: int | tuple[int, int] | Literal["auto"]) -> Any:
    """The parameter `size`, with a default of its own."""
    told = "side (or [H, W]) to which images are resized; auto: only where they are too small for the model"
    return param(default, told)


Background = Literal["merged", "ignore", "class"]


def background_of_masks() -> Any:
    """The parameter `background` of sources that may hold masks."""
    told = "pixels of classes a client does not own: merged into one background, left out, or a class of their own"
    return param("merged", told)


class Source(Spec):
    """A place samples come from."""

    of_pictures: ClassVar[bool] = False  # whether it reads pictures of any size, where data.size is given

    root: Path | None = param(None, "folder of its files; else $POLYFED_DATA/<name>, else ~/.cache/polyfed/<name>")
    limit: int | None = param(None, "training samples kept per class", ge=1)
    size: Size = size_of_images("auto")
    augment: Literal["none", "flip", "crop", "crop+flip"] = param("none", "random changes to training images")
    corrupt: Kind = param("none", "a kind of corruption of images, or a family (or any) to draw kinds from")
    corrupt_severity: int = param(3, "how badly: 0 not at all, 5 most", ge=0, le=5)
    corrupt_by: Literal["sample", "client"] = param("sample", "who draws a kind of the family: each sample or client")
    corrupt_on: Literal["all", "train", "test"] = param("all", "which samples are corrupted")

    @property
    def natural_partition(self) -> str:
        """The partition where the config names none: `users` where samples come with their users."""
        return "dirichlet"

    def load(self) -> Dataset:
        """Read all samples."""
        raise TypeError(f"{type(self).__name__} must say how it is loaded")

    def reader(self) -> Callable[[int], np.ndarray] | None:
        """What reads the sample of a training row anew, where each epoch is to read them anew."""
        return None

    def home(self) -> Path:
        """The folder its files belong in."""
        if self.root is not None:
            return self.root.expanduser()
        above = os.environ.get("POLYFED_DATA")
        return (Path(above) if above else Path("~/.cache/polyfed")).expanduser() / self.name


class AtSites(Source):
    """A source that a site of a real federation can read alone, from a folder of its own."""

    def of_one(self, folder: Path) -> Dataset:
        """The samples of one client, which lie in its folder."""
        raise TypeError(f"{type(self).__name__} must say what a site reads")


class Sources(Registry):
    """All sources; a table of samples may be named by its file."""

    def get(self, name: str) -> type[Spec]:
        """The source of that name; a table's is the manifest."""
        return super().get("manifest" if _is_table(name) else name)

    def build(self, section: Any, path: str) -> Any:
        """A source from its section; `data=sites.csv` is short for the manifest of that file."""
        name = section.get("name") if isinstance(section, dict) else section
        if _is_table(name):
            others = section if isinstance(section, dict) else {}
            section = {**others, "name": "manifest", "file": str(name)}
        return super().build(section, path)


def _is_table(name: Any) -> bool:
    return isinstance(name, str | Path) and Path(name).suffix.lower() in TABLES


sources = Sources("data", "polyfed.data.sources", Source)
source = sources.register

_loaded: OrderedDict[str, Dataset] = OrderedDict()
KEPT = 2  # data sets are large


def load_cached(wanted: Source) -> Dataset:
    """The samples of a source; the last few are kept, so that one process reads the same files once."""
    later = ("limit", "augment", *(field for field in Source.model_fields if field.startswith("corrupt")))
    settings = {k: v for k, v in wanted.dump().items() if k not in later}  # these change nothing that is read
    key = json.dumps([settings, str(wanted.home())])  # in their order: columns of categories have one
    if key not in _loaded:
        _loaded[key] = wanted.load()
        while len(_loaded) > KEPT:
            _loaded.popitem(last=False)
    _loaded.move_to_end(key)
    return _loaded[key]


def broken(name: str, path: Path, what: str) -> DataError:
    """A file that is missing, truncated or foreign, what was expected, and the way out."""
    return DataError(f"{name}: {path} {what}; `polyfed data get {name}` brings it")


def misplaced(name: str, path: Path, what: str, layout: str) -> DataError:
    """The same for files that nobody but the user can bring: what was expected, and where."""
    return DataError(f"{name}: {path} {what}; expected there: {layout}")


def find(name: str, folders: list[Path], file: str, *endings: str) -> Path:
    """The first of these folders that holds the file, with one of the endings."""
    for folder in folders:
        for ending in endings or ("",):
            if (folder / f"{file}{ending}").is_file():
                return folder / f"{file}{ending}"
    raise broken(name, folders[0] / file, "is missing")
