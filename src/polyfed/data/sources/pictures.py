"""Pictures as arrays of pixels."""

from pathlib import Path
from typing import Any

import numpy as np

from polyfed.data.sources.raw import Side, sides
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
