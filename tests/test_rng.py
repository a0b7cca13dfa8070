"""Keyed randomness: the same whenever it is asked, another for every other key, and none of it leaks."""

import contextlib
import random

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from polyfed import rng

keys = st.tuples(st.integers(0, 2**40), st.sampled_from(["select", "batches", "init"]), st.lists(st.integers(-1, 1000)))


@given(keys, keys)
def test_number_depends_on_every_part_of_the_key(one: tuple, other: tuple) -> None:
    first, second = (rng.number(seed, purpose, *where) for seed, purpose, where in (one, other))
    assert (first == second) == (one == other)
    assert 0 <= first < 2**63


def test_keys_do_not_run_into_each_other() -> None:
    """(1, 23) is not (12, 3), and a place more is another key."""
    numbers = [
        rng.number(0, "p", 1, 23),
        rng.number(0, "p", 12, 3),
        rng.number(0, "p", 123),
        rng.number(0, "p", 1, 23, 0),
    ]
    numbers += [rng.number(0, "p1", 23), rng.number(10, "p"), rng.number(1, "0p"), rng.number(0, "p")]
    assert len(set(numbers)) == len(numbers)


def test_numbers_stay_what_they_are() -> None:
    """A run of today must be resumed tomorrow with the same keys."""
    assert rng.number(0, "select", 1, 0) == 3918661935871837340
    assert rng.generator(3, "batches", 2, 7).integers(1000, size=4).tolist() == [725, 607, 22, 795]
    drawn = torch.randint(1000, (4,), generator=rng.torch_generator(3, "augment", 2))
    assert drawn.tolist() == [435, 747, 658, 585]


def test_order_of_asking_does_not_matter() -> None:
    places = [(round, client) for round in range(3) for client in range(3)]
    forward = {place: rng.generator(0, "p", *place).random(3).tolist() for place in places}
    backward = {place: rng.generator(0, "p", *place).random(3).tolist() for place in reversed(places)}
    assert forward == backward
    assert len({tuple(values) for values in forward.values()}) == 9


def test_asking_does_not_touch_the_global_generators() -> None:
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    rng.generator(0, "p").random(5)
    torch.rand(5, generator=rng.torch_generator(0, "p"))
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before


def draw() -> list[float]:
    """One number from each of the three global generators."""
    return [random.random(), float(np.random.rand()), float(torch.rand(1))]


class TestSeeded:
    def test_inside_follows_the_key(self) -> None:
        drawn = []
        for where in ((1, 2), (1, 2), (2, 1)):
            draw()
            with rng.seeded(0, "work", *where):
                drawn.append(draw())
        assert drawn[0] == drawn[1]
        assert all(a != b for a, b in zip(drawn[0], drawn[2], strict=True))

    def test_outside_is_as_before(self) -> None:
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        undisturbed = [draw(), draw()]
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        disturbed = [draw()]
        with rng.seeded(0, "work"):
            draw()
        disturbed.append(draw())
        assert disturbed == undisturbed

    def test_also_after_an_exception(self) -> None:
        before = torch.get_rng_state().tolist(), random.getstate()
        with contextlib.suppress(ValueError), rng.seeded(0, "work"):
            draw()
            raise ValueError("inside")
        assert (torch.get_rng_state().tolist(), random.getstate()) == before

    def test_nested(self) -> None:
        with rng.seeded(0, "outer"):
            alone = [draw(), draw()]
        with rng.seeded(0, "outer"):
            first = draw()
            with rng.seeded(0, "inner"):
                draw()
            assert [first, draw()] == alone
