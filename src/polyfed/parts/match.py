"""Matching gradients of a linear head: features per class that pull a head as the clients' data do.

CReFF (Shang et al. 2022); the equation numbers are those of MuPFL (Zhang et al. 2024).
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from polyfed.data.augment import Augmenter
from polyfed.data.samples import Samples
from polyfed.models.base import Net
from polyfed.parts.chunks import in_chunks, ranges
from polyfed.parts.resident import in_batches

Head = tuple[Tensor, Tensor | None]
CLASS_CHUNKS = 8  # at most so many chunks of the classes whose features are matched
WORTH = 1 << 23  # products per step: with fewer, a step is mostly Python, which threads cannot share
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
    """Eq. 17: the classes of which gradients were sent, and the mean gradient of each; zero means are left out."""
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
    work = features[0].numel() * len(head[0])  # of one class

    def moved(some: slice) -> Tensor:  # classes are independent of each other
        rows, goal = features[some], goals[some]
        y = classes[some, None].expand(rows.shape[:2])
        for _ in range(steps):
            rows = rows.detach().requires_grad_(True)
            distance = gradient_distance(head_gradients(rows, y, head), goal, head[1] is not None, flat)
            (slope,) = torch.autograd.grad(distance, [rows])
            rows = rows - lr * slope
        return rows.detach()

    return torch.cat(in_chunks(moved, ranges(len(classes), -(-WORTH // work), CLASS_CHUNKS))).cpu()


def labelled(features: Tensor, classes: Tensor, device: torch.device) -> Samples:
    """Features [n, m, d] of these classes as rows to train a head on."""
    y = classes.repeat_interleave(features.shape[1])
    return Samples.of(features.flatten(0, 1).to(device), y.to(device), cut="head")
