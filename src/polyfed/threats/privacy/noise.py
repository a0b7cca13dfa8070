"""Standard normal noise, keyed in a simulation and secret between real sites; and the bound on what it hides."""

import secrets
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from polyfed import rng

ROUNDING = 1e-4  # by which the length of a clipped update may exceed the bound in float32


def normal(secret: bool, seed: int, purpose: str, *key: int) -> Callable[[Tensor], Tensor]:
    """Standard normal noise: keyed by purpose, round and client in a simulation, secret between real sites.

    Secret noise never comes from torch's generator, which keeps 32 bits of its seed: all of them could be tried.
    """
    if secret:
        return _secret_normal
    generator = torch.Generator().manual_seed(rng.number(seed, purpose, *key))
    return lambda like: torch.randn(like.shape, generator=generator).to(like.device)


def _secret_normal(like: Tensor) -> Tensor:
    generator, shape = secret_generator(), tuple(like.shape)
    # four draws hide the holes that floating-point numbers leave in one (Holohan and Braghin 2021)
    values = sum(generator.standard_normal(shape) for _ in range(4)) / 2
    return torch.as_tensor(values, dtype=like.dtype, device=like.device)


def secret_generator() -> np.random.Generator:
    """A generator with a key of 128 bits that nobody has seen."""
    return np.random.Generator(np.random.Philox(key=secrets.randbits(128)))


def clipped(update: Tensor, longest: float) -> tuple[Tensor, bool]:
    """An update of at most this length, and whether it had been longer."""
    length = float(torch.linalg.vector_norm(update))
    if length <= longest:
        return update, False
    return update * (longest / length), length > longest * (1 + ROUNDING)
