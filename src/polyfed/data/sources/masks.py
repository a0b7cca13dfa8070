"""Masks: how often every class is in an image, the folders that follow from it, and how masks are read and resized."""

from pathlib import Path

import numpy as np

from polyfed.data.samples import VOID
from polyfed.data.sources.pictures import read_image, resized_image
from polyfed.data.sources.raw import Side, sides
from polyfed.errors import DataError
from polyfed.files import plain_file


def class_pixels(masks: np.ndarray, classes: int) -> np.ndarray:
    """How many pixels of every class each mask has: [N, C]."""
    return value_pixels(masks)[:, :classes]


def value_pixels(masks: np.ndarray) -> np.ndarray:
    """How many pixels of each of the 256 values each mask has: [N, 256]."""
    return np.stack([np.bincount(mask.ravel(), minlength=256) for mask in masks])


def unknown_value(values: np.ndarray, classes: int) -> tuple[int, str] | None:
    """The first mask that holds a value which is no class, by its pixels of each value, and what is wrong with it."""
    strange = np.argwhere(values[:, classes:VOID])
    if not len(strange):
        return None
    row, above = strange[0].tolist()
    return row, f"holds {classes + above}, expected 0 to {classes - 1}, or {VOID} for no label"


def by_pixels(pixels: np.ndarray) -> np.ndarray:
    """The classes, those with most pixels first."""
    return np.argsort(-pixels.sum(0), kind="stable")


def folders(pixels: np.ndarray, order: np.ndarray) -> np.ndarray:
    """One class for every image: each class takes its share of the images that show most of it, the rarest first.

    FedSeg (Miao et al. 2023) sorted its images into folders by hand; this is a rule for any set. A share is an n-th of
    the images, one more for the most frequent classes where that leaves some over; of two alike the first is taken.
    """
    count, classes = pixels.shape
    made = np.full(count, -1)
    shares = pixels / np.maximum(pixels.sum(1, keepdims=True), 1)
    for place in reversed(range(classes)):
        quota = count // classes + (place < count % classes)
        free = np.flatnonzero(made < 0)
        best = free[np.argsort(-shares[free, order[place]], kind="stable")]
        made[best[:quota]] = order[place]
    return made


def resized_masks(masks: np.ndarray, side: Side) -> np.ndarray:
    """Masks [N, H, W] at another size, each pixel the nearest one's."""
    down, across = (
        ((np.arange(new) + 0.5) * old / new).astype(np.int64)
        for new, old in zip(sides(side), masks.shape[1:], strict=True)
    )
    return np.ascontiguousarray(masks[:, down][:, :, across])


def read_pair(image: Path, mask: Path, side: Side | None) -> tuple[np.ndarray, np.ndarray]:
    """A picture [H, W, C], resized if a side is given, and its mask as it is; both must have been of one size."""
    picture, labels = read_image(image, None), read_mask(mask)
    if picture.shape[:2] != labels.shape:
        sizes = [f"{one.shape[1]} x {one.shape[0]}" for one in (picture, labels)]
        raise DataError(f"{image} has {sizes[0]} pixels, and its mask {mask} {sizes[1]}: they must be of one size")
    return resized_image(picture, side), labels


def read_mask(file: Path) -> np.ndarray:
    """One mask as uint8 [H, W]: the pixel values of a grey or palette picture are classes."""
    from PIL import Image

    try:
        with Image.open(plain_file(file)) as picture:
            mode, mask = picture.mode, np.array(picture)
    except Exception as error:  # Pillow raises what its decoders raise
        raise DataError(f"{file} is not a readable mask: {error}") from None
    if mode not in ("L", "P", "I;16", "I") or mask.ndim != 2 or mask.min() < 0 or mask.max() > VOID:
        raise DataError(f"{file} is no mask: expected a grey or palette picture whose pixel values are classes")
    return mask.astype(np.uint8)
