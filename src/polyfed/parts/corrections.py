"""Terms in parameters: a correction adds to the flat gradient, in place."""

from torch import Tensor


def pull(grad: Tensor, here: Tensor, there: Tensor, strength: float) -> None:
    """Gradient of (strength / 2) * |here - there|^2."""
    grad.add_(here - there, alpha=strength)
