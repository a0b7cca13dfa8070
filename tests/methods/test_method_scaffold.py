"""SCAFFOLD (Karimireddy et al. 2020, option II): corrected steps, control variates, server step."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from riding import Ride, spoiling

import by_hand
from polyfed.message import Bundle, Memory, Message
from polyfed.methods.base import part_message
from polyfed.methods.scaffold import Scaffold
from polyfed.params import everything
from polyfed.parts.losses import cross_entropy

Riding = Callable[..., Ride]


def gradient(home, data) -> torch.Tensor:
    loss = F.cross_entropy(home.model.requires_grad_(True)(data.pool.x), data.y)
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(home.model.parameters()))])


def test_a_step_is_corrected_by_both_controls() -> None:
    """w <- w - eta (g - c_k + c)."""
    home, data = by_hand.resident(), by_hand.some(6)
    n = home.layout.n_weights
    c, c_k = torch.linspace(0, 1, n), torch.linspace(2, -1, n)
    received = Bundle(w=home.initial.copy(), c=c)
    client = by_hand.client(home, data, received=received, memory=Memory(control=c_k), train={"lr": 0.2})
    g = gradient(home, data)
    Scaffold().local(client, steps=1)
    torch.testing.assert_close(home.params.weights, home.initial.weights - 0.2 * (g - c_k + c), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("momentum", "steps", "reach"),
    [
        (0.0, 1, 1.0),
        (0.0, 4, 4.0),
        (0.5, 3, 1 + 1.5 + 1.75),
        (0.9, 2, 1 + 1.9),
        (0.9, 5, 1 + 1.9 + 2.71 + 3.439 + 4.0951),
    ],
)
def test_the_new_control_is_option_two(momentum: float, steps: int, reach: float) -> None:
    """c_k+ = c_k - c + (w_g - w_k) / (eta sum_j (1 - rho^j) / (1 - rho)); up goes c_k+ - c_k."""
    home, data = by_hand.resident(), by_hand.some(6)
    n = home.layout.n_weights
    c, c_k = torch.full((n,), 0.3), torch.full((n,), -0.2)
    received = Bundle(w=home.initial.copy(), c=c)
    rule = {"lr": 0.2, "momentum": momentum}
    client = by_hand.client(home, data, received=received, memory=Memory(control=c_k), train=rule)
    method = Scaffold()
    method.local(client, steps=steps)
    upload = method.upload(client)
    expected = c_k - c + (home.initial.weights - home.params.weights) / (0.2 * reach)
    torch.testing.assert_close(client.memory.control, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(upload.c, expected - c_k, rtol=1e-5, atol=1e-5)
    assert torch.equal(upload.w, home.params.flat)


def test_after_one_plain_step_the_control_is_the_gradient() -> None:
    """With tau = 1 and c = c_k = 0, (w_g - w_k) / eta is g itself."""
    home, data = by_hand.resident(), by_hand.some(6)
    received = Bundle(w=home.initial.copy(), c=torch.zeros(home.layout.n_weights))
    client = by_hand.client(home, data, received=received, train={"lr": 0.5})
    g = gradient(home, data)
    Scaffold().train(client)
    torch.testing.assert_close(client.memory.control, g, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("momentum", [0.5, 0.9])
@pytest.mark.parametrize("nesterov", [False, True])
def test_under_a_constant_gradient_the_control_is_that_gradient_whatever_the_momentum(
    momentum: float, nesterov: bool
) -> None:
    home, data = by_hand.resident(), by_hand.some(6)
    received = Bundle(w=home.initial.copy(), c=torch.zeros(home.layout.n_weights))
    train = {"lr": 0.1, "momentum": momentum, "nesterov": nesterov}
    client = by_hand.client(home, data, received=received, train=train)
    g = torch.linspace(-1, 1, home.layout.n_weights)
    client.fit(lambda batch: cross_entropy(batch) * 0, steps=7, correct=lambda grad: grad.add_(g))
    Scaffold().upload(client)
    torch.testing.assert_close(client.memory.control, g, rtol=1e-4, atol=1e-5)


def test_the_official_control_moves_by_the_whole_mean_change() -> None:
    home = by_hand.resident()
    method = Scaffold(control="official")
    server = by_hand.server(home, [1, 1, 1, 1], method)
    n, sent = home.layout.n_weights, []
    for change in (0.5, 1.5):
        message = part_message("w", *by_hand.as_params(home, 1.0).get(everything))
        message["c"] = torch.full((n,), change)
        sent.append(message)
    method.merge(server, by_hand.uploads(*sent))
    assert set(server.state.c.tolist()) == {1.0}


@pytest.mark.parametrize("control", ["canonical", "official"])
def test_the_official_control_clips_the_raw_gradient(control: str) -> None:
    """w <- w - eta (clip(g) - c_k + c); the canonical one clips what is descended."""
    home, data = by_hand.resident(), by_hand.some(6)
    n = home.layout.n_weights
    c = torch.linspace(-3, 3, n)
    received, train = Bundle(w=home.initial.copy(), c=c), {"lr": 0.2, "clip": 0.01}
    client = by_hand.client(home, data, received=received, train=train)
    g = gradient(home, data)
    Scaffold(control=control).local(client, steps=1)
    raw, both = 0.01 * g / g.norm() + c, 0.01 * (g + c) / (g + c).norm()
    moved = (home.initial.weights - home.params.weights) / 0.2
    torch.testing.assert_close(moved, raw if control == "official" else both, rtol=1e-3, atol=1e-4)


def test_who_took_no_step_keeps_its_control() -> None:
    home, data = by_hand.resident(), by_hand.some(6)
    c_k = torch.full((home.layout.n_weights,), 0.4)
    received = Bundle(w=home.initial.copy(), c=torch.ones(home.layout.n_weights))
    client = by_hand.client(home, data, received=received, memory=Memory(control=c_k), train={"epochs": 0.4})
    upload = Scaffold().train(client)
    assert client.steps == 0
    assert torch.equal(client.memory.control, c_k)
    assert not upload.c.any()


@pytest.mark.parametrize("server_lr", [1.0, 0.5, 2.0])
def test_the_server_steps_on_weights_and_averages_buffers(server_lr: float) -> None:
    """w_g += eta_g mean(w_k - w_g); c += |S|/K mean(c_k+ - c_k), |S| = 2 of K = 4; BN statistics: plain mean."""
    home = by_hand.resident(bn=True)
    method = Scaffold(server_lr=server_lr)
    server = by_hand.server(home, [1, 1, 1, 1], method)
    server.shared = by_hand.as_params(home, 1.0)
    n = home.layout.n_weights
    sent = []
    for value, change in ((2.0, 0.5), (6.0, 1.5)):
        message = part_message("w", *by_hand.as_params(home, value).get(everything))
        message["c"] = torch.full((n,), change)
        sent.append(message)
    method.merge(server, by_hand.uploads(*sent, sizes=[1, 9]))  # uniform by default: sizes do not count
    assert set(server.shared.weights.tolist()) == {1.0 + server_lr * 3.0}
    assert set(server.shared.buffers.tolist()) == {4.0}  # a step beyond could make a variance negative
    assert set(server.state.c.tolist()) == {2 / 4 * 1.0}


def test_the_servers_control_is_the_mean_of_the_clients(ride: Riding) -> None:
    """With full participation c = (1/K) sum_k c_k, after every round."""
    run = ride("scaffold", data="skewed", rounds=3)
    for round in (1, 2, 3):
        controls = torch.stack([run.train(round, k).memory().control for k in range(4)])
        c = run.train(round + 1, 0).down.c if round < 3 else run.state["state.c"]
        torch.testing.assert_close(c, controls.mean(0), rtol=1e-4, atol=1e-5)
        assert c.abs().max() > 1e-3


def test_with_some_participating_the_control_moves_by_their_share(ride: Riding) -> None:
    run = ride("scaffold", data="skewed", rounds=2, participation=0.5)
    selected = [s for s in run.of("train") if s.round == 1]
    assert len(selected) == 2
    change = torch.stack([s.up.c for s in selected]).mean(0)
    later = next(s for s in run.of("train") if s.round == 2)
    torch.testing.assert_close(later.down.c, 0.5 * change, rtol=1e-5, atol=1e-6)


def test_a_client_without_a_control_starts_from_zero(ride: Riding) -> None:
    run = ride("scaffold", data="skewed", rounds=3)
    for k in range(4):
        one = run.train(1, k)
        assert one.before is None
        assert torch.equal(one.up.c, one.memory().control)
        assert run.train(2, k).before == one.after


def test_a_rejected_upload_leaves_the_control_as_before(ride: Riding) -> None:
    run = ride(spoiling(Scaffold), data="skewed", rounds=3)
    assert run.result["rejected"] == {"nonfinite": 1}
    one, two, three = (run.train(r, 1) for r in (1, 2, 3))
    assert two.after != one.after
    assert three.before == one.after
    others = [run.train(2, k).up.c for k in (0, 2, 3)]  # c moves by the accepted ones, |S| = 3 of 4
    torch.testing.assert_close(three.down.c, two.down.c + 0.75 * torch.stack(others).mean(0), rtol=1e-5, atol=1e-6)


def test_the_upload_of_a_message_holds_model_and_change(ride: Riding) -> None:
    run = ride("scaffold", data="skewed", rounds=3)
    for seen in run.of("train"):
        assert set(seen.down) == set(seen.up) == {"w", "c"}
    assert isinstance(run.seen[-1].up, Message)


def test_the_lengths_of_the_controls_are_recorded(ride: Riding) -> None:
    run = ride("scaffold", data="skewed", rounds=2)
    found = np.load(run.result.path / "arrays" / "controls-000001.npy")
    change = torch.stack([run.train(1, k).up.c for k in range(4)]).mean(0)
    assert found == pytest.approx([float(change.norm())] * 2, rel=1e-5)
