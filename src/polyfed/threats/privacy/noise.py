"""Standard normal noise, keyed in a simulation and secret between real sites; and the bound on what it hides."""

import math
import secrets
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from polyfed import rng

ROUNDING = 1e-4  # by which the length of a clipped update may exceed the bound in float32
BELOW_ONE = 1 - 2**-24  # the largest number of float32 below 1
BLOCK = 16  # bytes that AES encrypts at a time


def normal(secret: bool, seed: int, purpose: str, *key: int) -> Callable[[Tensor], Tensor]:
    """Standard normal noise: keyed by purpose, round and client in a simulation, secret between real sites.

    Secret noise never comes from torch's generator, which keeps 32 bits of its seed: all of them could be tried.
    """
    if secret:
        return _secret_normal
    bits = _keyed_bits(rng.number(seed, purpose, *key))
    return lambda like: _normal_from(bits(like.numel()), like)


def _keyed_bits(key: int) -> Callable[[int], Tensor]:
    """Gives as many random integers of 32 bits as are asked for: zeros, encrypted by AES in counter mode."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    aes = Cipher(algorithms.AES(key.to_bytes(BLOCK, "big")), modes.CTR(bytes(BLOCK))).encryptor()

    def bits(count: int) -> Tensor:
        made = np.empty(4 * count + BLOCK - 1, dtype=np.uint8)
        aes.update_into(bytes(4 * count), made.data)
        return torch.from_numpy(made[: 4 * count]).view(torch.int32)

    return bits


def _normal_from(bits: Tensor, like: Tensor) -> Tensor:
    """A standard normal number for each integer, by the inverse of the normal distribution function.

    A private step needs one for every weight, and torch's generator would take most of its time. As a float32 has
    24 bits, no number is farther from 0 than 5.4, as one in 17 million should be.
    """
    share = bits.to(torch.float32).mul_(BELOW_ONE / 2**31)  # between -1 and 1
    return torch.erfinv(share, out=share).mul_(math.sqrt(2)).view(like.shape).to(like.device)


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
