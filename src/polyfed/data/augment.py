"""Random changes to a batch of images, all samples at once, drawn from the generator that is passed in."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from polyfed.data.samples import VOID
from polyfed.errors import UsageError

Moved = Callable[[Tensor, Tensor], Tensor]  # (N, H, W, K) values and what comes in from outside -> the same, moved


@dataclass(frozen=True, eq=False)
class Augmenter:
    """Random shifts and flips; `black` is the colour of what comes in from outside (0 for raw pixels)."""

    kind: str
    black: Tensor | None = None

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Images [N, C, H, W], changed; the result is channels-last."""
        return self._image(x, self._moves(x, generator))

    def both(self, x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Images, and their masks moved alike; labels of whole images stay what they are."""
        moved = self._moves(x, generator)
        return self._image(x, moved), y if y.dim() == 1 else moved(y[..., None], torch.tensor([VOID]))[..., 0]

    def _image(self, x: Tensor, moved: Moved) -> Tensor:
        fill = torch.zeros(1) if self.black is None else self.black.flatten()
        return moved(x.permute(0, 2, 3, 1), fill).permute(0, 3, 1, 2)

    def _moves(self, x: Tensor, generator: torch.Generator) -> Moved:
        if x.dim() != 4:
            raise UsageError(
                f"data.augment={self.kind} is for images; these samples have the shape {list(x.shape[1:])}"
            )
        return _moves(x, generator, "crop" in self.kind, "flip" in self.kind)


def augmenter(kind: str, black: Tensor | None = None) -> Augmenter | None:
    """What data.augment asks for, or None for none.

    Crop: the image is shifted by up to an eighth of its side (4 pixels of 32); what comes in from outside has the
    value `black` per channel (0 for raw pixels; normalised ones need (0 - mean) / std to match the papers' padding).
    """
    return None if kind == "none" else Augmenter(kind, black)


def _moves(x: Tensor, generator: torch.Generator, crop: bool, flip: bool) -> Moved:
    """One draw for a batch of images: one gather for shift and flip together, of whatever lies on their pixels."""
    n, _, height, width = x.shape
    rows, columns = torch.arange(height).expand(n, height), torch.arange(width).expand(n, width)
    if flip:
        turned = torch.rand(n, 1, generator=generator) < 0.5
        columns = torch.where(turned, width - 1 - columns, columns)
    if crop:
        reach = max(1, min(height, width) // 8)
        shift = torch.randint(-reach, reach + 1, (2, n, 1), generator=generator)
        rows, columns = rows + shift[0], columns + shift[1]
    lines = rows.clamp(0, height - 1) + torch.arange(n)[:, None] * height
    place = (lines[:, :, None] * width + columns.clamp(0, width - 1)[:, None, :]).flatten()
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]

    def moved(values: Tensor, outside: Tensor) -> Tensor:
        pixels = values.reshape(n * height * width, -1).index_select(0, place.to(values.device))
        if crop:
            pixels = torch.where(inside.flatten()[:, None].to(values.device), pixels, outside.to(pixels))
        return pixels.view(n, height, width, -1)

    return moved
