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
PIXELS = 64  # of a class, in each picture that shows it
CLASS_CHUNKS = 8  # at most so many chunks of the classes whose features are matched
WORTH = 1 << 23  # products per step: with fewer, a step is mostly Python, which threads cannot share
EPS = 1e-6  # in the denominator of the cosine; a gradient this short has no direction


def linear(layer: nn.Module) -> Head:
    """Weight and bias of a linear head as they are now, without gradient."""
    assert isinstance(layer, nn.Linear)
    return layer.weight.detach().clone(), None if layer.bias is None else layer.bias.detach().clone()


def head_gradients(rows: Tensor, y: Tensor, head: Head) -> Tensor:
    """Mean over rows [..., n, d] of grad_v CE(v . h_j, y_j), in closed form: [..., C, d (+ 1 for the bias)]."""
    _, error = _errors(rows, nn.functional.one_hot(y, len(head[0])).mT, head)
    return _gradients(rows, error, head)


def _errors(rows: Tensor, goals: Tensor, head: Head) -> tuple[Tensor, Tensor]:
    """Probabilities [..., C, n], and the gradient of the mean cross-entropy in the logits, a column per sample."""
    weight, bias = head
    logits = weight @ rows.mT  # softmax over ten rows is ten times as fast as over ten columns
    p = (logits if bias is None else logits + bias[:, None]).softmax(-2)
    return p, (p - goals) / rows.shape[-2]


def _gradients(rows: Tensor, error: Tensor, head: Head) -> Tensor:
    gradient = error @ rows
    return gradient if head[1] is None else torch.cat([gradient, error.sum(-1, keepdim=True)], -1)


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
    """Eq. 16: per class the mean over some draws of its samples, augmented or not, of grad_v CE at the live model.

    Of masks, a draw takes some random pixels of the class in each of its images that show it.
    """
    net.eval()
    if samples.masks:
        return _pixel_gradients(net, samples, classes, size, draws, rng, augment)
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


def _pixel_gradients(
    net: Net,
    samples: Samples,
    classes: Tensor,
    size: int,
    draws: int,
    rng: np.random.Generator,
    augment: Augmenter | None,
) -> Tensor:
    """The same of pixels; a class that augmentation has moved out of every picture has none, and a zero gradient."""
    head, generator, found = linear(net.head), torch.Generator().manual_seed(int(rng.integers(2**62))), []
    masks = samples.y
    for c in classes.tolist():
        shows = (masks == c).flatten(1).any(1).nonzero().flatten()
        shows = shows[drawn(len(shows), size, draws, rng).to(shows.device)]
        rows = [torch.empty(0, head[0].shape[1], device=head[0].device)]
        for some in shows.split(samples.at_once(size)):
            x, y = samples.take(some)
            if augment is not None:
                x, y = augment.both(x, y, generator)
            with torch.no_grad():
                rows += [
                    at_pixels(each, _pixels_of(c, mask, rng), mask.shape)
                    for each, mask in zip(net.features(x), y, strict=True)
                ]
        all_rows = torch.cat(rows)
        found.append(
            head_gradients(all_rows, torch.full((len(all_rows),), c, device=all_rows.device), head)
            if len(all_rows)
            else torch.zeros(len(head[0]), head[0].shape[1] + (head[1] is not None), device=head[0].device)
        )
    return torch.stack(found)


def _pixels_of(c: int, mask: Tensor, rng: np.random.Generator) -> Tensor:
    """Some random pixels of a class, as rows and columns."""
    found = (mask == c).nonzero()
    return found[torch.from_numpy(rng.permutation(len(found))[:PIXELS]).to(found.device)]


def at_pixels(features: Tensor, pixels: Tensor, size: Sequence[int]) -> Tensor:
    """The features [h, w, d] of single pixels of an image of this size: what spreading the map would give there."""
    places = (2 * pixels.flip(1) + 1) / torch.tensor(size[::-1], device=pixels.device) - 1
    maps = features.permute(2, 0, 1)[None]
    found = nn.functional.grid_sample(maps, places[None, None], padding_mode="border", align_corners=False)
    return found[0, :, 0].T


def class_means(sent: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Eq. 17: the classes of which gradients were sent, and the mean gradient of each; zero means are left out."""
    each: dict[int, list[Tensor]] = {}
    for classes, gradients in sent:
        for c, z in zip(classes.tolist(), gradients.cpu(), strict=True):
            each.setdefault(c, []).append(z)
    means = {c: torch.stack(each[c]).mean(0) for c in sorted(each)}
    means = {c: z for c, z in means.items() if 0 <= c < len(z) and z.norm() > EPS}
    return torch.tensor([*means], dtype=torch.int64), torch.stack([*means.values()]) if means else torch.empty(0)


def distance_slope(found: Tensor, goal: Tensor, bias: bool, flat: bool) -> Tensor:
    """Of eq. 20 as a distance, 1 - cos of a class's whole gradient or of each row and of the bias: its gradient."""
    if flat:
        return _turn(found.flatten(1), goal.flatten(1)).view_as(found)
    if not bias:
        return _turn(found, goal)
    return torch.cat([_turn(found[..., :-1], goal[..., :-1]), _turn(found[..., -1], goal[..., -1])[..., None]], -1)


def _turn(a: Tensor, b: Tensor) -> Tensor:
    """The gradient in a of 1 - <a, b> / (|a| |b| + eps), where a is 0 that of the product alone."""
    long, goal = a.norm(dim=-1, keepdim=True), b.norm(dim=-1, keepdim=True)
    whole = long * goal + EPS
    cos = (a * b).sum(-1, keepdim=True) / whole
    return (a * (cos * goal / long.clamp(min=torch.finfo(a.dtype).tiny)) - b) / whole


def match_features(
    features: Tensor, goals: Tensor, classes: Tensor, head: Head, steps: int, lr: float, flat: bool
) -> Tensor:
    """Eqs. 19-20: move the features [n, m, d] of these classes until their head gradients point as the clients' do."""
    features, goals, classes = (t.to(head[0].device) for t in (features, goals, classes))
    work = features[0].numel() * len(head[0])  # of one class

    def moved(some: slice) -> Tensor:  # classes are independent of each other
        rows, y = features[some], nn.functional.one_hot(classes[some], len(head[0]))[..., None]
        for _ in range(steps):
            rows = rows.sub(_matching_slope(rows, y, goals[some], head, flat), alpha=lr)
        return rows

    return torch.cat(in_chunks(moved, ranges(len(classes), -(-WORTH // work), CLASS_CHUNKS))).cpu()


def _matching_slope(rows: Tensor, y: Tensor, goal: Tensor, head: Head, flat: bool) -> Tensor:
    """The gradient of the distance in the features: through the products with the errors, and through the errors."""
    p, error = _errors(rows, y, head)
    by = distance_slope(_gradients(rows, error, head), goal, head[1] is not None, flat)
    by_weight, by_bias = by[..., : rows.shape[-1]], by[..., rows.shape[-1] :]
    by_error = by_weight @ rows.mT
    if head[1] is not None:
        by_error += by_bias
    by_logits = p * (by_error - (p * by_error).sum(-2, keepdim=True)) / rows.shape[-2]
    return error.mT @ by_weight + by_logits.mT @ head[0]


def labelled(features: Tensor, classes: Tensor, device: torch.device) -> Samples:
    """Features [n, m, d] of these classes as rows to train a head on."""
    y = classes.repeat_interleave(features.shape[1])
    return Samples.of(features.flatten(0, 1).to(device), y.to(device), cut="head")
