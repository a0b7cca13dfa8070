"""tau-norm: rows of the head over a power of their length, no bias, nothing trained."""

from collections.abc import Callable

import pytest
import torch
from riding import Ride
from torch import nn

import by_hand
from polyfed.data.samples import Samples
from polyfed.errors import UsageError
from polyfed.message import Memory
from polyfed.methods.base import methods
from polyfed.methods.tau_norm import TauNorm
from polyfed.models.base import Net
from polyfed.parts.resident import Resident

Riding = Callable[..., Ride]


@pytest.mark.parametrize("tau", [0.0, 0.5, 1.0])
def test_the_head_is_equation_4(tau: float) -> None:
    home, data = by_hand.resident(), by_hand.some()
    client = by_hand.client(home, data)
    method = TauNorm(tau=tau)
    method.finish(client)
    weight = home.model.head.weight.detach()
    expected = home.model.features(data.pool.x) @ (weight / weight.norm(dim=1, keepdim=True) ** tau).T
    assert client.memory.tau == tau
    torch.testing.assert_close(method.predictor(client)(data.pool.x), expected)
    assert torch.equal(home.params.flat, home.initial.flat), "the live model is left as it was"


def identity_net() -> Net:
    return Net(nn.Identity(), nn.Identity(), nn.Linear(2, 2, bias=False))


def searched(weight: list[list[float]], x: list[list[float]], y: list[int]) -> float:
    home = Resident(identity_net)
    home.initial.flat.copy_(torch.tensor(weight).flatten())
    client = by_hand.client(home, Samples.of(torch.tensor(x), torch.tensor(y)), classes=2)
    TauNorm(tau="search").finish(client)
    return client.memory.tau


def test_search_takes_the_smallest_tau_that_recalls_all_classes() -> None:
    """Rows (4, 0) and (0, 1): the sample (1, 2) is of class 1 once 4^(1 - tau) < 2, from tau = 0.6 on."""
    assert searched([[4.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [1.0, 2.0]], [0, 1]) == 0.6


def test_search_leaves_a_head_that_is_right() -> None:
    assert searched([[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]], [0, 1]) == 0.0


def test_search_counts_classes_alike() -> None:
    """Three samples (1, 0.6) of class 0 are lost from tau = 0.9 on, one of class 1, (1, 1.1), is won there."""
    x = [[1.0, 1.2]] * 3 + [[1.0, 1.3]]
    assert searched([[4.0, 0.0], [0.0, 1.0]], x, [0, 0, 0, 1]) == 0.0
    assert searched([[4.0, 0.0], [0.0, 1.0]], [[1.0, 1.2]] * 3 + [[1.0, 3.0], [1.0, 2.0]], [0, 0, 0, 1, 1]) == 0.6


def test_all_clients_answer_alike_and_the_base_stays(ride: Riding) -> None:
    run = ride("tau-norm", data="skewed", rounds=2)
    heads = [run.result.client(k).model.head.weight for k in range(4)]
    assert all(torch.equal(heads[0], other) for other in heads)
    assert run.result["personal_before"] == run.result["global_local"]
    assert run.result["global"] == ride("fedavg", data="skewed", rounds=2).result["global"]


@pytest.mark.parametrize("tau", [-0.1, 1.1, "best"])
def test_another_tau_is_refused(tau: object) -> None:
    with pytest.raises(UsageError, match=r"method\.tau"):
        methods.build({"name": "tau-norm", "tau": tau}, "method")


def test_a_client_that_is_not_finished_answers_with_its_base() -> None:
    home = by_hand.resident()
    client = by_hand.client(home, by_hand.some(), memory=Memory())
    assert TauNorm().predictor(client) is client.model
