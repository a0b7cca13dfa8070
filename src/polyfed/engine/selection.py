"""Which clients a round asks: a function of seed, round and attempt, the same on every site."""

from collections.abc import Sequence

import numpy as np

from polyfed import rng
from polyfed.config import Config


def drawn(
    config: Config, everybody: Sequence[int], number: int, attempt: int, secret: np.random.Generator | None = None
) -> list[int]:
    """The clients of an attempt at a round, in order; under user-level privacy a round may draw nobody.

    They follow from the seed, unless they are to stay a secret.
    """
    draw = secret or rng.generator(config.seed, "select", number, attempt)
    if config.sampling == "bernoulli":
        chosen = [k for k in everybody if draw.random() < config.participation]
        if chosen or config.privacy.empty_rounds:
            return chosen
        return [everybody[int(draw.integers(len(everybody)))]]
    count = max(1, round(config.participation * len(everybody)))
    return sorted(int(k) for k in draw.choice(everybody, size=count, replace=False))


def most_appearances(config: Config, everybody: Sequence[int]) -> int:
    """How many rounds the client that is drawn most often takes part in, if no round is drawn again."""
    if config.method.everyone or config.participation == 1:
        return config.rounds
    counts = dict.fromkeys(everybody, 0)
    for number in range(1, config.rounds + 1):
        for client in drawn(config, everybody, number, 0):
            counts[client] += 1
    return max(counts.values())
