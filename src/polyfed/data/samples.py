"""Rows of a shared pool of samples, seen through an index: what a client trains on and is tested on."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

VOID = 255  # a pixel of a mask that has no label: never trained, never counted
BACKGROUND = 254  # a pixel of a class that its client does not own
AT_ONCE = 1 << 21  # pixels of masks that are answered for at a time


def scaled(x: Tensor, mean: Tensor | None, std: Tensor | None) -> Tensor:
    """Raw rows as normalised float32 (tokens as int64), in the memory layout the convolutions want."""
    if x.dtype == torch.int64:  # tokens stay what they are
        return x.contiguous()
    given, x = x, x.to(torch.float32)
    if mean is not None and std is not None:
        x = (x - mean if x is given else x.sub_(mean)).div_(std)  # what was given stays as it is
    return laid_out(x)


def laid_out(x: Tensor) -> Tensor:
    """Rows in the memory layout the convolutions want: images channels last, and said to be so with one channel too.

    Torch calls an image of one channel contiguous in both layouts, and takes the slow one unless its strides say so.
    """
    if x.dim() != 4:
        return x.contiguous()
    last = torch.channels_last
    return x if x.stride(1) == 1 and x.is_contiguous(memory_format=last) else x.clone(memory_format=last)


def onto(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor on a device; a GPU fetches it from pinned memory, and nobody waits for that."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


@dataclass(frozen=True, eq=False)
class Pool:
    """All samples once in memory. Images are uint8, channels last in memory; `prepare` makes what a model eats."""

    x: Tensor
    y: Tensor
    mean: Tensor | None = None
    std: Tensor | None = None

    def prepare(self, x: Tensor) -> Tensor:
        """Raw rows as a model eats them."""
        return scaled(x, self.mean, self.std)

    def rows(self, rows: Tensor) -> Tensor:
        """These raw rows of x; images are copied whole, not channel by channel (ten times faster)."""
        if self.x.dim() == 4 and self.x.is_contiguous(memory_format=torch.channels_last):
            return self.x.permute(0, 2, 3, 1).index_select(0, rows).permute(0, 3, 1, 2)
        return self.x.index_select(0, rows)

    def to(self, device: torch.device) -> "Pool":
        """The same pool on a device."""
        moved = {k: onto(v, device) for k, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **moved)


@dataclass(frozen=True, eq=False)
class Samples:
    """An index view of a pool. `cut` names the part of the model that already ran on x (features), if any.

    Where there is `anew`, batches of training read their rows anew instead of taking them from the pool. Labels are
    one per sample, or masks: then a pixel is a row, and whoever does not own all classes reads the others by `table`.
    """

    pool: Pool
    rows: Tensor
    cut: str | None = None
    anew: Callable[[Tensor], Tensor] | None = None  # prepared inputs of these rows of the pool
    owned: Tensor | None = None  # the classes of its masks, where the others are merged into a background
    table: Tensor | None = None  # what each of the 256 values of a mask is read as

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def y(self) -> Tensor:
        """The labels, in row order."""
        return self._read(self.pool.y[self.rows])

    @property
    def masks(self) -> bool:
        """Whether every pixel has a label of its own."""
        return self.pool.y.dim() > 1

    def at_once(self, size: int) -> int:
        """How many samples are computed at a time where `size` would be: fewer where answers are as large as masks."""
        return max(1, min(size, AT_ONCE // self.pool.y[0].numel())) if self.masks and len(self.pool.y) else size

    def _read(self, y: Tensor) -> Tensor:
        return y if self.table is None else self.table[y.long()]

    def take(self, order: Tensor) -> tuple[Tensor, Tensor]:
        """Prepared inputs and labels of these positions, gathered once."""
        rows = self.rows[order]
        return self.pool.prepare(self.pool.rows(rows)), self._read(self.pool.y[rows]).long()

    def only(self, keep: Tensor) -> "Samples":
        """The positions where `keep` is true (some classes of a client, say)."""
        return replace(self, rows=self.rows[keep])

    @staticmethod
    def of(x: Tensor, y: Tensor, cut: str | None = None) -> "Samples":
        """Rows of their own: features, or rows that came in a message."""
        return Samples(Pool(x, y), torch.arange(len(y), device=y.device), cut)
