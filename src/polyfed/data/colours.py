"""Masks as pictures: a colour for every class, and palette PNG files whose pixel values are classes."""

import colorsys
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from polyfed.data.samples import VOID
from polyfed.data.sources.streets import CAMVID, CITYSCAPES

if TYPE_CHECKING:
    from PIL.Image import Image

Colours = tuple[tuple[int, int, int], ...]
CAMVID_COLOURS: Colours = (
    (128, 128, 128), (128, 0, 0), (192, 192, 128), (128, 64, 128), (60, 40, 222), (128, 128, 0), (192, 128, 128),
    (64, 64, 128), (64, 0, 128), (64, 64, 0), (0, 128, 192),
)  # fmt: skip
CITYSCAPES_COLOURS: Colours = (
    (128, 64, 128), (244, 35, 232), (70, 70, 70), (102, 102, 156), (190, 153, 153), (153, 153, 153), (250, 170, 30),
    (220, 220, 0), (107, 142, 35), (152, 251, 152), (70, 130, 180), (220, 20, 60), (255, 0, 0), (0, 0, 142), (0, 0, 70),
    (0, 60, 100), (0, 80, 100), (0, 0, 230), (119, 11, 32),
)  # fmt: skip
KNOWN = {CAMVID: CAMVID_COLOURS, tuple(CITYSCAPES.values()): CITYSCAPES_COLOURS}


def colours(class_names: Sequence[str]) -> np.ndarray:
    """A colour for every class [C, 3]: the data set's own where it is known, else hues far apart."""
    known = KNOWN.get(tuple(class_names))
    if known is not None:
        return np.array(known, np.uint8)
    hues = [colorsys.hsv_to_rgb(k * 0.618 % 1, 0.65, 0.9) for k in range(len(class_names))]
    return np.rint(255 * np.array(hues)).astype(np.uint8).reshape(-1, 3)


def palette(class_names: Sequence[str]) -> np.ndarray:
    """A colour for each of the 256 values of a mask [256, 3]; what is no class, or has no label, is black."""
    made = np.zeros((VOID + 1, 3), np.uint8)
    made[: len(class_names)] = colours(class_names)
    return made


def mask_png(mask: np.ndarray, class_names: Sequence[str]) -> bytes:
    """A mask [H, W] as a palette PNG: pixel values are classes, and a viewer shows their colours."""
    from PIL import Image

    image = Image.fromarray(mask.astype(np.uint8))
    image.putpalette(palette(class_names).tobytes())
    return _png(image)


def picture_png(picture: np.ndarray) -> bytes:
    """A picture [H, W, C] of one or three channels as a PNG."""
    from PIL import Image

    return _png(Image.fromarray(picture[..., 0] if picture.shape[-1] == 1 else picture))


def rgba_png(picture: np.ndarray) -> bytes:
    """A picture [H, W, 4] whose last channel says how much is seen, as a PNG."""
    from PIL import Image

    return _png(Image.fromarray(picture))


def _png(image: "Image") -> bytes:
    content = io.BytesIO()
    image.save(content, format="PNG")
    return content.getvalue()
