"""What an honest-but-curious server reads from one upload: labels (iDLG) and images (gradient matching).

Zhao et al., iDLG: Improved Deep Leakage from Gradients, 2020; Geiping et al., Inverting Gradients, 2020. The server
knows what it sent and what came back, and hence the gradient of what is shared; it has to guess what is personal.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

RATE = 0.1  # learning rate of Adam, which is given the signs of the gradient
FALLS = (3 / 8, 5 / 8, 7 / 8)  # shares of the steps after which the rate falls to a tenth
START = 0.1  # standard deviation of the noise from which the search for images starts


@dataclass(frozen=True)
class Seen:
    """What the server sees of a client: a model as far as it knows it, and a gradient of the part that is shared."""

    model: nn.Module  # the values it sent; personal ones at their common start
    gradient: dict[str, Tensor]  # by name, of the shared weights
    head: str = "head"  # the name of the last layer

    @property
    def shows_labels(self) -> bool:
        """Whether the gradient of the last layer is among what is seen."""
        return f"{self.head}.weight" in self.gradient


def labels_of(seen: Seen, count: int) -> list[int] | None:
    """The labels of `count` samples; None where the head is personal.

    For one sample it is the class whose row of the head's weight gradient has the smallest sum, since features are not
    negative. For several samples they are the classes with the smallest gradients of the bias.
    """
    if not seen.shows_labels:
        return None
    rows = seen.gradient[f"{seen.head}.weight"].sum(1)
    biases = seen.gradient.get(f"{seen.head}.bias")
    slopes = rows if count == 1 or biases is None else biases
    found = slopes.argsort()[:count].tolist()
    return [*found, *found[:1] * (count - len(found))]  # fewer classes than samples: the likeliest again


def hits(found: Sequence[int], true: Sequence[int]) -> int:
    """How many of the labels are right, whichever sample each belongs to."""
    return sum((Counter(found) & Counter(true)).values())


@dataclass
class Search:
    """How images are searched for."""

    steps: int = 500
    tv: float = 0.01  # weight of the total variation, the mean difference of neighbours
    seed: int = 0


def images_of(
    seen: Seen, labels: Sequence[int] | None, shape: tuple[int, ...], bounds: tuple[Tensor, Tensor], how: Search
) -> tuple[Tensor, float]:
    """The images whose gradient has the smallest angle with the one seen, and the cosine that they reach.

    Where labels are unknown they are searched for, too.
    """
    generator = torch.Generator().manual_seed(how.seed)
    x = (START * torch.randn(shape, generator=generator)).requires_grad_(True)
    classes = seen.model(x.detach()).shape[1]
    guess = torch.zeros(len(x), classes, requires_grad=True)
    goal = None if labels is None else torch.tensor(labels)
    names = list(seen.gradient)
    parameters = [dict(seen.model.named_parameters())[name].requires_grad_(True) for name in names]
    target = torch.cat([seen.gradient[name].flatten() for name in names])
    searched = [x] if goal is not None else [x, guess]
    optimiser = torch.optim.Adam(searched, lr=RATE)
    falls = torch.optim.lr_scheduler.MultiStepLR(optimiser, [int(how.steps * at) for at in FALLS], 0.1)
    best, nearest = x.detach().clone(), -1.0
    for _ in range(how.steps):
        loss = F.cross_entropy(seen.model(x), goal if goal is not None else guess.softmax(1))
        found = torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True)
        flat = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]
        cosine = F.cosine_similarity(torch.cat([g.flatten() for g in flat]), target, dim=0)
        if float(cosine.detach()) > nearest:
            best, nearest = x.detach().clone(), float(cosine.detach())
        slopes = torch.autograd.grad(1 - cosine + how.tv * variation(x), searched, allow_unused=True)
        for value, slope in zip(searched, slopes, strict=True):
            value.grad = torch.zeros_like(value) if slope is None else slope.sign()
        optimiser.step()
        falls.step()
        with torch.no_grad():
            x.clamp_(*bounds)
    return best, nearest


def variation(x: Tensor) -> Tensor:
    """The mean absolute difference of neighbouring pixels, across and down."""
    return (x[..., 1:] - x[..., :-1]).abs().mean() + (x[..., 1:, :] - x[..., :-1, :]).abs().mean()


def psnr(found: Tensor, true: Tensor) -> list[float]:
    """Decibels of every true image against the one found for it, under the best pairing; pixels lie in [0, 1]."""
    from scipy.optimize import linear_sum_assignment

    errors = (true[:, None] - found[None]).square().flatten(2).mean(2).double()
    rows, columns = linear_sum_assignment(errors.numpy())
    return [decibels(float(errors[row, column])) for row, column in zip(rows, columns, strict=True)]


def decibels(error: float) -> float:
    """10 log10(1 / MSE); an exact copy has 100."""
    return min(100.0, -10 * torch.tensor(max(error, 1e-12)).log10().item())
