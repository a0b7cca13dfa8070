"""BAVD, biased activation value dropout (MuPFL 3.3): a layer that masks what its map of past activations calls weak.

Readings (methods.md 1.2): psi is the fall of the loss, so that a useful activation grows the map; the map of the step
before masks, because psi needs the loss of the pass it would mask; maps are means over the batch.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from polyfed.models.base import Net


class BAVD(nn.Module):
    """Keeps a map M of what it saw in this round; in training it zeroes what lies below the mean of the map."""

    def __init__(
        self,
        psi: Literal["improvement", "printed"] = "improvement",
        granularity: Literal["channel", "spatial"] = "channel",
        compare: Literal["map", "activation"] = "map",
        keep_ratio: float | None = None,
    ):
        super().__init__()
        self.psi, self.granularity, self.compare, self.keep_ratio = psi, granularity, compare, keep_ratio
        self.reset()

    def reset(self) -> None:
        """Forget the round."""
        self.map: Tensor | None = None
        self._seen: Tensor | None = None
        self._loss: Tensor | None = None

    def forward(self, h: Tensor) -> Tensor:
        if not self.training:
            return h
        seen = h.detach().mean(0)  # before the mask
        self._seen = seen.mean(0) if self.granularity == "spatial" and seen.dim() > 1 else seen
        return h if self.map is None else h * self.mask(h)

    def mask(self, h: Tensor) -> Tensor:
        """Ones where the normalised map is at least its mean, slice by slice (or where the activation is)."""
        assert self.map is not None
        slices = as_slices(self.map)
        if self.compare == "activation":
            level = normalised(slices).mean(1).view(-1, *[1] * (self.map.dim() - 1)) if self.map.dim() > 1 else None
            return (h >= (normalised(slices).mean() if level is None else level)).to(h.dtype)
        if self.keep_ratio is not None:
            kept = max(1, round(self.keep_ratio * slices.shape[1]))
            level = slices.topk(kept, dim=1).values[:, -1:]
        else:
            level = slices.mean(1, keepdim=True)  # min-max is affine: comparing M with mean(M) is the same
        flat = slices.max(1, keepdim=True).values == slices.min(1, keepdim=True).values
        return ((slices >= level) | flat).to(h.dtype).view_as(self.map)

    def after_step(self, loss: Tensor) -> None:
        """Eq. 6: M(0) = h(0); M <- M + psi h; a loss that is not finite leaves M alone."""
        if self._seen is None:
            return
        if self.map is None or self._loss is None:
            self.map = self._seen
        else:
            fall = self._loss - loss if self.psi == "improvement" else loss - self._loss
            self.map = self.map + torch.where(torch.isfinite(fall), fall, torch.zeros_like(fall)) * self._seen
        self._loss, self._seen = loss, None


def as_slices(map: Tensor) -> Tensor:
    """A row per channel; a vector, or a map for all channels, is one row."""
    return map.flatten(1) if map.dim() == 3 or (map.dim() == 2 and map.shape[0] > 1) else map.reshape(1, -1)


def normalised(rows: Tensor) -> Tensor:
    """Each row from 0 to 1."""
    low, high = rows.min(1, keepdim=True).values, rows.max(1, keepdim=True).values
    return (rows - low) / (high - low + 1e-12)


def listen(model: Net, **options: object) -> Net:
    """Put a BAVD layer behind every place where the model lets it listen."""
    for name in model.listens:
        path, _, leaf = name.rpartition(".")
        parent = model.get_submodule(path)
        setattr(parent, leaf, nn.Sequential(getattr(parent, leaf), BAVD(**options)))  # type: ignore[arg-type]
    return model


def layers(model: nn.Module) -> list[BAVD]:
    """The BAVD layers of a model."""
    return [m for m in model.modules() if isinstance(m, BAVD)]


def uploaded_map(model: nn.Module) -> Tensor:
    """What ACMU compares: each layer's final map, mean over channels, min-max normalised, in one vector."""
    maps = [layer.map for layer in layers(model) if layer.map is not None]
    rows = [normalised(as_slices(m).mean(0, keepdim=True)).flatten() for m in maps]
    return torch.cat(rows) if rows else torch.zeros(0)
