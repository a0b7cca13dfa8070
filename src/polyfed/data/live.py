"""Training samples that are read anew whenever a batch asks for them: their random transforms are drawn anew."""

import itertools
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from polyfed import rng
from polyfed.data.federation import Federation
from polyfed.data.sources.raw import as_samples, in_colour, resized
from polyfed.errors import DataError

Reader = Callable[[int], np.ndarray]  # a row of the data set -> its sample, as it is read now
Anew = Callable[[Tensor], Tensor]  # rows of the pool -> what the model eats


def reading_anew(read: Reader, federation: Federation, *key: int) -> Anew:
    """Reads rows of one piece of work; every item has a key of its own, whoever reads it and wherever."""
    pool, like = federation.pool, federation.as_trained.x
    batches = itertools.count()

    def anew(rows: Tensor) -> Tensor:
        batch, made = next(batches), []
        for place, row in enumerate(rows.tolist()):
            with rng.seeded(key[0], "live", *key[1:], batch, place):
                made.append(_shaped(read(row), like, row))
        x = torch.from_numpy(np.concatenate(made))
        x = x.permute(0, 3, 1, 2) if federation.dataset.images else x
        return pool.prepare(x.to(pool.x.device))

    return anew


def _shaped(item: np.ndarray, like: np.ndarray, row: int) -> np.ndarray:
    """A sample as the others are; pictures are brought to their size and colours."""
    x = as_samples(item[None], f"item of row {row}")
    if x.dtype == like.dtype == np.uint8 and x.ndim == like.ndim:
        _, height, width, channels = like.shape
        x = in_colour(x, channels)
        if x.shape[1:3] != (height, width):
            x = resized(x, (height, width))
    if x.shape[1:] != like.shape[1:] or x.dtype != like.dtype:
        found, before = (f"{one.dtype} {list(one.shape[1:])}" for one in (x, like))
        raise DataError(f"the sample of row {row} is {found} when it is read anew, and was {before} before")
    return x
