"""FedNova (Wang et al. 2020): a_k of the steps really taken, normalised updates, tau_eff, server momentum."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from riding import Ride

import by_hand
from polyfed.message import Bundle, Message
from polyfed.methods.base import part_message
from polyfed.methods.fednova import FedNova
from polyfed.params import everything
from polyfed.parts.losses import cross_entropy

Riding = Callable[..., Ride]


def client_of(home: Any, unit: float = 1.0, samples: int = 6, **train: Any):
    received = Bundle(w=home.initial.copy(), unit=unit)
    return by_hand.client(home, by_hand.some(samples), received=received, train={"lr": 0.2} | train)


@pytest.mark.parametrize(
    ("train", "keys", "steps", "a"),
    [
        ({}, {}, 4, 4.0),
        ({"momentum": 0.5}, {}, 3, 1 + 1.5 + 1.75),
        ({"momentum": 0.5}, {"rho": 0.0}, 3, 3.0),
        ({}, {"rho": 0.5}, 3, 1 + 1.5 + 1.75),
        ({}, {"prox": 0.5}, 3, (1 * 0.9 + 1) * 0.9 + 1),  # eta mu = 0.2 * 0.5
        ({"momentum": 0.5, "nesterov": True}, {}, 2, 1.5 + 1.75),
    ],
    ids=str,
)
def test_a_k_by_hand(train: dict[str, Any], keys: dict[str, Any], steps: int, a: float) -> None:
    client = client_of(by_hand.resident(), **train)
    assert FedNova(**keys).reach(client, steps) == pytest.approx(a, rel=1e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.6])
@pytest.mark.parametrize("prox", [0.0, 0.7])
@pytest.mark.parametrize("nesterov", [False, True])
def test_under_a_constant_gradient_an_update_over_a_k_is_that_gradient(
    momentum: float, prox: float, nesterov: bool
) -> None:
    """(w_g - w_k) / (eta a_k) = g, whatever momentum and pull do to the steps: a_k is what they are worth."""
    home, method = by_hand.resident(), FedNova(prox=prox)
    client = client_of(home, momentum=momentum, nesterov=nesterov and momentum > 0)
    g = torch.linspace(-1, 1, home.layout.n_weights)

    def corrected(grad: torch.Tensor) -> None:
        method.correct(client, grad)
        grad.add_(g)

    client.fit(lambda batch: cross_entropy(batch) * 0, steps=5, correct=corrected)
    moved = (home.initial.weights - home.params.weights) / (0.2 * method.reach(client, client.steps))
    torch.testing.assert_close(moved, g, rtol=1e-4, atol=1e-5)


def test_up_goes_the_normalised_update_and_what_the_steps_are_worth() -> None:
    """w_g - u d_k with d_k = (w_g - w_k) / a_k; buffers as they are."""
    home = by_hand.resident(bn=True)
    client = client_of(home, unit=6.0, batch=2)
    upload = FedNova().train(client)
    assert client.steps == 3
    assert upload.tau == 3.0
    d = (home.initial.weights - home.params.weights) / 3
    n = home.layout.n_weights
    torch.testing.assert_close(upload.w[:n], home.initial.weights - 6.0 * d, rtol=1e-5, atol=1e-6)
    assert torch.equal(upload.w[n:], home.params.buffers)
    assert torch.equal(upload["w.integers"], home.params.integers)


def test_with_a_pull_tau_counts_steps() -> None:
    """tau_eff = sum p_k tau_k where the prox is above 0, and each update is over a_k."""
    home = by_hand.resident()
    client = client_of(home, batch=2)
    method = FedNova(prox=0.5)
    upload = method.train(client)
    assert upload.tau == 3.0
    a = (0.9 + 1) * 0.9 + 1
    torch.testing.assert_close(
        upload.w, home.initial.weights + (home.params.weights - home.initial.weights) / a, rtol=1e-5, atol=1e-6
    )


def test_who_took_no_step_sends_what_it_received() -> None:
    home = by_hand.resident()
    client = client_of(home, epochs=0.4)
    upload = FedNova().train(client)
    assert client.steps == 0
    assert upload.tau == 0
    assert torch.equal(upload.w, home.initial.flat)


def sent(home: Any, values: Sequence[float], taus: Sequence[float]) -> list[Message]:
    made = []
    for value, tau in zip(values, taus, strict=True):
        message = part_message("w", *by_hand.as_params(home, value).get(everything))
        message["tau"] = tau
        made.append(message)
    return made


@pytest.mark.parametrize(("weighting", "p"), [("sample", (0.25, 0.75)), ("uniform", (0.5, 0.5))])
def test_the_server_steps_by_tau_eff(weighting: str, p: tuple[float, float]) -> None:
    """w_g = 1; u d_k = -2 and -4; tau_eff = p . (2, 6) (eq. 7); BN statistics: the plain mean."""
    home = by_hand.resident(bn=True)
    method = FedNova()
    server = by_hand.server(home, [1, 3], method, weighting=weighting)
    server.shared, server.state.unit = by_hand.as_params(home, 1.0), 4.0
    method.merge(server, by_hand.uploads(*sent(home, [3.0, 5.0], [2.0, 6.0]), sizes=[1, 3]))
    rate = (2 * p[0] + 6 * p[1]) / 4
    assert server.shared.weights.tolist() == pytest.approx([1 + rate * (2 * p[0] + 4 * p[1])] * home.layout.n_weights)
    assert server.shared.buffers.tolist() == pytest.approx([3 * p[0] + 5 * p[1]] * len(server.shared.buffers))


def test_the_servers_momentum() -> None:
    """v <- gmf v + tau_eff sum p_k d_k, w_g <- w_g - v: two rounds by hand."""
    home = by_hand.resident()
    method = FedNova(gmf=0.5)
    server = by_hand.server(home, [1, 1], method)
    server.shared, server.state.unit = by_hand.as_params(home, 1.0), 1.0
    method.merge(server, by_hand.uploads(*sent(home, [2.0, 2.0], [2.0, 2.0])))  # moves by 2
    assert set(server.shared.flat.tolist()) == {3.0}
    method.merge(server, by_hand.uploads(*sent(home, [4.0, 4.0], [1.0, 1.0])))  # by 1, and half of 2
    assert set(server.shared.flat.tolist()) == {5.0}
    assert set(server.state.velocity.tolist()) == {-2.0}


def test_the_unit_is_what_a_client_of_median_size_travels() -> None:
    home = by_hand.resident()
    method = FedNova()
    server = by_hand.server(home, [0, 30, 100, 330], method)  # who was refused holds nothing; batches of 32
    assert server.state.unit == method.reach(server, 4)
    assert by_hand.server(home, [0], FedNova()).state.unit == 1.0


def test_the_unit_cancels(ride: Riding) -> None:
    """Another scale of the uploads gives the same models, up to rounding."""

    class Other(FedNova):
        def start(self, server: Any) -> None:
            super().start(server)
            server.state.unit = 1.0

    one, other = ride("fednova", data="skewed", rounds=3), ride(Other, data="skewed", rounds=3)
    torch.testing.assert_close(one.params.flat, other.params.flat, rtol=1e-4, atol=1e-5)


def test_a_round_of_skewed_clients_by_the_papers_own_formula(ride: Riding) -> None:
    """w_g - tau_eff sum p_k d_k from the trained models; d_k as in eq. 5."""
    run = ride("fednova", data="skewed", rounds=1)
    n, steps, d = [], [], []
    for k in range(4):
        seen = run.train(1, k)
        n.append(float(len(run.world.federation.clients[k].train)))
        steps.append(float(seen.numbers["steps"]))
        d.append((seen.down.w - seen.live) / steps[-1])
        assert seen.up.tau == steps[-1]
    assert len(set(steps)) > 2, "or this proves little"
    p = torch.tensor(n) / sum(n)
    tau = float((p * torch.tensor(steps)).sum())
    torch.testing.assert_close(run.params.flat, run.initial.flat - tau * (p @ torch.stack(d)), rtol=1e-4, atol=1e-5)


def test_equal_steps_with_momentum_give_fedavg_too(ride: Riding) -> None:
    keys = {"train.momentum": 0.9, "rounds": 2}
    assert torch.equal(ride("fednova", **keys).params.flat, ride("fedavg", **keys).params.flat)


def test_the_messages_by_name(ride: Riding) -> None:
    for seen in ride("fednova", data="skewed", rounds=1).of("train"):
        assert set(seen.down) == {"w", "unit"}
        assert set(seen.up) == {"w", "tau"}
