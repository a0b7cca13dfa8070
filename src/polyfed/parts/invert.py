"""Inverting batch normalisation: inputs on which a model's layers see what they saw in training (DistFL 4.2)."""

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from polyfed.data.samples import Samples, laid_out
from polyfed.params import Params
from polyfed.parts.chunks import in_chunks
from polyfed.parts.resident import Frozen, in_batches
from polyfed.parts.steps import Moments, adam_step
from polyfed.parts.thin import quick_in_inputs

INPUT_CHUNKS = 4  # chunks of extracted inputs; fewer and larger ones do not fit into the cache


def bn_layers(model: nn.Module) -> list[nn.Module]:
    """The batch normalisation layers that keep running statistics."""
    return [m for m in model.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]


def activation_layers(model: nn.Module) -> list[nn.Module]:
    """Where statistics are taken in a model without BN: its convolutions and linear layers."""
    return [m for m in model.modules() if isinstance(m, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)]


def chosen_channels(layer: nn.Module, ratio: float, absolute: bool) -> Tensor:
    """The share of channels with the largest scaling factor gamma, at least one; all without a gamma (4.2.2)."""
    gamma = getattr(layer, "weight", None)
    if gamma is None:
        return torch.arange(len(layer.get_buffer("running_mean")))
    gamma = gamma.detach().abs() if absolute else gamma.detach()
    return gamma.topk(math.ceil(ratio * len(gamma) - 1e-9)).indices  # 0.07 * 100 is a hair above 7


@dataclass
class Goal:
    """What a layer saw in training: mean and variance per channel, and the channels that count."""

    mean: Tensor
    var: Tensor
    channels: Tensor


Knowledge = dict[nn.Module, Goal]


def knowledge_of(model: nn.Module, uploaded: Sequence[Tensor], ratio: float, absolute: bool) -> Knowledge:
    """The goal of each layer: BN's running statistics, or the mean of uploaded ones [2, channels], or empty."""
    norms = bn_layers(model)
    if norms:
        seen = [(m.get_buffer("running_mean"), m.get_buffer("running_var")) for m in norms]
        return {m: Goal(*s, chosen_channels(m, ratio, absolute)) for m, s in zip(norms, seen, strict=True)}
    layers = activation_layers(model)
    sizes = [_channels(m) for m in layers]
    fitting = [u for u in uploaded if u.shape[1] == sum(sizes)]
    parts = torch.stack(fitting).mean(0).split(sizes, dim=1) if fitting else ()
    return {m: Goal(s[0], s[1], torch.arange(s.shape[1])) for m, s in zip(layers, parts, strict=False)}


def _channels(layer: nn.Module) -> int:
    return layer.get_parameter("weight").shape[0]


Look = Callable[[nn.Module, Tensor, int], Tensor | None]


