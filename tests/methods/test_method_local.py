"""Local, the control: every client alone, as many epochs as it would expect in federation."""

from collections.abc import Callable

import pytest
import torch
from riding import Ride

import by_hand
from polyfed.methods.local import Local

Riding = Callable[..., Ride]


@pytest.mark.parametrize(
    ("participation", "epochs", "expected"), [(1.0, 1, [3, 3, 3, 3]), (0.5, 1, [2, 1, 1, 2]), (0.1, 1, [0, 1, 0, 0])]
)
def test_steps_add_up_to_the_expected_epochs(participation: float, epochs: int, expected: list[int]) -> None:
    """T Q E epochs in all, by steps: fractions are not lost to rounding (round half to even: 1.5 is 2, 4.5 is 4)."""
    taken = []
    for number in (1, 2, 3, 4):
        client = by_hand.client(
            by_hand.resident(),
            by_hand.some(12),
            round=number,
            rounds=4,
            participation=participation,
            train={"batch": 4, "epochs": epochs},
        )
        Local().train(client)
        taken.append(client.steps)
    assert sum(taken) == round(4 * participation * epochs * 3)
    assert taken == expected


def test_nothing_is_sent_and_everybody_trains_whoever_is_selected(ride: Riding) -> None:
    run = ride("local", data="skewed", rounds=2, participation=0.5)
    assert run.result["bytes"] == {"up": 0, "down": 0, "eval": 0}
    assert len(run.of("train")) == 8
    assert all(len(s.down) == len(s.up) == 0 for s in run.seen)
    assert torch.equal(run.params.flat, run.initial.flat)
    assert run.result["global"] is None


def test_each_goes_on_from_its_own_model(ride: Riding) -> None:
    run = ride("local", data="skewed", rounds=3)
    for k in range(4):
        one, two = run.train(1, k), run.train(2, k)
        assert two.before == one.after
        assert torch.equal(two.memory()["personal"], two.live)
    assert len({tuple(run.train(3, k).live.tolist()) for k in range(4)}) == 4
