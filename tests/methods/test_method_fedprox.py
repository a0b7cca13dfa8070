"""FedProx (Li et al. 2020, eq. 2): F_k(w) + mu/2 |w - w_t|^2. The chain to FedAvg is in test_identities.py."""

from collections.abc import Callable

import torch
from riding import Ride

import by_hand
from polyfed.methods.fedprox import FedProx

Riding = Callable[..., Ride]


def test_the_correction_is_the_gradient_of_equation_2() -> None:
    home = by_hand.resident()
    client = by_hand.client(home, by_hand.some(6))
    home.params.weights.add_(0.25)
    grad = torch.ones(home.layout.n_weights)
    FedProx(mu=0.4).correct(client, grad)
    torch.testing.assert_close(grad, torch.full_like(grad, 1 + 0.4 * 0.25))


def test_the_pull_is_to_the_model_of_this_round_and_spares_the_buffers() -> None:
    home = by_hand.resident(bn=True)
    sent = by_hand.as_params(home, 0.5)
    client = by_hand.client(home, by_hand.some(6), received=sent)
    home.params.flat.fill_(2.0)
    grad = torch.zeros(home.layout.n_weights)
    FedProx(mu=1.0).correct(client, grad)
    assert set(grad.tolist()) == {1.5}
    assert set(home.params.buffers.tolist()) == {2.0}


def test_a_stronger_pull_keeps_clients_nearer(ride: Riding) -> None:
    moved = []
    for mu in (0.0, 0.5, 5.0):
        run = ride({"name": "fedprox", "mu": mu}, data="skewed", rounds=1)
        moved.append(float((run.train(1, 0).up.w - run.initial.flat).norm()))
    assert moved[0] > moved[1] > moved[2] > 0