@contextmanager
def looking(layers: Iterable[nn.Module], look: Look) -> Iterator[None]:
    """Call `look` with the inputs of BN layers and the outputs of other layers, and with the axis of their channels.

    What `look` returns for an output replaces that output.
    """

    def show(layer: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> Tensor | None:
        if isinstance(layer, _BatchNorm):
            look(layer, given[0], 1)
            return None
        return look(layer, out, -1 if isinstance(layer, nn.Linear) else 1)

    hooks = [layer.register_forward_hook(show) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def watching(layers: Sequence[nn.Module]) -> Iterator[dict[nn.Module, tuple[Tensor, Tensor]]]:
    """Collect mean and variance of the inputs of BN layers and the outputs of others, as of their last call inside."""
    seen: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    def look(layer: nn.Module, x: Tensor, axis: int) -> None:
        seen[layer] = statistics(x, axis)

    with looking(layers, look):
        yield seen


def statistics(x: Tensor, axis: int = 1) -> tuple[Tensor, Tensor]:
    """Mean and biased variance per channel, over batch and space."""
    rows = x.movedim(axis, -1)
    over = tuple(range(rows.dim() - 1))
    mean = rows.mean(over)
    return mean, (rows - mean).square_().mean(over)  # torch's own variance takes several times as long


def statistics_loss(seen: dict[nn.Module, tuple[Tensor, Tensor]], knowledge: Knowledge) -> Tensor:
    """Sum over layers of |mean - mean*| + |var - var*| on the chosen channels (DistFL eqs. 2 and 4)."""
    terms = []
    for layer, (mean, var) in seen.items():
        goal = knowledge[layer]
        terms += [(mean - goal.mean)[goal.channels].norm(), (var - goal.var)[goal.channels].norm()]
    return torch.stack(terms).sum()


def extract(model: nn.Module, start: Tensor, knowledge: Knowledge, steps: int, lr: float) -> Tensor:
    """Optimise inputs with Adam until their statistics in the model are the known ones; return the best ones."""
    x, best, kept = laid_out(start.clone()), math.inf, start
    moments = Moments.of([x])
    with _Answers(model, knowledge) as answers:
        for step in range(steps + 1 if knowledge else 0):
            loss = answers.to(x)
            if loss < best:
                best, kept = loss, x.clone()
            if step < steps:
                adam_step([x], [answers.slope()], moments, lr)
    return kept


@dataclass
class _Share:
    """A chunk of the inputs, and what the watched layers saw of it."""

    x: Tensor
    seen: dict[nn.Module, tuple[Tensor, int, int]] = field(default_factory=dict)  # values, axis, their version

    def moments(self, knowledge: Knowledge) -> dict[nn.Module, Tensor]:
        """Per layer: how many values a channel has, their sum and their sum of squares, about the known mean [3, C]."""
        with torch.no_grad():
            return {layer: _moments(x, axis, knowledge[layer].mean) for layer, (x, axis, _) in self.seen.items()}

    def slope(self, lines: dict[nn.Module, tuple[Tensor, Tensor]]) -> Tensor:
        """The gradient in the inputs, where that in each value v of a layer is a + b v."""
        ends = [(v, axis, *lines[layer]) for layer, (v, axis, _) in self.seen.items() if v.requires_grad]
        with torch.no_grad():
            given = [torch.addcmul(a, b, v.movedim(axis, -1)).movedim(-1, axis) for v, axis, a, b in ends]
        (found,) = torch.autograd.grad([end[0] for end in ends], [self.x], given, materialize_grads=True)
        return found


class _Answers:
    """The statistics of a model's layers for all inputs, computed in chunks that cores share.

    Mean and variance are made from sums over the chunks. Their gradient in a single value is a line, g_mean / n +
    2 g_var (v - mean) / n, so that each chunk is differentiated by itself, and autograd need not follow the statistics.
    """

    def __init__(self, model: nn.Module, knowledge: Knowledge):
        self.model, self.knowledge = model, knowledge
        self._now = threading.local()  # the share this thread computes
        self._copies = False
        self._inside = ExitStack()

    def __enter__(self) -> "_Answers":
        self._inside.enter_context(quick_in_inputs(self.model))
        self._inside.enter_context(looking(self.knowledge, self._look))
        return self

    def __exit__(self, *error: Any) -> None:
        self._inside.__exit__(*error)

    def _look(self, layer: nn.Module, x: Tensor, axis: int) -> Tensor | None:
        self._now.share.seen[layer] = x, axis, x._version
        return x.clone() if self._copies and not isinstance(layer, _BatchNorm) else None

    def to(self, x: Tensor) -> float:
        """The loss of these inputs (eqs. 2 and 4); `slope` then gives its gradient."""
        self._shares, moments = zip(*in_chunks(self._forward, _in_input_chunks(x)), strict=True)
        if any(v._version != version for share in self._shares for v, _, version in share.seen.values()):
            self._copies = True  # a layer after a watched one works in place: it gets a copy from now on
            return self.to(x)
        self._seen, self._sums = {}, {}
        for layer in moments[0]:
            self._sums[layer] = n, total, squares = sum(m[layer] for m in moments)
            off = total / n
            mean, var = self.knowledge[layer].mean + off, (squares / n - off.square()).clamp(min=0)
            self._seen[layer] = mean.requires_grad_(), var.requires_grad_()
        self._loss = statistics_loss(self._seen, self.knowledge)
        return float(self._loss.detach())

    def _forward(self, x: Tensor) -> tuple[_Share, dict[nn.Module, Tensor]]:
        share = self._now.share = _Share(x.detach().requires_grad_(True))
        self.model(share.x)
        return share, share.moments(self.knowledge)

    def slope(self) -> Tensor:
        """The gradient of the loss in the inputs."""
        found = torch.autograd.grad(self._loss, [one for pair in self._seen.values() for one in pair])
        lines = {}
        for (layer, (mean, _)), by_mean, by_var in zip(self._seen.items(), found[::2], found[1::2], strict=True):
            n, b = self._sums[layer][0], 2 * by_var / self._sums[layer][0]
            lines[layer] = by_mean / n - b * mean.detach(), b
        return torch.cat(in_chunks(lambda share: share.slope(lines), self._shares))


def _moments(x: Tensor, axis: int, about: Tensor) -> Tensor:
    rows = x.movedim(axis, -1) - about
    over = tuple(range(rows.dim() - 1))
    n = torch.full_like(about, rows.numel() / max(len(about), 1))
    return torch.stack([n, rows.sum(over), rows.square_().sum(over)])


def responses(frozen: Frozen, models: Iterable[Params], inputs: Tensor, softness: float) -> list[Tensor]:
    """Eq. 5: each model's probabilities for the inputs [z, C]."""
    found = []
    chunks = _in_input_chunks(inputs.to(frozen.params.flat.device))
    for params in models:
        frozen.params.set(params)
        with torch.no_grad():
            logits = torch.cat(in_chunks(frozen.model, chunks))
        found.append(probabilities(logits.cpu(), softness))
    return found


def bn_statistics(frozen: Frozen, models: Iterable[Params]) -> list[Tensor]:
    """The running means and variances of each model's BN layers, one layer after the other: [2, channels]."""
    found, layers = [], bn_layers(frozen.model)
    for params in models:
        frozen.params.set(params)
        mean, var = (torch.cat([m.get_buffer(f"running_{what}") for m in layers]) for what in ("mean", "var"))
        found.append(torch.stack([mean, var.clamp(min=1e-5)]).double().cpu())
    return found


def _in_input_chunks(x: Tensor) -> tuple[Tensor, ...]:
    return laid_out(x).split(-(-len(x) // INPUT_CHUNKS))


def probabilities(logits: Tensor, softness: float) -> Tensor:
    """Softmax of a model's logits [z, C] in float64, never below 1e-8; softness 0 is the plain one.

    Otherwise logits are centred per row and divided by `softness` times their root mean square, so that a model counts
    by what it prefers and not by how sure it is.
    """
    logits = logits.double()
    if softness:
        logits = logits - logits.mean(1, keepdim=True)
        logits = logits / (softness * logits.square().mean().sqrt()).clamp(min=torch.finfo(torch.double).tiny)
    return logits.log_softmax(1).exp().clamp(min=1e-8)


def activation_statistics(model: nn.Module, samples: Samples, batch: int = 128) -> Tensor:
    """Mean and variance of every channel of every layer over a client's data, in eval mode: [2, channels]."""
    layers = activation_layers(model.eval())
    unused = {m: (torch.zeros(_channels(m), device=samples.rows.device),) * 2 for m in layers}

    def sums(x: Tensor) -> Tensor:
        with watching(layers) as seen:
            model(x)
        mean, var = (torch.cat(each).double() for each in zip(*(unused | seen).values(), strict=True))
        return len(x) * torch.stack([mean, var + mean.square()])[None]

    mean, square = in_batches(sums, samples, batch).sum(0) / len(samples)
    return torch.stack([mean, (square - mean.square()).clamp(min=0)]).float()
