"""Finding inputs: gradient descent on what goes into a model, for matched features (PKCF) and BN knowledge (DistFL)."""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from polyfed.data.augment import Augmenter
from polyfed.data.samples import Samples
from polyfed.models.base import Net
from polyfed.params import Params
from polyfed.parts.resident import Frozen, in_batches

# ---- matching gradients of a linear head (CReFF; MuPFL eqs. 16-20)

Head = tuple[Tensor, Tensor | None]
EPS = 1e-6  # in the denominator of the cosine; a gradient this short has no direction


def linear(layer: nn.Module) -> Head:
    """Weight and bias of a linear head as they are now, without gradient."""
    assert isinstance(layer, nn.Linear)
    return layer.weight.detach().clone(), None if layer.bias is None else layer.bias.detach().clone()


def head_gradients(rows: Tensor, y: Tensor, head: Head) -> Tensor:
    """Mean over rows [..., n, d] of grad_v CE(v . h_j, y_j), in closed form: [..., C, d (+ 1 for the bias)]."""
    weight, bias = head
    logits = rows @ weight.T + (0 if bias is None else bias)
    error = (logits.softmax(-1) - nn.functional.one_hot(y, len(weight))) / rows.shape[-2]
    gradient = error.transpose(-1, -2) @ rows
    return gradient if bias is None else torch.cat([gradient, error.sum(-2).unsqueeze(-1)], -1)


def drawn(count: int, size: int, draws: int, rng: np.random.Generator) -> Tensor:
    """The positions in some random batches of at most `size` of `count` samples, one batch after the other."""
    batches = [rng.choice(count, min(size, count), replace=False) for _ in range(draws)]
    return torch.from_numpy(np.concatenate(batches))


def class_gradients(
    net: Net,
    samples: Samples,
    classes: Tensor,
    size: int,
    draws: int,
    rng: np.random.Generator,
    augment: Augmenter | None = None,
) -> Tensor:
    """Eq. 16: per class the mean over some draws of its samples, augmented or not, of grad_v CE at the live model."""
    net.eval()
    y, head, found = samples.y, linear(net.head), []
    plain = in_batches(net.features, samples, 128) if augment is None else torch.empty(0)
    generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
    for c in classes.tolist():
        own = (y == c).nonzero().flatten()
        own = own[drawn(len(own), size, draws, rng).to(own.device)]
        with torch.no_grad():
            rows = plain[own] if augment is None else net.features(augment(samples.take(own)[0], generator))
        found.append(head_gradients(rows, y[own], head))
    return torch.stack(found)


