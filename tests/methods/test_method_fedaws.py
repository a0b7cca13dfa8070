"""FedAwS (Yu et al. 2020, eq. 7): the server spreads the rows of the averaged head."""

from collections.abc import Callable

import pytest
import torch
from riding import Ride

import by_hand
from polyfed.methods.fedaws import FedAwS
from polyfed.params import head, named
from polyfed.parts.losses import spreadout

Riding = Callable[..., Ride]


def test_the_regulariser_by_hand() -> None:
    """Cosines 0, -1 and 0: distances 1/2, 1 and 1/2; with margin 0.8 two of three pairs lack 0.3."""
    rows = torch.tensor([[2.0, 0.0], [0.0, 5.0], [-1.0, 0.0]])
    assert float(spreadout(rows, 0.8)) == pytest.approx(2 * 0.3**2 / 3, rel=1e-5)
    assert float(spreadout(rows, 0.5)) == 0.0
    assert float(spreadout(rows[:1], 0.8)) == 0.0, "one class has no pair"


def updated(method: FedAwS, bias: bool = True):
    home = by_hand.resident(bias=bias)
    server = by_hand.server(home, [1, 1], method)
    mean = by_hand.as_params(home, torch.randn(home.layout.size, generator=torch.Generator().manual_seed(1)))
    given = mean.copy()
    method.update(server, home.initial, mean)
    return given, server


@pytest.mark.parametrize("bias", [True, False])
def test_its_steps_are_torchs_sgd_on_the_rows(bias: bool) -> None:
    given, server = updated(FedAwS(steps=7, lr=0.2, margin=0.9), bias)
    rows = given.get(named("head.weight"))[0].view(3, 5).clone().requires_grad_(True)
    optimiser = torch.optim.SGD([rows], 0.2, momentum=0.9)
    for _ in range(7):
        optimiser.zero_grad()
        spreadout(rows, 0.9).backward()
        optimiser.step()
    found = server.shared.get(named("head.weight"))[0].view(3, 5)
    torch.testing.assert_close(found, rows.detach(), rtol=1e-5, atol=1e-6)
    assert not torch.equal(found, given.get(named("head.weight"))[0].view(3, 5))


def test_the_bias_and_the_body_stay_the_means() -> None:
    given, server = updated(FedAwS())
    rest = ~named("head.weight")
    assert torch.equal(server.shared.get(rest)[0], given.get(rest)[0])
    assert len(given.get(head)[0]) > len(given.get(named("head.weight"))[0])


def test_rows_are_farther_apart_afterwards() -> None:
    given, server = updated(FedAwS())
    before, after = (spreadout(p.get(named("head.weight"))[0].view(3, 5), 0.8) for p in (given, server.shared))
    assert float(after) < 0.8 * float(before)


@pytest.mark.parametrize("keys", [{"steps": 0}, {"margin": 0.0}], ids=str)
def test_without_steps_or_margin_the_mean_stays_bit_for_bit(keys: dict[str, float]) -> None:
    given, server = updated(FedAwS(**keys))  # type: ignore[arg-type]
    assert torch.equal(server.shared.flat, given.flat)


def test_neither_the_runs_momentum_nor_its_decay_is_the_servers(ride: Riding) -> None:
    """One round from the same uploads: the server's steps know `train` not at all."""
    server = updated(FedAwS(steps=3))[1]
    home, method = server.resident, FedAwS(steps=3)
    other = by_hand.server(home, [1, 1], method, train=by_hand.Train(momentum=0.5, weight_decay=0.5, clip=1e-3))
    mean = by_hand.as_params(home, torch.randn(home.layout.size, generator=torch.Generator().manual_seed(1)))
    method.update(other, home.initial, mean)
    assert torch.equal(other.shared.flat, server.shared.flat)


def test_clients_train_as_in_fedavg_and_sums_suffice(ride: Riding) -> None:
    one, other = ride("fedaws", data="skewed", rounds=1), ride("fedavg", data="skewed", rounds=1)
    assert all(torch.equal(one.train(1, k).up.w, other.train(1, k).up.w) for k in range(4))
    assert not torch.equal(one.params.flat, other.params.flat)
    assert FedAwS().wire().only_sums
