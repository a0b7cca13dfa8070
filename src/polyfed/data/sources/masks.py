"""Masks: how often every class is in an image, the folders that follow from it, and how masks are read and resized."""

from pathlib import Path

import numpy as np

from polyfed.data.samples import VOID
from polyfed.data.sources.raw import Side, sides
from polyfed.errors import DataError
from polyfed.files import plain_file


def class_pixels(masks: np.ndarray, classes: int) -> np.ndarray:
    """How many pixels of every class each mask has: [N, C]."""
    return np.stack([np.bincount(mask.ravel(), minlength=256)[:classes] for mask in masks])


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
