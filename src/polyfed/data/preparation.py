"""How raw samples become what a model eats, as plain data that is shipped with the model."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import ValidationError, model_validator
from torch import Tensor

from polyfed.data.samples import scaled
from polyfed.data.sources.raw import Numbers, Side, resized, sides
from polyfed.errors import DataError, UsageError
from polyfed.files import read_plain
from polyfed.registry import Typed, contradiction


class Preparation(Typed):
    """What comes in (uint8 images [N, H, W, C], int64 tokens, or float32 rows) and what is done to it."""

    dtype: Literal["uint8", "int64", "float32"]
    shape: tuple[int, ...]  # of one raw sample
    resize: Side | None = None  # the side, or height and width, images are brought to
    any_size: bool = False  # whether image files may have any size: they are brought to `shape` when they are read
    mean: Numbers | None = None  # per channel, in raw units
    std: Numbers | None = None
    reads: dict[str, Any] | None = None  # how text becomes tokens, or words of a table numbers, as plain data

    @model_validator(mode="after")
    def _whole(self) -> "Preparation":
        if not self.shape or min(self.shape) < 1 or (self.images and len(self.shape) != 3):
            raise contradiction(f"no sample has the shape {list(self.shape)}")
        if any(v is not None and len(v) != self.model_shape[0] for v in (self.mean, self.std)):
            raise contradiction("mean and std need one number per channel")
        return self

    @property
    def images(self) -> bool:
        """Whether samples are pictures."""
        return self.dtype == "uint8"

    @property
    def tokens(self) -> bool:
        """Whether samples are token ids."""
        return self.dtype == "int64"

    @property
    def model_dtype(self) -> torch.dtype:
        """What the model eats."""
        return torch.int64 if self.tokens else torch.float32

    @property
    def model_shape(self) -> tuple[int, ...]:
        """The shape of one sample as the model sees it, channels first."""
        if not self.images:
            return self.shape
        height, width, channels = self.shape
        return (channels, height, width) if self.resize is None else (channels, *sides(self.resize))

    def tensor(self, x: Any, device: torch.device | None = None) -> Tensor:
        """Raw rows as what the model eats; rows of another shape or kind are refused."""
        rows = torch.from_numpy(self._pixels(np.asarray(x)) if self.images else self._numbers(np.asarray(x)))
        rows = (rows.permute(0, 3, 1, 2) if self.images else rows).to(device)
        return scaled(rows, *(per_channel(v, rows.dim(), device) for v in (self.mean, self.std)))

    def _numbers(self, rows: np.ndarray) -> np.ndarray:
        if rows.dtype.kind not in "uifb":
            raise UsageError(f"inputs must be numbers, not {rows.dtype}")
        self._fits(rows)
        if self.tokens:
            return self._ids(rows)
        made = np.ascontiguousarray(rows, np.float32)
        strange = np.flatnonzero(~np.isfinite(made.reshape(len(made), -1)).all(axis=1))
        if len(strange):
            raise UsageError(f"row {strange[0]} of the inputs holds a value that is not a finite number")
        return made

    def _ids(self, rows: np.ndarray) -> np.ndarray:
        made, most = np.ascontiguousarray(rows, np.int64), int((self.reads or {}).get("ids", 1 << 62)) - 1
        strange = np.flatnonzero(((made != rows) | (made < 0) | (made > most)).any(axis=1))
        if len(strange):
            raise UsageError(
                f"row {strange[0]} of the inputs holds what is no token id: a whole number from 0 to {most}"
            )
        return made

    def _pixels(self, rows: np.ndarray) -> np.ndarray:
        rows = rows[..., None] if rows.ndim == 3 and self.shape[2] == 1 else rows
        self._fits(rows)
        if rows.dtype != np.uint8:
            raise UsageError(f"inputs must be uint8 pixels from 0 to 255, not {rows.dtype}")
        rows = np.ascontiguousarray(rows)
        return rows if self.resize is None or rows.shape[1:3] == sides(self.resize) else resized(rows, self.resize)

    def _fits(self, rows: np.ndarray) -> None:
        if rows.shape[1:] != self.shape or rows.ndim == 0:
            want = ", ".join(map(str, self.shape))
            raise UsageError(f"inputs of shape {list(rows.shape)} do not fit: expected [N, {want}]")
        if not len(rows):
            raise UsageError("there is no row in the inputs")

    # ---- as a file

    def steps(self) -> list[str]:
        """What is done, in words, in order."""
        done = []
        if self.resize is not None:
            high, wide = sides(self.resize)
            done.append(f"resize to {wide} x {high} pixels, bilinear with anti-aliasing, round to uint8")
        if self.images:
            done.append("put the channels first: [N, H, W, C] becomes [N, C, H, W]")
        done.append("make it int64" if self.tokens else "make it float32")
        if self.reads and "text" in self.reads:
            done.insert(0, "make text tokens as `reads` says: lower-case words by hash or vocabulary, or bytes")
        if self.reads and "table" in self.reads:
            done.insert(0, "categories come first, as their places from 1 on in `reads`, 0 for any other word")
        if self.mean is not None:
            done.append("of every channel subtract its mean and divide by its std")
        return done

    def write(self, path: Path) -> None:
        """As JSON, for people and for `read`."""
        said = {**self.model_dump(), "model_shape": ["N", *self.model_shape], "steps": self.steps()}
        path.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")

    @staticmethod
    def read(path: Path) -> "Preparation":
        """What `write` wrote."""
        try:
            said = json.loads(read_plain(path))
            return Preparation(**{key: said[key] for key in Preparation.model_fields if key != "reads" or key in said})
        except (OSError, ValueError, KeyError, TypeError, ValidationError) as error:
            why = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
            raise DataError(f"cannot read how inputs are prepared from '{path}': {why}") from None


def filled(x: np.ndarray, train: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> np.ndarray:
    """Rows with every missing value (NaN) replaced by what its client knows from its training rows.

    `train` and `others` are each client's training rows and further rows. A value that a client never sees in training,
    and one of a row that is nobody's, becomes the mean over all clients' training rows, or 0 where there is none.
    """
    if not np.isnan(x).any():
        return x
    made, everyone = x.copy(), _known_mean(x[np.concatenate(list(train))], np.zeros(x.shape[1:], x.dtype))
    for mine, more in zip(train, others, strict=True):
        rows = np.concatenate([mine, more])
        made[rows] = np.where(np.isnan(x[rows]), _known_mean(x[mine], everyone), x[rows])
    return np.where(np.isnan(made), everyone, made)


def _known_mean(rows: np.ndarray, otherwise: np.ndarray) -> np.ndarray:
    """The mean of each value over the rows that have it."""
    known = (~np.isnan(rows)).sum(axis=0)
    mean = np.nansum(rows, axis=0, dtype=np.float64) / np.maximum(known, 1)
    return np.where(known > 0, mean, otherwise).astype(rows.dtype)


def per_channel(values: Numbers | None, axes: int, device: torch.device | None = None) -> Tensor | None:
    """Numbers per channel, spread so that they meet the channels of a batch."""
    return None if values is None else torch.tensor(values, device=device).view(-1, *[1] * (axes - 2))