def class_means(sent: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Eq. 17: the classes somebody sent a gradient of, and the mean over those who did; a zero one says nothing."""
    each: dict[int, list[Tensor]] = {}
    for classes, gradients in sent:
        for c, z in zip(classes.tolist(), gradients.cpu(), strict=True):
            each.setdefault(c, []).append(z)
    means = {c: torch.stack(each[c]).mean(0) for c in sorted(each)}
    means = {c: z for c, z in means.items() if 0 <= c < len(z) and z.norm() > EPS}
    return torch.tensor([*means], dtype=torch.int64), torch.stack([*means.values()]) if means else torch.empty(0)


def gradient_distance(found: Tensor, goal: Tensor, bias: bool, flat: bool) -> Tensor:
    """Eq. 20 as a distance, summed over classes: 1 - cos of the whole gradient, or of each row and of the bias."""
    if flat:
        parts = [(found.flatten(1), goal.flatten(1))]
    elif bias:
        parts = [(found[..., :-1], goal[..., :-1]), (found[..., -1], goal[..., -1])]
    else:
        parts = [(found, goal)]
    return torch.stack([(1 - _cos(a, b)).sum() for a, b in parts]).sum()


def _cos(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1) + EPS)


def match_features(
    features: Tensor, goals: Tensor, classes: Tensor, head: Head, steps: int, lr: float, flat: bool
) -> Tensor:
    """Eqs. 19-20: move the features [n, m, d] of these classes until their head gradients point as the clients' do."""
    features, goals, classes = (t.to(head[0].device) for t in (features, goals, classes))
    y = classes[:, None].expand(features.shape[:2])
    for _ in range(steps):
        features = features.detach().requires_grad_(True)
        distance = gradient_distance(head_gradients(features, y, head), goals, head[1] is not None, flat)
        (slope,) = torch.autograd.grad(distance, [features])
        features = features - lr * slope
    return features.detach().cpu()


def labelled(features: Tensor, classes: Tensor, device: torch.device) -> Samples:
    """Features [n, m, d] of these classes as rows to train a head on."""
    y = classes.repeat_interleave(features.shape[1])
    return Samples.of(features.flatten(0, 1).to(device), y.to(device), cut="head")


# ---- inverting batch normalisation (DistFL 4.2)


def bn_layers(model: nn.Module) -> list[nn.Module]:
    """The layers whose running statistics say what they have seen."""
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
    """What a layer has seen: mean and variance per channel, and which channels count."""

    mean: Tensor
    var: Tensor
    channels: Tensor


Knowledge = dict[nn.Module, Goal]


def knowledge_of(model: nn.Module, uploaded: Sequence[Tensor], ratio: float, absolute: bool) -> Knowledge:
    """From BN's running statistics; without BN from the mean of uploaded ones [2, channels]; else nothing."""
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


@contextmanager
def watching(layers: Sequence[nn.Module]) -> Iterator[dict[nn.Module, tuple[Tensor, Tensor]]]:
    """Mean and variance of what goes into BN layers and comes out of others, at their last call inside."""
    seen: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    def look(layer: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> None:
        x = given[0] if isinstance(layer, _BatchNorm) else out
        seen[layer] = statistics(x, axis=-1 if isinstance(layer, nn.Linear) else 1)

    hooks = [layer.register_forward_hook(look) for layer in layers]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def statistics(x: Tensor, axis: int = 1) -> tuple[Tensor, Tensor]:
    """Mean and biased variance per channel, over batch and space."""
    rows = x.movedim(axis, 0).flatten(1)
    return rows.mean(1), rows.var(1, unbiased=False)


def statistics_loss(seen: dict[nn.Module, tuple[Tensor, Tensor]], knowledge: Knowledge) -> Tensor:
    """Sum over layers of |mean - mean*| + |var - var*| on the chosen channels (DistFL eqs. 2 and 4)."""
    terms = []
    for layer, (mean, var) in seen.items():
        goal = knowledge[layer]
        terms += [(mean - goal.mean)[goal.channels].norm(), (var - goal.var)[goal.channels].norm()]
    return torch.stack(terms).sum()


def extract(model: nn.Module, start: Tensor, knowledge: Knowledge, steps: int, lr: float) -> Tensor:
    """Inputs whose statistics in the model are the known ones: really optimised, with Adam; the best are kept."""
    x = start.clone().requires_grad_(True)
    optimiser = torch.optim.Adam([x], lr=lr)
    best, kept = math.inf, start
    for step in range(steps + 1 if knowledge else 0):
        with watching(list(knowledge)) as seen:
            model(x)
        loss = statistics_loss(seen, knowledge)
        if float(loss.detach()) < best:
            best, kept = float(loss.detach()), x.detach().clone()
        if step < steps:
            (x.grad,) = torch.autograd.grad(loss, [x])
            optimiser.step()
    return kept


def responses(frozen: Frozen, models: Iterable[Params], inputs: Tensor) -> list[Tensor]:
    """Eq. 5: each model's probabilities for the inputs [z, C], in float64 and never below 1e-8."""
    found = []
    for params in models:
        frozen.params.set(params)
        with torch.no_grad():
            logits = frozen.model(inputs.to(frozen.params.flat.device)).cpu()
        found.append(logits.double().log_softmax(1).exp().clamp(min=1e-8))
    return found


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
