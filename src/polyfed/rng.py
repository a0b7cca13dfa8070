"""The only source of randomness: a generator from (seed, purpose, where...), the same whenever it is asked."""

import contextlib
import hashlib
import random
from collections.abc import Iterator

import numpy as np
import torch


def number(seed: int, purpose: str, *where: int) -> int:
    """63 bits that depend on every part of the key and on nothing else."""
    text = "/".join([str(seed), purpose, *map(str, where)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, purpose: str, *where: int) -> np.random.Generator:
    """A fresh numpy generator for this purpose at this place (round, client, ...)."""
    return np.random.Generator(np.random.Philox(number(seed, purpose, *where)))


def torch_generator(seed: int, purpose: str, *where: int) -> torch.Generator:
    """The same for torch, on the CPU."""
    return torch.Generator().manual_seed(number(seed, purpose, *where))


@contextlib.contextmanager
def seeded(seed: int, purpose: str, *where: int) -> Iterator[None]:
    """Global generators follow the key inside (for layers that draw by themselves) and are as before outside."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    value = number(seed, purpose, *where)
    random.seed(value)
    np.random.seed(value % 2**32)
    torch.manual_seed(value)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])
