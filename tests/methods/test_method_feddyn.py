"""FedDyn (Acar et al. 2021, algorithm 1): the linear term, the pull, and the server's state."""

from collections.abc import Callable

import pytest
import torch
from riding import Ride, spoiling

import by_hand
from polyfed.message import Memory
from polyfed.methods.base import part_message
from polyfed.methods.feddyn import FedDyn
from polyfed.params import everything

Riding = Callable[..., Ride]


def test_the_correction_is_the_gradient_of_its_two_terms() -> None:
    """-g_k + alpha (w - w_g)."""
    home = by_hand.resident()
    g_k = torch.linspace(-1, 1, home.layout.n_weights)
    client = by_hand.client(home, by_hand.some(6), memory=Memory(gradient=g_k))
    home.params.weights.add_(0.5)
    grad = torch.ones(home.layout.n_weights)
    FedDyn(alpha=0.4).correct(client, grad)
    torch.testing.assert_close(grad, 1 - g_k + 0.4 * 0.5)


def test_at_first_there_is_no_linear_term() -> None:
    home = by_hand.resident()
    client = by_hand.client(home, by_hand.some(6))
    home.params.weights.add_(0.5)
    grad = torch.zeros(home.layout.n_weights)
    FedDyn(alpha=0.4).correct(client, grad)
    torch.testing.assert_close(grad, torch.full_like(grad, 0.2))


def test_the_linear_term_moves_against_the_update() -> None:
    """g_k <- g_k - alpha (w_k - w_g); up goes w_k and nothing else."""
    home = by_hand.resident(bn=True)
    g_k = torch.full((home.layout.n_weights,), 0.3)
    client = by_hand.client(home, by_hand.some(6), memory=Memory(gradient=g_k), train={"lr": 0.1})
    upload = FedDyn(alpha=0.5).train(client)
    moved = home.params.weights - home.initial.weights
    torch.testing.assert_close(client.memory.gradient, 0.3 - 0.5 * moved)
    assert set(upload) == {"w", "w.integers"}
    assert torch.equal(upload.w, home.params.flat)
    assert g_k.tolist() == [pytest.approx(0.3)] * len(g_k), "the memory it began with stays"


@pytest.mark.parametrize(("own", "run", "longest"), [(0.01, None, 0.01), (None, None, 1e9), (0.01, 0.5, 0.5)])
def test_the_whole_gradient_is_clipped(own: float | None, run: float | None, longest: float) -> None:
    """At `clip`, unless the run has a limit of its own; the linear term is part of what is clipped."""
    home = by_hand.resident()
    g_k = torch.full((home.layout.n_weights,), 7.0)
    train = {"lr": 1.0} if run is None else {"lr": 1.0, "clip": run}
    client = by_hand.client(home, by_hand.some(6), memory=Memory(gradient=g_k), train=train)
    FedDyn(clip=own).local(client, steps=1)
    moved = float((home.params.weights - home.initial.weights).norm())
    assert moved == pytest.approx(longest, rel=1e-3) if longest < 1e9 else moved > 10


def test_the_server_by_hand() -> None:
    """K = 4, |S| = 2: h = -(0.5 / 4) (1 + 5); w_g = 4 - h / 0.5, then once more; BN statistics: the plain mean."""
    home = by_hand.resident(bn=True)
    method = FedDyn(alpha=0.5)
    server = by_hand.server(home, [1, 9, 1, 1], method)
    server.shared = by_hand.as_params(home, 1.0)

    def sent(*values: float):
        models = [by_hand.as_params(home, value) for value in values]
        return by_hand.uploads(*(part_message("w", *m.get(everything)) for m in models), sizes=[1, 9])

    method.merge(server, sent(2.0, 6.0))  # uniform: sizes do not count
    assert set(server.state.h.tolist()) == {-0.75}
    assert set(server.shared.weights.tolist()) == {4 + 1.5}
    assert set(server.shared.buffers.tolist()) == {4.0}
    method.merge(server, sent(5.5, 7.5))
    assert set(server.state.h.tolist()) == {-1.0}
    assert set(server.shared.weights.tolist()) == {6.5 + 2.0}


def test_with_full_participation_h_is_the_mean_of_the_linear_terms(ride: Riding) -> None:
    """h = (1 / K) sum_k g_k after every round."""
    run = ride({"name": "feddyn", "alpha": 0.1}, data="skewed", rounds=3)
    h = torch.stack([run.train(3, k).memory().gradient for k in range(4)]).mean(0)
    torch.testing.assert_close(run.state["state.h"], h, rtol=1e-4, atol=1e-5)
    assert h.abs().max() > 1e-3


def test_with_some_participating_the_others_terms_still_count(ride: Riding) -> None:
    run = ride("feddyn", data="skewed", rounds=3, participation=0.5)
    last = {}
    for seen in run.of("train"):
        last[seen.client] = seen.memory().gradient
    h = torch.stack(list(last.values())).sum(0) / 4
    torch.testing.assert_close(run.state["state.h"], h, rtol=1e-4, atol=1e-6)


def test_without_regulariser_the_clients_first_round_is_fedavgs(ride: Riding) -> None:
    """alpha -> 0: the same uploads bit for bit; the server goes twice as far as their mean, since h / alpha stays."""
    one = ride({"name": "feddyn", "alpha": 1e-30}, data="skewed", rounds=1)
    other = ride("fedavg", data="skewed", rounds=1, weighting="uniform")
    for k in range(4):
        assert torch.equal(one.train(1, k).up.w, other.train(1, k).up.w)
    twice = 2 * other.params.flat - one.initial.flat
    torch.testing.assert_close(one.params.flat, twice, rtol=1e-4, atol=1e-5)


def test_a_strong_regulariser_holds_clients_back(ride: Riding) -> None:
    moved = []
    for alpha in (0.01, 1.0, 5.0):
        run = ride({"name": "feddyn", "alpha": alpha}, data="skewed", rounds=1)
        moved.append(float((run.train(1, 0).up.w - run.initial.flat).norm()))
    assert moved[0] > moved[1] > moved[2] > 0


def test_a_rejected_upload_leaves_the_linear_term_as_before(ride: Riding) -> None:
    run = ride(spoiling(FedDyn), data="skewed", rounds=3)
    assert run.result["rejected"] == {"nonfinite": 1}
    one, two, three = (run.train(r, 1) for r in (1, 2, 3))
    assert two.after != one.after
    assert three.before == one.after


def test_only_sums_are_needed() -> None:
    assert FedDyn().wire().only_sums
