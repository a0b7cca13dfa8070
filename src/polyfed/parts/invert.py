"""Finding inputs: gradient descent on what goes into a model, for matched features (PKCF) and BN knowledge (DistFL)."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from polyfed.data.samples import Samples


def descend(inputs: Tensor, loss: Callable[[Tensor], Tensor], optimiser: torch.optim.Optimizer, steps: int) -> Tensor:
    """Optimise inputs in place; gives the best loss seen, with its inputs left in `inputs`."""
    best, kept = torch.tensor(math.inf), inputs.detach().clone()
    for _ in range(steps + 1):
        optimiser.zero_grad()
        value = loss(inputs)
        if float(value.detach()) < float(best):
            best, kept = value.detach(), inputs.detach().clone()
        (inputs.grad,) = torch.autograd.grad(value, [inputs])
        optimiser.step()
    with torch.no_grad():
        inputs.copy_(kept)
    return best


# ---- matching gradients of a linear head (CReFF; MuPFL eqs. 16-20)


def head_gradients(rows: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None, share: Tensor) -> Tensor:
    """Eq. 16: sum_j share_j grad_v CE(v . h_j, y_j) for a linear head, in closed form; [..., C, d (+ 1)]."""
    logits = rows @ weight.T + (0 if bias is None else bias)
    error = (logits.softmax(-1) - nn.functional.one_hot(y, len(weight))) * share.unsqueeze(-1)
    gradient = error.transpose(-1, -2) @ rows
    return gradient if bias is None else torch.cat([gradient, error.sum(-2).unsqueeze(-1)], -1)


def class_shares(count: int, size: int, draws: int, rng: object) -> Tensor:
    """How often each of a class's samples counts in the mean over `draws` random batches of at most `size`."""
    if count <= size:
        return torch.full((count,), 1 / count)
    taken = torch.zeros(count)
    for _ in range(draws):
        taken[torch.from_numpy(rng.choice(count, size, replace=False))] += 1  # type: ignore[attr-defined]
    return taken / taken.sum()


def gradient_distance(found: Tensor, goal: Tensor, flat: bool) -> Tensor:
    """Eq. 20 as a distance: 1 - cos of the whole gradient per class, or summed over its rows and its bias (CReFF)."""
    if flat:
        return (1 - _cos(found.flatten(1), goal.flatten(1))).sum()
    width = found.shape[-1]
    rows = (1 - _cos(found[..., : width - 1], goal[..., : width - 1])).sum()
    return rows + (1 - _cos(found[..., width - 1], goal[..., width - 1])).sum()


def _cos(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1) + 1e-6)


def match_features(
    features: Tensor,
    goals: Tensor,
    classes: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    steps: int,
    lr: float,
    flat: bool,
) -> Tensor:
    """Eqs. 19-20: move the features [n, m, d] of these classes until their head gradients point as the clients' do."""
    rows = features.clone().requires_grad_(True)
    share = torch.full(rows.shape[:2], 1 / rows.shape[1])
    y = classes[:, None].expand(rows.shape[:2])
    whole = bias is not None

    def distance(h: Tensor) -> Tensor:
        found = head_gradients(h, y, weight, bias, share)
        return gradient_distance(found, goals, flat) if whole or flat else (1 - _cos(found, goals)).sum()

    optimiser = torch.optim.SGD([rows], lr=lr)
    for _ in range(steps):
        (rows.grad,) = torch.autograd.grad(distance(rows), [rows])
        optimiser.step()
    return rows.detach()


# ---- inverting batch normalisation (DistFL 4.2)


def bn_layers(model: nn.Module) -> list[nn.Module]:
    """The layers whose running statistics say what they have seen."""
    return [m for m in model.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]


def chosen_channels(layer: nn.Module, ratio: float, absolute: bool) -> Tensor:
    """The share of channels with the largest scaling factor gamma; all without one."""
    gamma = getattr(layer, "weight", None)
    if gamma is None:
        return torch.arange(len(layer.get_buffer("running_mean")))
    gamma = gamma.detach().abs() if absolute else gamma.detach()
    return gamma.topk(math.ceil(ratio * len(gamma))).indices


