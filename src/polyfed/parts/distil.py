"""What a model learns from another: distillation and feature matching."""

import torch
import torch.nn.functional as F
from torch import Tensor


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
