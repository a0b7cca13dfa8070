"""BAVD, biased activation value dropout (MuPFL 3.3): a layer that masks what its map of past activations calls weak.

Readings: psi is the fall of the loss, so that a useful activation grows the map; the map of the step before masks,
because psi needs the loss of the pass it would mask; maps are means over the batch. A map is kept as rows, one per
slice that has a threshold of its own: a channel, all channels together, or a whole feature vector. What is compared
with that threshold is the activation value, as in the text (`compare="activation"`), or its place in the map.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from polyfed.data.samples import Samples
from polyfed.message import Memory
from polyfed.models.base import Net
from polyfed.parts.fit import Order, shuffled


class BAVD(nn.Module):
    """Keeps a map M of the activations of this round; in training it zeroes those that lie below the mean of the map.

    `soft` keeps a value with the probability .5 + .5 M instead (M from 0 to 1), drawn from torch's generator, which
    follows the key of the work. `inverse` divides what is left by the share of values that were kept, as dropout does.
    """

    def __init__(
        self,
        psi: Literal["improvement", "printed"] = "improvement",
        granularity: Literal["channel", "spatial"] = "channel",
        compare: Literal["activation", "map"] = "activation",
        keep_ratio: float | None = None,
        soft: bool = False,
        inverse: bool = False,
    ):
        super().__init__()
        self.psi, self.granularity, self.compare, self.keep_ratio = psi, granularity, compare, keep_ratio
        self.soft, self.inverse = soft, inverse
        self.reset()

    def reset(self) -> None:
        """Start again: lambda = 0."""
        self.map: Tensor | None = None  # [slices, positions]
        self.loss: Tensor | None = None  # of the step before
        self._seen: Tensor | None = None

    def forward(self, h: Tensor) -> Tensor:
        """The activations, masked while training; unchanged in testing."""
        if not self.training:
            return h
        self._seen = self.rows(mean_sample(h.detach()))  # before the mask
        return h if self.map is None else self.masked(h)

    def rows(self, seen: Tensor) -> Tensor:
        """A sample's activations as slices: a row per channel, one for all channels, or the feature vector."""
        if seen.dim() == 1:
            return seen[None]
        return seen.flatten(1).mean(0, keepdim=True) if self.granularity == "spatial" else seen.flatten(1)

    def masked(self, h: Tensor) -> Tensor:
        """What is kept of the activations, divided by the share that is kept where `inverse` asks for it."""
        keep = self.mask(h)
        return h * keep / keep.float().mean().clamp(min=1e-12) if self.inverse else h * keep

    def mask(self, h: Tensor) -> Tensor:
        """True or 1 where a value is kept, slice by slice; a slice whose map is constant is kept whole."""
        assert self.map is not None
        low, high = self.map.amin(1, keepdim=True), self.map.amax(1, keepdim=True)
        flat = low == high  # nothing to tell apart: nothing is masked
        per_slice, per_position = (-1, *[1] * (h.dim() - 2)), (-1, *h.shape[2:])
        # min-max is affine: the normalised map has the normalised mean, and comparing M with mean(M) is the same
        if self.soft:
            chance = 0.5 + 0.5 * between(self.map, low, high)
            return (torch.rand_like(h) < chance.view(per_position)) | flat.view(per_slice)
        if self.keep_ratio is not None:
            best = self.map.topk(max(1, round(self.keep_ratio * self.map.shape[1])), dim=1).indices
            keep = torch.zeros_like(self.map, dtype=torch.bool).scatter(1, best, True)
        elif self.compare == "activation":
            floor = between(self.map.mean(1, keepdim=True), low, high).masked_fill(flat, -torch.inf)
            # as numbers: a product with truth values would turn them into numbers twice, forward and backward
            return torch.ge(h.detach(), floor.view(per_slice), out=torch.empty_like(h))
        else:
            keep = self.map >= torch.minimum(self.map.mean(1, keepdim=True), high)
        return (keep | flat).view(per_position)

    def after_step(self, loss: Tensor) -> None:
        """Eq. 6: M(0) = h(0), M(l) = M(l - 1) + psi(l) h(l); a frozen layer saw nothing, a NaN loss says nothing."""
        seen = self._seen
        if seen is None:
            return
        self._seen = None
        if not math.isfinite(loss):
            return
        if self.map is None or self.loss is None:
            self.map = seen
        else:
            fall = self.loss - loss
            self.map = self.map + (fall if self.psi == "improvement" else -fall) * seen
        self.loss = loss


def mean_sample(h: Tensor) -> Tensor:
    """The mean over a batch, taken in the order of memory: where channels lie last the other order is much slower."""
    if h.dim() == 4 and h.is_contiguous(memory_format=torch.channels_last):
        return h.permute(0, 2, 3, 1).flatten(1).mean(0).view(*h.shape[2:], -1).permute(2, 0, 1)
    return h.mean(0)


def normalised(rows: Tensor) -> Tensor:
    """Each row from 0 to 1."""
    return between(rows, *rows.aminmax(dim=1, keepdim=True))


def between(rows: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Values scaled so that `low` becomes 0 and `high` becomes 1."""
    return (rows - low) / (high - low + 1e-12)


def listen(model: Net, make: Callable[[], nn.Module] = BAVD) -> Net:
    """Put a layer (BAVD, or the dropout it replaces) behind every place that may have one; weights keep their names."""
    for name in model.listens:
        place = model.get_submodule(name)
        place.add_module("bavd", make())
        if not isinstance(place, nn.Sequential):  # a sequence runs it as its last layer
            place.register_forward_hook(_masked)
    return model


def _masked(place: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> Tensor:
    return place.get_submodule("bavd")(out)


def layers(model: nn.Module) -> list[BAVD]:
    """The BAVD layers of a model."""
    return [m for m in model.modules() if isinstance(m, BAVD)]


@contextmanager
def mapping(model: nn.Module, reset: Literal["round", "epoch", "never"], memory: Memory) -> Iterator[Order]:
    """The order of batches in which maps start again every round, every epoch, or never: then memory keeps them."""
    listening = layers(model) if reset == "never" else []
    for i, layer in enumerate(listening):
        layer.map, layer.loss = memory.get(f"map_{i}"), memory.get(f"map_loss_{i}")
    yield partial(_reset_and_shuffled, model) if reset == "epoch" else shuffled
    for i, layer in enumerate(listening):
        if layer.map is not None and layer.loss is not None:
            memory[f"map_{i}"], memory[f"map_loss_{i}"] = layer.map, layer.loss


def _reset_and_shuffled(model: nn.Module, samples: Samples, rng: np.random.Generator) -> Tensor:
    """`shuffled`, and the maps start again: an epoch asks for its order when it begins."""
    for layer in layers(model):
        layer.reset()
    return shuffled(samples, rng)


def uploaded_map(model: nn.Module) -> Tensor:
    """What ACMU compares: each layer's final map, mean over channels, min-max normalised, in one vector."""
    maps = [layer.map.mean(0, keepdim=True) for layer in layers(model) if layer.map is not None]
    return torch.cat([normalised(m).flatten() for m in maps]) if maps else torch.zeros(0)


def as_rows(maps: Sequence[Tensor]) -> Tensor | None:
    """Uploaded maps as rows, None if there are none; a map of another length (of a client without a step) is zero."""
    size = Counter(map(len, maps)).most_common(1)[0][0]
    return torch.stack([m if len(m) == size else m.new_zeros(size) for m in maps]) if size else None
