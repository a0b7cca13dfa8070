"""FedOpt (Reddi et al. 2021, algorithms 1 and 2): four server optimisers, as torch has them or by hand."""

from typing import Any

import pytest
import torch
from torch import Tensor

import by_hand
from polyfed.errors import UsageError
from polyfed.methods.base import methods
from polyfed.methods.fedopt import FedOpt
from polyfed.params import Params

CHANGES = [0.5, -0.25, 1.0]  # of all weights, round by round


def rounds(method: FedOpt, changes: list[float] = CHANGES, bn: bool = False) -> tuple[list[float], Any]:
    """The weights after each round in which the clients' mean lies so far from the shared model; and the server."""
    home = by_hand.resident(bn=bn)
    server = by_hand.server(home, [1, 1], method)
    server.shared, found = by_hand.as_params(home, 2.0), []
    for change in changes:
        before = server.shared
        mean = Params(home.layout, before.flat + change, before.integers)
        method.update(server, before, mean)
        (value,) = set(server.shared.weights.tolist())
        found.append(value)
    return found, server


@pytest.mark.parametrize(("lr", "momentum"), [(0.1, 0.9), (1.0, 0.0), (0.5, 0.0), (1.0, 0.5)])
def test_sgd_is_torchs(lr: float, momentum: float) -> None:
    w = torch.tensor([2.0], requires_grad=True)
    optimiser, expected = torch.optim.SGD([w], lr, momentum=momentum), []
    for change in CHANGES:
        w.grad = torch.tensor([-change])
        optimiser.step()
        expected.append(w.item())
    found, _ = rounds(FedOpt(server="sgd", server_lr=lr, momentum=momentum))
    assert found == pytest.approx(expected, rel=1e-6)


def by_algorithm_2(kind: str, lr: float, b1: float, b2: float, tau: float) -> list[float]:
    x, m, v, found = 2.0, 0.0, tau**2, []
    for delta in CHANGES:
        m = b1 * m + (1 - b1) * delta
        square = delta**2
        if kind == "adagrad":
            v = v + square
        elif kind == "yogi":
            v = v - (1 - b2) * square * (1 if v > square else -1 if v < square else 0)
        else:
            v = b2 * v + (1 - b2) * square
        x = x + lr * m / (v**0.5 + tau)
        found.append(x)
    return found


@pytest.mark.parametrize(("kind", "b1"), [("adam", 0.9), ("yogi", 0.9), ("adagrad", 0.0)])
def test_the_adaptive_ones_are_algorithm_2(kind: Any, b1: float) -> None:
    """With the paper's betas by default, m at zero and v at tau^2."""
    found, server = rounds(FedOpt(server=kind))
    assert found == pytest.approx(by_algorithm_2(kind, 0.01, b1, 0.99, 1e-3), rel=1e-5)
    assert {"m", "v"} == set(server.state)
    own = FedOpt(server=kind, server_lr=0.3, beta1=0.5, beta2=0.5, tau=0.1)
    assert rounds(own)[0] == pytest.approx(by_algorithm_2(kind, 0.3, 0.5, 0.5, 0.1), rel=1e-5)


def test_yogi_lets_the_second_moment_fall_by_a_step_and_adam_by_a_share() -> None:
    """After a large change and none at all: Yogi's v moves with the change alone, and Adam's decays."""
    (_, yogi), (_, adam) = (rounds(FedOpt(server=k, beta2=0.5), [1.0, 0.0]) for k in ("yogi", "adam"))
    assert yogi.state.v[0].item() == pytest.approx(0.500001, rel=1e-5)
    assert adam.state.v[0].item() == pytest.approx(0.25, rel=1e-5)


@pytest.mark.parametrize("kind", ["sgd", "adam", "yogi", "adagrad"])
def test_buffers_are_plainly_averaged(kind: Any) -> None:
    _, server = rounds(FedOpt(server=kind), [0.5], bn=True)
    assert set(server.shared.buffers.tolist()) == {2.5}


def test_nothing_is_remembered_that_nobody_needs() -> None:
    assert set(rounds(FedOpt(server_lr=1.0, momentum=0.0))[1].state) == set()
    assert set(rounds(FedOpt())[1].state) == {"velocity"}


def test_what_the_server_remembers_is_new_each_round() -> None:
    """A checkpoint of the round before still holds its own."""
    for kind in ("sgd", "adam"):
        method = FedOpt(server=kind)
        _, server = rounds(method, [1.0])
        kept = {name: (value, value.clone()) for name, value in server.state.items()}
        before = server.shared
        method.update(server, before, Params(before.layout, before.flat + 1, before.integers))
        assert all(torch.equal(value, copy) for value, copy in kept.values())
        assert not any(value is server.state[name] for name, (value, _) in kept.items())


@pytest.mark.parametrize("keys", [{"server": "rmsprop"}, {"server_lr": 0}, {"momentum": 1.0}, {"tau": 0.0}], ids=str)
def test_what_it_does_not_take_is_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=rf"method\.{next(iter(keys))}"):
        methods.build({"name": "fedopt", **keys}, "method")


def test_only_sums_are_needed() -> None:
    assert FedOpt().wire().only_sums


def test_sgd_at_rate_one_leaves_the_mean_bit_for_bit() -> None:
    home = by_hand.resident()
    method = FedOpt(server_lr=1.0, momentum=0.0)
    server = by_hand.server(home, [1], method)
    values: Tensor = torch.randn(home.layout.size)
    method.update(server, server.shared, by_hand.as_params(home, values))
    assert torch.equal(server.shared.flat, values)
