"""Arrays of unknown origin made into what a Dataset holds."""

import warnings
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch.nn import functional

from polyfed.data.samples import VOID
from polyfed.errors import DataError
from polyfed.files import plain_file

MOST_CLASSES = 100_000
FEW_CLASSES = 20  # so many are believed, however few samples there are
CHUNK = 2048  # images resized at a time
Numbers = tuple[float, ...]
Side = int | tuple[int, int]  # of images: a square's, or height and width
Classes = Annotated[int, Field(ge=1, le=MOST_CLASSES)] | tuple[str, ...] | None  # how many, their names, or those found


def as_samples(x: Any, where: str) -> np.ndarray:
    """uint8 [N, H, W] or [N, H, W, C] as images, any other numbers as float32 with their channels first."""
    array = np.asarray(x)
    if array.dtype.kind not in "uifb" or array.ndim < 2:
        raise DataError(f"{where}: samples must be an array of numbers [N, ...], not {array.dtype} {list(array.shape)}")
    if array.dtype != np.uint8 or array.ndim not in (3, 4):
        _channels_first(array, where)
        return np.ascontiguousarray(array, np.float32)
    if array.ndim == 3:
        array = array[..., None]
    if array.shape[3] > 4 and array.shape[1] in (1, 3):
        raise DataError(f"{where}: uint8 images are [N, H, W, C], but {list(array.shape)} looks like [N, C, H, W]")
    return np.ascontiguousarray(array)


def _channels_first(array: np.ndarray, where: str) -> None:
    """Numbers have their channels first; square images with colours last are somebody's slip."""
    if array.ndim == 4 and array.shape[3] in (1, 3, 4) and array.shape[1] == array.shape[2] > 4:
        raise DataError(
            f"{where}: {array.dtype} {list(array.shape)} looks like images [N, H, W, C], and numbers have their "
            "channels first [N, C, H, W]: transpose them with x.transpose(0, 3, 1, 2), or give uint8 [N, H, W, C]"
        )


def as_labels(y: Any, where: str) -> np.ndarray:
    """Whole numbers or words, one per sample; or masks, uint8 [N, H, W]."""
    array = np.asarray(y)
    if array.dtype == np.uint8 and array.ndim == 3:
        return array
    if array.dtype.kind == "O" and array.ndim == 1 and all(isinstance(label, str) for label in array):
        array = array.astype(str)
    if array.dtype.kind not in "uibUT" or array.ndim != 1:
        wanted = "masks must be uint8 [N, H, W]" if array.ndim == 3 else "labels must be whole numbers or words [N]"
        raise DataError(f"{where}: {wanted}, not {array.dtype} {list(array.shape)}")
    return array.astype(str if array.dtype.kind in "UT" else np.int64)


