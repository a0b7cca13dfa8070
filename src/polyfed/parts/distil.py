"""What a model learns from another: distillation and feature matching."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from polyfed.data.samples import Samples
from polyfed.params import Params
from polyfed.parts.resident import Frozen, in_batches


def kl(teacher: Tensor, student: Tensor, temperature: float = 1.0) -> Tensor:
    """Mean over rows of KL(softmax(teacher / t) || softmax(student / t)), times t^2."""
    goal = F.log_softmax(teacher / temperature, 1)
    found = F.log_softmax(student / temperature, 1)
    return temperature**2 * F.kl_div(found, goal, reduction="batchmean", log_target=True)


def soft_cross_entropy(teacher: Tensor, student: Tensor, temperature: float) -> Tensor:
    """The form of FedPHP's released code: a softened teacher against the unsoftened student, no t^2."""
    return -(F.softmax(teacher / temperature, 1) * F.log_softmax(student, 1)).sum(1).mean()


def mmd(x: Tensor, y: Tensor, kernels: int = 5) -> Tensor:
    """Biased multi-kernel RBF MMD^2; the base bandwidth is the mean distance, kernels double around it."""
    rows = torch.cat([x, y])
    n = len(x)
    distances = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist").square()
    base = distances.detach().sum() / max(len(rows) ** 2 - len(rows), 1) + 1e-8
    k = sum(torch.exp(-distances / (base * 2.0 ** (i - kernels // 2))) for i in range(kernels))
    assert isinstance(k, Tensor)
    return k[:n, :n].mean() + k[n:, n:].mean() - k[:n, n:].mean() - k[n:, :n].mean()


def contrast(rows: Tensor, towards: Tensor, away: Tensor, temperature: float) -> Tensor:
    """Mean over rows of -log(e^(a / t) / (e^(a / t) + e^(b / t))), a and b the cosines with `towards` and `away`."""
    nearer = F.cosine_similarity(rows, away) - F.cosine_similarity(rows, towards)
    return F.softplus(nearer / temperature).mean()


def mean_logits(frozen: Frozen, models: Iterable[Params], on: Samples) -> Tensor:
    """The mean of what several models answer, a row for each sample; they take turns in the frozen copy."""
    total, count = torch.zeros(()), 0
    for count, params in enumerate(models, start=1):
        frozen.params.set(params)
        answers = in_batches(frozen.model, on, 128)
        total = answers if count == 1 else total.add_(answers)
    return total / count
