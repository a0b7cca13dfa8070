"""Tiny pictures with masks, made by hand."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polyfed.data.sources.arrays import Arrays

HIGH, WIDE, CLASSES = 12, 16, 3


def scenes(count: int = 15, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Pictures of upright bars of three classes, one bright colour each, and a first line without labels."""
    rng = np.random.default_rng(seed)
    masks = np.repeat(rng.integers(0, CLASSES, (count, 1, 4)), 4, axis=2).repeat(HIGH, axis=1).astype(np.uint8)
    pictures = rng.integers(0, 60, (count, HIGH, WIDE, 3)) + 180 * np.eye(3, dtype=int)[masks]
    masks[:, 0] = 255
    return pictures.astype(np.uint8), masks


def source(count: int = 12, tests: int = 3, **settings: Any) -> Arrays:
    """The same as a source, with an official test part."""
    x, y = scenes(count + tests)
    return Arrays.hold(x[:count], y[:count], x[count:], y[count:], **settings)


def settings(**more: Any) -> dict[str, Any]:
    """A small run on them."""
    return {
        "data": source(), "model": "lraspp-small", "rounds": 2, "split.partition": "class-folders", "split.beta": 2,
        "split.test": 0.25, "train.batch": 4, "engine.workers": 0, **more,
    }  # fmt: skip


def folders(root: Path, sites: Sequence[str], count: int = 6) -> Path:
    """A folder of images and one of masks for each site."""
    for k, site in enumerate(sites):
        x, y = scenes(count, seed=k)
        for row in range(count):
            picture(root / site / "images" / f"{row}.png", x[row])
            picture(root / site / "masks" / f"{row}.png", y[row])
    return root


def picture(path: Path, pixels: np.ndarray) -> None:
    """Write a picture or a mask."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