def class_names_of(y: np.ndarray, classes: Classes, where: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Labels as places among the names of classes, which are declared, or else those of the labels."""
    if y.ndim > 1:
        return y, mask_names(y, classes)
    if y.dtype.kind == "U":
        return _named(y, classes, where)
    if isinstance(classes, tuple):
        return y, classes
    most = int(y.max(initial=0)) + 1
    if classes is None and _too_many(most, len(y)):
        confirm = f", or confirm with data.classes={most}" if most <= MOST_CLASSES else ""
        raise DataError(
            f"{where}: labels up to {most - 1} make {most} classes of {len(y)} samples, and {len(np.unique(y))} of "
            f"them occur: renumber them from 0 on with np.unique(y, return_inverse=True)[1]{confirm}"
        )
    if classes is None and most > MOST_CLASSES:
        raise DataError(
            f"{where}: a label is {most - 1}, and there can be at most {MOST_CLASSES} classes: renumber them"
        )
    return y, tuple(map(str, range(most if classes is None else classes)))


def mask_names(masks: np.ndarray, classes: Classes) -> tuple[str, ...]:
    """The names of a mask's classes: declared, or the numbers up to the largest there is."""
    if isinstance(classes, tuple):
        return classes
    labels = masks[masks != VOID]
    return tuple(map(str, range(int(labels.max(initial=0)) + 1 if classes is None else classes)))


def _named(y: np.ndarray, classes: Classes, where: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Words as places among the declared names, or among all words, sorted."""
    found, ids = np.unique(y, return_inverse=True)
    if isinstance(classes, tuple):
        strange = [word for word in found.tolist() if word not in classes]
        if strange:
            raise DataError(f"{where}: there is a label '{strange[0]}', and data.classes does not name it")
        return np.array([classes.index(word) for word in found.tolist()])[ids], classes
    if classes is None and _too_many(len(found), len(y)):
        raise DataError(
            f"{where}: {len(y)} samples have {len(found)} different labels such as '{found[0]}': are these the "
            f"labels? Confirm with data.classes={len(found)}"
        )
    if classes is not None and classes != len(found):
        raise DataError(f"{where}: there are {len(found)} labels, but data.classes={classes}: give their names instead")
    return ids, tuple(found.tolist())


def _too_many(classes: int, samples: int) -> bool:
    return classes > max(FEW_CLASSES, samples / 10)


def read_arrays(path: Path) -> list[np.ndarray]:
    """x and y of an .npz file, and x_test and y_test where it has them; nothing in it can execute."""
    try:
        with np.load(plain_file(path), allow_pickle=False) as file:
            tested = "x_test" in file or "y_test" in file
            return [file[name] for name in ("x", "y", *(("x_test", "y_test") if tested else ()))]
    except KeyError:
        raise DataError(f"{path} must hold the arrays x and y, and may hold x_test and y_test") from None
    except Exception as error:  # zipfile, zlib, numpy and the file system each have their own
        raise DataError(f"{path} is not a readable .npz file of plain numbers: {error}") from None


def in_colour(images: np.ndarray, channels: int) -> np.ndarray:
    """Grey pictures among coloured ones get their channels."""
    return images if images.shape[3] == channels else np.repeat(images, channels, axis=3)


def sides(side: Side) -> tuple[int, int]:
    """Height and width."""
    return (side, side) if isinstance(side, int) else side


def resized(images: np.ndarray, side: Side) -> np.ndarray:
    """uint8 images [N, H, W, C] at another size, bilinear with anti-aliasing."""
    made = np.empty((len(images), *sides(side), images.shape[3]), np.uint8)
    for start in range(0, len(images), CHUNK):
        some = torch.from_numpy(images[start : start + CHUNK]).permute(0, 3, 1, 2).float()
        some = functional.interpolate(some, size=sides(side), mode="bilinear", antialias=True)
        made[start : start + CHUNK] = some.round_().clamp_(0, 255).byte().permute(0, 2, 3, 1).numpy()
    return made


def pixel_levels(images: np.ndarray) -> np.ndarray:
    """How often every channel takes each of the 256 values: [channel, value]."""
    return np.stack([np.bincount(images[..., c].ravel(), minlength=256) for c in range(images.shape[3])])


def pixel_statistics(images: np.ndarray) -> tuple[Numbers, Numbers]:
    """Mean and standard deviation of every channel, exactly, without a float copy of the images."""
    return statistics_of(pixel_levels(images))


def statistics_of(levels: np.ndarray) -> tuple[Numbers, Numbers]:
    """The same from pixel levels, which add up over places that do not show each other their images."""
    values = np.arange(256)
    means, stds = [], []
    for channel in levels:
        counts = channel / channel.sum()
        mean = float(counts @ values)
        means.append(mean)
        stds.append(float(np.sqrt(counts @ (values - mean) ** 2)) or 1.0)
    return tuple(means), tuple(stds)


def channel_statistics(rows: np.ndarray) -> tuple[Numbers, Numbers]:
    """Mean and standard deviation of every channel of [N, C, ...] numbers; missing ones (NaN) do not count.

    A channel without any number has the mean 0.
    """
    axes = (0, *range(2, rows.ndim))
    mean_of, std_of = (np.nanmean, np.nanstd) if np.isnan(rows).any() else (np.mean, np.std)
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # that a channel has none
        mean = np.nan_to_num(mean_of(rows, axes, dtype=np.float64))
        std = np.asarray(std_of(rows, axes, dtype=np.float64))
    return tuple(mean.tolist()), tuple(np.where(std > 0, std, 1.0).tolist())
