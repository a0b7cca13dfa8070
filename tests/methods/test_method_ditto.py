"""Ditto (Li et al. 2021, algorithm 1): v <- v - eta (grad F_k(v) + lambda (v - w_g))."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from riding import Ride, spoiling

import by_hand
from polyfed.message import Memory
from polyfed.methods.ditto import Ditto

Riding = Callable[..., Ride]


def personal_steps(home, data, v, w_g, lam: float, lr: float, steps: int) -> torch.Tensor:
    for _ in range(steps):
        home.params.weights.copy_(v)
        loss = F.cross_entropy(home.model.requires_grad_(True)(data.pool.x), data.y)
        g = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(home.model.parameters()))])
        v = v - lr * (g + lam * (v - w_g))
    return v


@pytest.mark.parametrize("lam", [0.0, 1.0])
def test_the_personal_branch_by_hand(lam: float) -> None:
    home, data = by_hand.resident(), by_hand.some(6)
    w_g = by_hand.as_params(home, home.initial.flat * 0.5)
    v = by_hand.as_params(home, home.initial.flat + 0.1)
    expected = personal_steps(home, data, v.weights.clone(), w_g.weights, lam, 0.3, 2)
    client = by_hand.client(home, data, received=w_g, memory=Memory(personal_model=v), train={"lr": 0.3, "epochs": 1})
    upload = Ditto(lam=lam, personal_epochs=2).train(client)
    torch.testing.assert_close(client.memory.personal_model.weights, expected, rtol=1e-4, atol=1e-5)
    assert not torch.equal(upload.w, client.memory.personal_model.flat)
    assert client.steps == 3  # one of the global branch, two of its own


def test_the_first_time_the_personal_model_starts_at_the_global_one() -> None:
    home, data = by_hand.resident(), by_hand.some(6)
    w_g = by_hand.as_params(home, home.initial.flat * 0.5)
    expected = personal_steps(home, data, w_g.weights.clone(), w_g.weights, 1.0, 0.3, 1)
    client = by_hand.client(home, data, received=w_g, train={"lr": 0.3})
    Ditto().train(client)
    torch.testing.assert_close(client.memory.personal_model.weights, expected, rtol=1e-4, atol=1e-5)


def test_a_strong_pull_keeps_the_personal_model_at_the_global_one(ride: Riding) -> None:
    far, near = (ride({"name": "ditto", "lam": lam}, data="skewed", rounds=1) for lam in (0.0, 5.0))
    for k in range(3):
        apart = [float((r.train(1, k).memory().personal_model.flat - r.initial.flat).norm()) for r in (far, near)]
        assert apart[0] > apart[1] > 0


def test_the_personal_model_answers_and_a_stranger_gets_the_global_one(ride: Riding) -> None:
    run = ride("ditto", data="skewed", rounds=2, **{"split.heldout": 1})
    (out,) = run.world.federation.heldout
    for k in range(4):
        model = run.result.client(k).model
        flat = torch.cat([p.detach().flatten() for p in model.parameters()])
        expected = run.params.flat if k == out else run.train(2, k).memory().personal_model.flat
        assert torch.equal(flat, expected)


def test_the_next_round_goes_on_from_what_was_kept(ride: Riding) -> None:
    run = ride("ditto", data="skewed", rounds=3)
    for k in range(4):
        assert run.train(2, k).before == run.train(1, k).after != run.train(2, k).after


def test_a_rejected_upload_leaves_the_personal_model_as_before(ride: Riding) -> None:
    run = ride(spoiling(Ditto), data="skewed", rounds=3)
    assert run.result["rejected"] == {"nonfinite": 1}
    one, two, three = (run.train(r, 1) for r in (1, 2, 3))
    assert one.after != two.after
    assert three.before == one.after
    assert run.train(3, 0).before == run.train(2, 0).after  # others go on
