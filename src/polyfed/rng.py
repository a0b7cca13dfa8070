"""The only source of randomness: a generator from (seed, purpose, where...), the same whenever it is asked."""

import contextlib
import hashlib
import random
from collections.abc import Iterator

import numpy as np
import torch
from numpy.random import mtrand


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


_spare: list[np.random.MT19937] = []  # put in place of numpy's: copying its state costs more than all the rest


def _seed_torch(value: int) -> None:
    """What torch.manual_seed does, for the devices in use: for all others that keeps a note, a millisecond each."""
    torch.default_generator.manual_seed(value)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(value)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(value)


@contextlib.contextmanager
def seeded(seed: int, purpose: str, *where: int) -> Iterator[None]:
    """Global generators follow the key inside (for layers that draw by themselves) and are as before outside."""
    before = random.getstate(), mtrand.get_bit_generator(), torch.get_rng_state()
    value = number(seed, purpose, *where)
    random.seed(value)
    bits = _spare.pop() if _spare else np.random.MT19937()
    mtrand.set_bit_generator(bits)
    np.random.seed(value % 2**32)
    _seed_torch(value)
    try:
        yield
    finally:
        random.setstate(before[0])
        mtrand.set_bit_generator(before[1])
        _spare.append(bits)
        torch.set_rng_state(before[2])
