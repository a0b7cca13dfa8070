"""pFedMe (Dinh et al. 2020): theta near w solves eq. 3, and w follows it (eq. 4)."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from riding import Ride, spoiling
from torch import Tensor

import by_hand
from polyfed.message import Memory
from polyfed.methods.base import part_message
from polyfed.methods.pfedme import PFedMe
from polyfed.params import everything

Riding = Callable[..., Ride]


def gradient(home: Any, data: Any, at: Tensor) -> Tensor:
    home.params.weights.copy_(at)
    loss = F.cross_entropy(home.model.requires_grad_(True)(data.pool.x), data.y)
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(home.model.parameters()))])


def test_two_steps_by_hand() -> None:
    """From w, theta <- theta - eta_p (grad F(theta) + lambda (theta - w)); then w <- w - eta lambda (w - theta)."""
    home, data = by_hand.resident(), by_hand.some(6)
    w = home.initial.weights.clone()
    for _ in range(2):
        theta = w.clone()
        for _ in range(3):
            theta = theta - 0.1 * (gradient(home, data, theta) + 4.0 * (theta - w))
        w = w - 0.2 * 4.0 * (w - theta)
    client = by_hand.client(home, data, train={"lr": 0.2, "batch": 6, "epochs": 2})
    upload = PFedMe(inner=3, lr=0.1, lam=4.0).train(client)
    torch.testing.assert_close(upload.w, w, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(client.memory.personal_model.flat, theta, rtol=1e-4, atol=1e-5)
    assert float((w - theta).norm()) > 1e-2


@pytest.mark.parametrize("beta", [0.5, 1.0, 2.0])
def test_the_server_goes_beta_of_the_way_to_the_mean(beta: float) -> None:
    """w <- (1 - beta) w + beta sum p_k w_k for weights; statistics are averaged."""
    home, method = by_hand.resident(bn=True), PFedMe(beta=beta)
    server = by_hand.server(home, [1, 3], method)
    server.shared = by_hand.as_params(home, 10.0)
    sent = [part_message("w", *by_hand.as_params(home, v).get(everything)) for v in (2.0, 6.0)]
    method.merge(server, by_hand.uploads(*sent, sizes=[1, 3]))
    assert set(server.shared.weights.tolist()) == {(1 - beta) * 10 + beta * 5}
    assert set(server.shared.buffers.tolist()) == {5.0}


@pytest.mark.parametrize("model", ["mlp", "mlp-bn"])
def test_with_one_inner_step_at_the_rate_one_over_lambda_it_is_fedavg(ride: Riding, model: str) -> None:
    """lambda (w - theta) is then the gradient itself; a power of two keeps all but the last bits."""
    one = ride({"name": "pfedme", "inner": 1, "lam": 16.0, "lr": 1 / 16}, model=model)
    other = ride("fedavg", model=model)
    torch.testing.assert_close(one.params.flat, other.params.flat, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(ride("pfedme", model=model).params.flat, other.params.flat, rtol=1e-4, atol=1e-4)


def test_the_pull_keeps_the_personal_model_near_the_local_one() -> None:
    home, data, apart = by_hand.resident(), by_hand.some(6), []
    for lam in (0.1, 15.0, 90.0):
        client = by_hand.client(home, data, train={"lr": 1e-6, "batch": 6})  # w stays where it is
        PFedMe(lam=lam).train(client)
        apart.append(float((client.memory.personal_model.flat - home.initial.flat).norm()))
    assert apart[0] > apart[1] > apart[2] > 0


def test_theta_answers_and_a_stranger_gets_the_global_model(ride: Riding) -> None:
    run = ride("pfedme", data="skewed", rounds=2, **{"split.heldout": 1})
    (out,) = run.world.federation.heldout
    for k in range(4):
        flat = torch.cat([p.detach().flatten() for p in run.result.client(k).model.parameters()])
        expected = run.params.flat if k == out else run.train(2, k).memory().personal_model.flat
        assert torch.equal(flat, expected)
    assert run.result["global"] is not None


def test_a_round_without_a_step_keeps_the_personal_model() -> None:
    home = by_hand.resident()
    kept = by_hand.as_params(home, 3.0)
    client = by_hand.client(
        home, by_hand.some(6), memory=Memory(personal_model=kept), train={"epochs": 0.1, "batch": 6}
    )
    upload = PFedMe().train(client)
    assert client.steps == 0
    assert torch.equal(client.memory.personal_model.flat, kept.flat)
    assert torch.equal(upload.w, home.initial.flat)


def test_a_rejected_upload_leaves_the_personal_model_as_before(ride: Riding) -> None:
    run = ride(spoiling(PFedMe), data="skewed", rounds=3)
    assert run.result["rejected"] == {"nonfinite": 1}
    assert run.train(3, 1).before == run.train(1, 1).after != run.train(2, 1).after
