"""Random changes to a batch of images, all samples at once, drawn from the generator that is passed in."""

from collections.abc import Callable

import torch
from torch import Tensor

from polyfed.errors import UsageError

Augmenter = Callable[[Tensor, torch.Generator], Tensor]


def augmenter(kind: str, black: Tensor | None = None) -> Augmenter | None:
    """What data.augment asks for, or None for none.

    Crop: the image is shifted by up to an eighth of its side (4 pixels of 32); what comes in from outside has the
    value `black` per channel (0 for raw pixels; normalised ones need (0 - mean) / std to match the papers' padding).
    """
    if kind == "none":
        return None
    crop, flip = "crop" in kind, "flip" in kind

    def change(x: Tensor, generator: torch.Generator) -> Tensor:
        if x.dim() != 4:
            raise UsageError(f"data.augment={kind} is for images; these samples have the shape {list(x.shape[1:])}")
        return _change(x, generator, crop, flip, black)

    return change


def _change(x: Tensor, generator: torch.Generator, crop: bool, flip: bool, black: Tensor | None) -> Tensor:
    """One gather for shift and flip together; the result is channels-last."""
    n, channels, height, width = x.shape
    rows, columns = torch.arange(height).expand(n, height), torch.arange(width).expand(n, width)
    if flip:
        turned = torch.rand(n, 1, generator=generator) < 0.5
        columns = torch.where(turned, width - 1 - columns, columns)
    if crop:
        reach = max(1, min(height, width) // 8)
        shift = torch.randint(-reach, reach + 1, (2, n, 1), generator=generator)
        rows, columns = rows + shift[0], columns + shift[1]
    lines = rows.clamp(0, height - 1) + torch.arange(n)[:, None] * height
    place = lines[:, :, None] * width + columns.clamp(0, width - 1)[:, None, :]
    pixels = x.permute(0, 2, 3, 1).reshape(-1, channels).index_select(0, place.flatten().to(x.device))
    if crop:
        inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
        fill = pixels.new_zeros(1) if black is None else black.flatten().to(pixels)
        pixels = torch.where(inside.flatten()[:, None].to(x.device), pixels, fill)
    return pixels.view(n, height, width, channels).permute(0, 3, 1, 2)
