"""Arrays of unknown origin made into what a Dataset holds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polyfed.data.sources.base import Numbers
from polyfed.errors import DataError
from polyfed.files import plain_file

MOST_CLASSES = 100_000


def as_samples(x: Any, where: str) -> np.ndarray:
    """uint8 [N, H, W] or [N, H, W, C] as images, any other numbers as float32."""
    array = np.asarray(x)
    if array.dtype.kind not in "uifb" or array.ndim < 2:
        raise DataError(f"{where}: samples must be an array of numbers [N, ...], not {array.dtype} {list(array.shape)}")
    if array.dtype != np.uint8 or array.ndim not in (3, 4):
        return np.ascontiguousarray(array, np.float32)
    if array.ndim == 3:
        array = array[..., None]
    if array.shape[3] > 4 and array.shape[1] in (1, 3):
        raise DataError(f"{where}: uint8 images are [N, H, W, C], but {list(array.shape)} looks like [N, C, H, W]")
    return np.ascontiguousarray(array)


def as_labels(y: Any, where: str) -> np.ndarray:
    """Whole numbers, one per sample."""
    array = np.asarray(y)
    if array.dtype.kind not in "uib" or array.ndim != 1:
        raise DataError(f"{where}: labels must be whole numbers [N], not {array.dtype} {list(array.shape)}")
    return array.astype(np.int64)


def numbered(labels: Sequence[np.ndarray], where: str) -> range:
    """The classes of labels that have no names: numbers from 0 on."""
    most = max((int(one.max(initial=0)) for one in labels), default=0) + 1
    if most > MOST_CLASSES:
        expected = f"labels are numbers from 0 on, of at most {MOST_CLASSES} classes: renumber them"
        raise DataError(f"{where}: a label is {most - 1}; {expected}")
    return range(most)


def read_arrays(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """x and y of an .npz file; nothing in it can execute."""
    try:
        with np.load(plain_file(path), allow_pickle=False) as file:
            x, y = file["x"], file["y"]
    except KeyError:
        raise DataError(f"{path} must hold the arrays x and y") from None
    except Exception as error:  # zipfile, zlib, numpy and the file system each have their own
        raise DataError(f"{path} is not a readable .npz file of plain numbers: {error}") from None
    x, y = as_samples(x, str(path)), as_labels(y, str(path))
    if len(x) != len(y):
        raise DataError(f"{path} holds {len(x)} samples but {len(y)} labels")
    return x, y


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
    """Mean and standard deviation of every channel of [N, C, ...] numbers."""
    axes = (0, *range(2, rows.ndim))
    mean, std = rows.mean(axes, dtype=np.float64), rows.std(axes, dtype=np.float64)
    return tuple(mean.tolist()), tuple(np.where(std > 0, std, 1.0).tolist())