@dataclass
class Knowledge:
    """What a model says of the data it has seen: statistics of layers, and which channels count."""

    layers: list[nn.Module]
    goals: list[tuple[Tensor, Tensor]]
    channels: list[Tensor]
    after: bool  # whether statistics are of the layers' outputs (no BN) or of their inputs (BN)

    @staticmethod
    def of(model: nn.Module, uploaded: Tensor | None, ratio: float, absolute: bool) -> "Knowledge | None":
        """From BN's running statistics, else from uploaded ones, else None."""
        norms = bn_layers(model)
        if norms:
            goals = [(m.get_buffer("running_mean"), m.get_buffer("running_var")) for m in norms]
            return Knowledge(norms, goals, [chosen_channels(m, ratio, absolute) for m in norms], after=False)
        if uploaded is None:
            return None
        layers = activation_layers(model)
        sizes = [m.get_parameter("weight").shape[0] for m in layers]
        goals = list(zip(uploaded[0].split(sizes), uploaded[1].split(sizes), strict=True))
        return Knowledge(layers, goals, [torch.arange(n) for n in sizes], after=True)


@contextmanager
def watching(layers: list[nn.Module], after: bool) -> Iterator[list[Tensor]]:
    """What goes into (or comes out of) these layers while inside, in the order of the layers' calls."""
    seen: list[Tensor] = []

    def before(module: nn.Module, given: tuple[Tensor, ...]) -> None:
        seen.append(given[0])

    def behind(module: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> None:
        seen.append(out)

    hooks = [m.register_forward_hook(behind) if after else m.register_forward_pre_hook(before) for m in layers]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance per channel, over batch and space."""
    rows = x.transpose(0, 1).flatten(1)
    return rows.mean(1), rows.var(1, unbiased=False)


def statistics_loss(seen: list[Tensor], knowledge: Knowledge) -> Tensor:
    """Sum over layers of |mean - mean*| + |var - var*| on the chosen channels (DistFL eqs. 2 and 4)."""
    total = torch.zeros(())
    for x, (mean, var), chosen in zip(seen, knowledge.goals, knowledge.channels, strict=True):
        found_mean, found_var = statistics(x)
        total = total + (found_mean - mean)[chosen].norm() + (found_var - var)[chosen].norm()
    return total


def extract(model: nn.Module, start: Tensor, knowledge: Knowledge, steps: int, lr: float) -> Tensor:
    """Inputs whose statistics in the model are the known ones: really optimised, with Adam; the best are kept."""
    x = start.clone().requires_grad_(True)

    def loss(inputs: Tensor) -> Tensor:
        with watching(knowledge.layers, knowledge.after) as seen:
            model(inputs)
        return statistics_loss(seen, knowledge)

    descend(x, loss, torch.optim.Adam([x], lr=lr), steps)
    return x.detach()


def responses(model: nn.Module, inputs: Tensor) -> Tensor:
    """Probabilities of a model for inputs, in float64 and never below 1e-8 (DistFL eq. 5)."""
    with torch.no_grad():
        return model(inputs).double().log_softmax(1).exp().clamp(min=1e-8)


def activation_layers(model: nn.Module) -> list[nn.Module]:
    """Where statistics are taken in a model without BN: its convolutions and linear layers."""
    return [m for m in model.modules() if isinstance(m, nn.Linear | nn.Conv1d | nn.Conv2d)]


def activation_statistics(model: nn.Module, samples: Samples, batch: int = 128) -> Tensor:
    """Mean and variance of every channel of every layer over a client's data, in eval mode: [2, channels]."""
    layers = activation_layers(model.eval())
    sums: list[Tensor] = []
    weights = 0
    with torch.no_grad():
        for start in range(0, len(samples), batch):
            index = torch.arange(start, min(start + batch, len(samples)))
            x, _ = samples.take(index)
            with watching(layers, after=True) as seen:
                model(x)
            pairs = [statistics(out) for out in seen]
            mean = torch.cat([m for m, _ in pairs]).double()
            square = torch.cat([v for _, v in pairs]).double() + mean.square()
            sums.append(torch.stack([mean, square]) * len(x))
            weights += len(x)
    mean, square = (torch.stack(sums).sum(0) / weights).unbind()
    return torch.stack([mean, square - mean.square()]).clamp(min=torch.tensor([[-math.inf], [0.0]])).float()
