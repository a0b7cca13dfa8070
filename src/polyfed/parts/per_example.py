"""The sum of clipped gradients, one gradient for each example: what a private step descends on.

Any loss is differentiated example by example with `vmap`. Where every trained parameter lies in a linear layer, a
convolution or a group normalisation, and the loss is a mean over rows, one backward pass gives the same (book-keeping):
the inputs and the output gradients of each layer hold what each example's gradient is made of.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from polyfed.errors import UsageError
from polyfed.parts.losses import LogitLoss
from polyfed.parts.resident import Batch

if TYPE_CHECKING:
    from polyfed.parts.fit import Fit

MOST = 1 << 28  # bytes of gradients of single examples that are held at a time


@dataclass
class ClippedSum:
    """The sum over examples of g_i min(1, clip / |g_i|), a tensor per parameter, and each example's loss."""

    sums: list[Tensor]
    losses: Tensor  # where only the mean is known, the mean for each
    lengths: Tensor  # |g_i|


def clipped_sum(fit: "Fit", batch: Batch, clip: float) -> ClippedSum:
    """The clipped sum of a batch; of an empty one it is zero."""
    if fit.trained.own:
        raise UsageError("a private step trains a slice of the model, and this fit trains tensors beside it")
    size = max(1, MOST // (4 * max(1, sum(p.numel() for p in fit.parameters))))
    total: ClippedSum | None = None  # the usual batch is one piece, and its sum is taken as it is
    for start in range(0, len(batch), size):
        here = slice(start, start + size)
        part = Batch(batch.model, batch.x[here], batch.y[here], batch.index[here], batch.on)
        found = _kept_books(fit, part, clip) or _one_by_one(fit, part, clip)
        total = found if total is None else _joined(total, found)
    nobody = batch.y.new_zeros(0, dtype=torch.float32)
    return total or ClippedSum([torch.zeros_like(p) for p in fit.values], nobody, nobody)


def _joined(one: ClippedSum, other: ClippedSum) -> ClippedSum:
    torch._foreach_add_(one.sums, other.sums)
    return ClippedSum(one.sums, torch.cat([one.losses, other.losses]), torch.cat([one.lengths, other.lengths]))


def _factors(lengths: Tensor, clip: float) -> Tensor:
    return (clip / lengths.clamp(min=1e-12)).clamp(max=1.0)


# ---- any loss: one example at a time, all of them at once


class _Example(nn.Module):
    """The loss of one example as a module, so that its parameters can be exchanged."""

    def __init__(self, fit: "Fit", batch: Batch):
        super().__init__()
        self.model, self.fit, self.on = fit.resident.model, fit, batch.on

    def forward(self, x: Tensor, y: Tensor, index: Tensor) -> Tensor:
        return self.fit.loss(Batch(self.model, x[None], y[None], index[None], self.on))


def _one_by_one(fit: "Fit", batch: Batch, clip: float) -> ClippedSum:
    example = _Example(fit, batch)
    with torch.no_grad():  # what frozen models answer is computed here: tensors made below belong to the transform
        example(batch.x[0], batch.y[0], batch.index[0])
    names = [f"model.{name}" for name in fit.trained.names]

    def loss(values: dict[str, Tensor], x: Tensor, y: Tensor, index: Tensor) -> Tensor:
        return functional_call(example, values, (x, y, index))

    each = vmap(grad_and_value(loss), in_dims=(None, 0, 0, 0), randomness="different")
    found, losses = each(dict(zip(names, fit.values, strict=True)), batch.x, batch.y, batch.index)
    rows = [found[name].detach() for name in names]
    lengths = torch.stack([row.flatten(1).square().sum(1) for row in rows]).sum(0).sqrt()
    factors = _factors(lengths, clip)
    sums = [torch.tensordot(factors, row, dims=1) for row in rows]
    return ClippedSum(sums, losses.detach().reshape(-1), lengths)


# ---- the fast path: what a layer saw and what it was told


@dataclass
class _Seen:
    """What a layer took and gave in the one forward pass, and how often each had been written to."""

    took: Tensor
    gave: Tensor
    versions: tuple[int, int]

    @property
    def untouched(self) -> bool:
        """Whether nobody wrote over what the layer took or gave."""
        return (self.took._version, self.gave._version) == self.versions


Layers = dict[str, nn.Module]


def _kept_books(fit: "Fit", batch: Batch, clip: float) -> ClippedSum | None:
    """The same from one backward pass; None where it does not apply."""
    if not isinstance(fit.loss, LogitLoss):  # of other losses nobody promises that they are means over rows
        return None
    layers = _layers(fit)
    if layers is None:
        return None
    batch.forget()
    with _listening(layers) as seen:
        loss = fit.loss(batch)
    if any(len(calls) > 1 or not calls[0].untouched for calls in seen.values()):
        return None
    if any(not _simple(layers[name], calls[0], len(batch)) for name, calls in seen.items()):
        return None
    names = list(seen)
    told = torch.autograd.grad(len(batch) * loss, [seen[name][0].gave for name in names], allow_unused=True)
    with torch.no_grad():
        parts = {
            name: _BOOKS[type(layers[name])](layers[name], seen[name][0].took, gradient)
            for name, gradient in zip(names, told, strict=True)
            if gradient is not None
        }
        squares = [part.squares for part in parts.values()]
        lengths = torch.stack(squares).sum(0).sqrt() if squares else torch.zeros(len(batch))
        factors = _factors(lengths, clip)
        sums = []
        for name, value in zip(fit.trained.names, fit.values, strict=True):
            path, _, leaf = name.rpartition(".")
            sums.append(parts[path].sum(leaf, factors).view_as(value) if path in parts else torch.zeros_like(value))
        batch.forget()
        return ClippedSum(sums, loss.detach().expand(len(batch)), lengths)


def _layers(fit: "Fit") -> Layers | None:
    """The layers that hold what is trained, by name; None if one of them is of another kind, or shared."""
    model, trained = fit.resident.model, set(fit.trained.names)
    paths = dict.fromkeys(name.rpartition(".")[0] for name in fit.trained.names)
    layers = {path: model.get_submodule(path) for path in paths}
    if any(type(layer) not in _BOOKS for layer in layers.values()):
        return None
    own = [f"{path}.{name}" for path, layer in layers.items() for name, _ in layer.named_parameters(recurse=False)]
    if len({id(layer) for layer in layers.values()}) < len(layers) or set(own) != trained:
        return None
    held = [id(p) for layer in layers.values() for p in layer.parameters()]
    return layers if len(set(held)) == len(held) else None


@contextmanager
def _listening(layers: Layers) -> Iterator[dict[str, list[_Seen]]]:
    seen: dict[str, list[_Seen]] = {}

    def hear(name: str) -> Callable[..., None]:
        def heard(layer: nn.Module, took: Sequence[Tensor], gave: Tensor) -> None:
            versions = took[0]._version, gave._version
            seen.setdefault(name, []).append(_Seen(took[0].detach(), gave, versions))

        return heard

    handles = [layer.register_forward_hook(hear(name)) for name, layer in layers.items()]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _simple(layer: Any, seen: _Seen, examples: int) -> bool:
    """Whether the layer was used in the plain way that the books are kept for: a row for each example."""
    if len(seen.took) != examples:
        return False
    if isinstance(layer, nn.Conv2d):
        plain = layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
        return plain and seen.took.dim() == 4
    return seen.took.dim() == 2 if isinstance(layer, nn.Linear) else seen.took.dim() >= 2


class _OfLinear:
    """|g|^2 = |a|^2 |b|^2 (+ |b|^2 for a bias); no gradient of a single example is ever formed."""

    def __init__(self, layer: nn.Linear, took: Tensor, told: Tensor):
        self.took, self.told = took, told
        b = told.square().sum(1)
        self.squares = b * took.square().sum(1)
        if layer.bias is not None:
            self.squares = self.squares + b

    def sum(self, leaf: str, factors: Tensor) -> Tensor:
        told = self.told * factors[:, None]
        return told.t() @ self.took if leaf == "weight" else told.sum(0)


class _Formed:
    """Gradients of the single examples, which are formed."""

    def __init__(self, rows: dict[str, Tensor]):
        self.rows = rows
        self.squares = torch.stack([row.flatten(1).square().sum(1) for row in rows.values()]).sum(0)

    def sum(self, leaf: str, factors: Tensor) -> Tensor:
        return torch.tensordot(factors, self.rows[leaf], dims=1)


def _of_convolution(layer: Any, took: Tensor, told: Tensor) -> _Formed:
    columns = F.unfold(took.contiguous(), layer.kernel_size, layer.dilation, layer.padding, layer.stride)
    b = told.flatten(2)  # [B, out, places]
    rows = {"weight": torch.bmm(b, columns.transpose(1, 2)).view(len(took), *layer.weight.shape)}
    return _Formed(rows | ({"bias": b.sum(2)} if layer.bias is not None else {}))


def _of_group_norm(layer: Any, took: Tensor, told: Tensor) -> _Formed:
    plain = F.group_norm(took, layer.num_groups, eps=layer.eps)
    over = list(range(2, took.dim()))
    scaled, shifted = told * plain, told
    return _Formed({"weight": _summed(scaled, over), "bias": _summed(shifted, over)})


def _summed(values: Tensor, over: list[int]) -> Tensor:
    return values.sum(over) if over else values


_BOOKS: dict[type, Callable[[Any, Tensor, Tensor], Any]] = {
    nn.Linear: _OfLinear,
    nn.Conv2d: _of_convolution,
    nn.GroupNorm: _of_group_norm,
}
