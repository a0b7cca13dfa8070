"""Pictures as arrays of pixels."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polyfed.data.sources.raw import Side, in_colour, sides
from polyfed.errors import DataError
from polyfed.files import plain_file

IMAGES = (".png", ".jpg", ".jpeg")


def read_image(file: Path, side: Side | None) -> np.ndarray:
    """One picture as uint8 [H, W, C], grey or in colour, resized if a side, or height and width, is given."""
    from PIL import Image

    try:
        with Image.open(plain_file(file)) as picture:
            return pixels(picture, side)
    except Exception as error:  # Pillow raises what its decoders raise
        raise DataError(f"{file} is not a readable image: {error}") from None


def pixels(picture: Any, side: Side | None = None) -> np.ndarray:
    """The same of an open picture of Pillow's."""
    from PIL import Image

    plain = picture.convert("L" if picture.mode in ("1", "L") else "RGB")
    if side is not None and plain.size != sides(side)[::-1]:
        plain = plain.resize(sides(side)[::-1], Image.Resampling.BILINEAR)
    array = np.array(plain)
    return array[..., None] if array.ndim == 2 else array


def resized_image(image: np.ndarray, side: Side | None) -> np.ndarray:
    """The same of a picture [H, W, C] that was read at its own size."""
    from PIL import Image

    return pixels(Image.fromarray(image[..., 0] if image.shape[2] == 1 else image), side)


def read_coloured(name: str, files: Sequence[Path], side: Side | None) -> np.ndarray:
    """Pictures as uint8 [N, H, W, 3], read one by one into one array; grey ones get their channels."""
    if not files:
        return np.empty((0, *sides(side or 0), 3), np.uint8)
    first = read_image(files[0], side)
    made = np.empty((len(files), *first.shape[:2], 3), np.uint8)
    for at, file in enumerate(files):
        picture = first if at == 0 else read_image(file, side)
        if picture.shape[:2] != first.shape[:2]:
            sizes = " and ".join(f"{one.shape[1]} x {one.shape[0]}" for one in (first, picture))
            raise DataError(f"{name}: {files[0]} and {file} have {sizes} pixels; data.size=N gives all images one side")
        made[at] = in_colour(picture[None], 3)[0]
    return made
