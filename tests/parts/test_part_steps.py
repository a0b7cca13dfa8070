"""Steps as values: Adam as torch has it, first-order MAML and pFedMe's envelope by their equations."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

import by_hand
from polyfed.errors import UsageError
from polyfed.methods.sites import Client
from polyfed.params import Params, everything, head
from polyfed.parts.corrections import pull
from polyfed.parts.fit import Fit
from polyfed.parts.losses import cross_entropy
from polyfed.parts.resident import Batch, Resident
from polyfed.parts.steps import Adam, Maml, Moreau, adam, maml, momentum_reach, moreau, sgd


def gradient_at(home: Resident, weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The gradient of the cross-entropy at a flat vector of weights, by autograd on that vector."""
    flat = weights.clone().requires_grad_(True)
    named = {e.name: e.view(flat) for e in home.layout.floats}
    (found,) = torch.autograd.grad(F.cross_entropy(functional_call(home.model, named, (x,)), y), flat)
    return found


def seen_by(step: Callable[[Fit], None], client: Client, steps: int = 1, **options: Any) -> list[Batch]:
    """Take steps; the batches that the fit gave."""
    batches: list[Batch] = []

    def watched(fit: Fit) -> None:
        give = fit.next

        def following() -> Batch | None:
            batch = give()
            if batch is not None:
                batches.append(batch)
            return batch

        fit.next = following  # type: ignore[method-assign]
        step(fit)
        fit.next = give  # type: ignore[method-assign]

    client.fit(cross_entropy, steps=steps, step=watched, **options)
    return batches


# ---- gradients elsewhere


@pytest.mark.parametrize("as_model", [False, True])
def test_a_gradient_elsewhere_is_that_of_autograd_and_leaves_the_live_values(as_model: bool) -> None:
    home = by_hand.resident()
    client = by_hand.client(home, by_hand.some(12), train={"batch": 4})
    there = by_hand.as_params(home, 0.1 * torch.arange(home.layout.size).sin())

    def step(fit: Fit) -> None:
        batch, before = fit.next(), fit.weights
        assert batch is not None
        here = fit.flat_gradient(batch)
        found = fit.flat_gradient(batch, at=there if as_model else there.weights)
        torch.testing.assert_close(found, gradient_at(home, there.weights, batch.x, batch.y))
        torch.testing.assert_close(here, gradient_at(home, before, batch.x, batch.y))
        assert torch.equal(fit.flat_gradient(batch), here), "asked again, it is computed again at the live weights"
        assert torch.equal(fit.weights, before)
        fit.moved()

    assert client.fit(cross_entropy, steps=2, step=step) == 2
    assert torch.equal(home.params.flat, home.initial.flat)


def test_a_gradient_elsewhere_leaves_statistics_and_their_counts() -> None:
    home = by_hand.resident(bn=True)
    client = by_hand.client(home, by_hand.some(12), train={"batch": 4})
    seen = []

    def step(fit: Fit) -> None:
        batch = fit.next()
        assert batch is not None
        fit.gradient(batch, at=fit.weights + 1)
        seen.append(home.params.copy())
        fit.gradient(batch)

    client.fit(cross_entropy, steps=1, step=step)
    assert seen[0].digest() == home.initial.digest()
    assert home.params.integers.tolist() == [1, 1], "at the live weights they are learnt"


def test_a_flat_gradient_is_zero_where_nothing_is_trained_and_corrected_where_it_stands() -> None:
    home = by_hand.resident()
    client = by_hand.client(home, by_hand.some(12))
    trained, anchor = home.layout.length(head), home.initial.weights

    def step(fit: Fit) -> None:
        batch = fit.next()
        assert batch is not None
        there = fit.weights + 1
        found = fit.flat_gradient(batch, at=there)
        expected = gradient_at(home, there, batch.x, batch.y)[-trained:] + 0.5
        torch.testing.assert_close(found[-trained:], expected)
        fit.moved()

    def correct(grad: Tensor) -> None:
        assert not grad[:-trained].any()
        pull(grad, client.live.weights, anchor, 0.5)

    assert client.fit(cross_entropy, steps=1, train=head, step=step, correct=correct) == 1


def test_weights_of_another_length_are_refused() -> None:
    client = by_hand.client(by_hand.resident(), by_hand.some(12))
    with pytest.raises(ValueError, match=r"cannot take values of shape \[3\]"):
        client.fit(cross_entropy, step=lambda fit: fit.gradient(fit.next(), at=torch.zeros(3)))


# ---- adam


@pytest.mark.parametrize("rule", [{}, {"weight_decay": 0.1}, {"clip": 0.05}], ids=str)
def test_adam_is_that_of_torch(rule: dict[str, Any]) -> None:
    home = by_hand.resident()
    step = Adam(betas=(0.8, 0.95), eps=1e-6)
    client = by_hand.client(home, by_hand.some(12), train={"lr": 0.05, "batch": 5, **rule})
    batches = seen_by(step, client, steps=7)
    weights = home.initial.weights.clone().requires_grad_(True)
    optimiser = torch.optim.Adam(
        [weights], lr=0.05, betas=(0.8, 0.95), eps=1e-6, weight_decay=rule.get("weight_decay", 0.0)
    )
    for batch in batches:
        weights.grad = gradient_at(home, weights.detach(), batch.x, batch.y)
        if "clip" in rule:
            torch.nn.utils.clip_grad_norm_([weights], rule["clip"])
        optimiser.step()
    torch.testing.assert_close(home.params.weights, weights.detach(), rtol=1e-5, atol=1e-6)


def test_adam_goes_on_where_the_fit_does_and_forgets_with_it() -> None:
    whole, halves, apart = (by_hand.resident() for _ in range(3))
    data, keys = by_hand.some(20), {"lr": 0.05, "batch": 20}
    by_hand.client(whole, data, train=keys).fit(cross_entropy, steps=6, step=adam)
    for home, go_on in ((halves, True), (apart, False)):
        client = by_hand.client(home, data, train=keys)
        client.fit(cross_entropy, steps=3, step=adam)
        client.fit(cross_entropy, steps=3, step=adam, go_on=go_on)
    assert torch.equal(halves.params.flat, whole.params.flat)
    assert not torch.allclose(apart.params.flat, whole.params.flat, atol=1e-4)


# ---- maml


def test_maml_descends_along_the_gradient_of_the_second_batch_where_the_first_leads() -> None:
    """Per-FedAvg, first order: w' = w - alpha grad(w; 1); w <- w - beta grad(w'; 2)."""
    home = by_hand.resident()
    client = by_hand.client(home, by_hand.some(12), train={"batch": 4})
    one, two, three, four = seen_by(maml(0.3), client, steps=2, lr=0.05)
    w = home.initial.weights
    for first, second in ((one, two), (three, four)):
        ahead = w - 0.3 * gradient_at(home, w, first.x, first.y)
        w = w - 0.05 * gradient_at(home, ahead, second.x, second.y)
    torch.testing.assert_close(home.params.weights, w)
    assert client.steps == 2
    assert client.tally.samples == 16


def test_maml_with_alpha_0_is_sgd_on_every_other_batch() -> None:
    home = by_hand.resident()
    client = by_hand.client(home, by_hand.some(12), train={"batch": 4, "lr": 0.1})
    _, second = seen_by(maml(0.0), client)
    w = home.initial.weights
    torch.testing.assert_close(home.params.weights, w - 0.1 * gradient_at(home, w, second.x, second.y))


def test_maml_uses_an_only_batch_twice() -> None:
    home = by_hand.resident()
    data = by_hand.some(6)
    client = by_hand.client(home, data, train={"batch": 8, "lr": 0.1})
    seen_by(maml(0.3), client)
    x, y = data.take(torch.arange(6))
    w = home.initial.weights
    ahead = w - 0.3 * gradient_at(home, w, x, y)
    torch.testing.assert_close(home.params.weights, w - 0.1 * gradient_at(home, ahead, x, y))


# ---- moreau


def test_moreau_is_the_inner_loop_of_pfedme() -> None:
    """k times theta <- theta - eta_p (grad(theta) + lam (theta - w)), then w <- w - eta lam (w - theta)."""
    home = by_hand.resident()
    client = by_hand.client(home, by_hand.some(12), train={"batch": 4, "lr": 0.02})
    personal = home.initial.copy()
    batches = seen_by(moreau(k=3, lam=4.0, lr=0.1, personal=personal), client, steps=2)
    w = home.initial.weights
    for batch in batches:
        theta = w
        for _ in range(3):
            theta = theta - 0.1 * (gradient_at(home, theta, batch.x, batch.y) + 4.0 * (theta - w))
        w = w - 0.02 * 4.0 * (w - theta)
    torch.testing.assert_close(home.params.weights, w)
    torch.testing.assert_close(personal.weights, theta)
    assert client.steps == 2


def test_moreau_with_one_inner_step_is_sgd_at_the_product_of_its_rates() -> None:
    plain, inner = by_hand.resident(), by_hand.resident()
    by_hand.client(plain, by_hand.some(12), train={"batch": 4}).fit(cross_entropy, steps=3, lr=0.5 * 4.0 * 0.1)
    client = by_hand.client(inner, by_hand.some(12), train={"batch": 4})
    client.fit(cross_entropy, steps=3, lr=0.5, step=moreau(k=1, lam=4.0, lr=0.1))
    torch.testing.assert_close(inner.params.weights, plain.params.weights)


# ---- what they have in common


@pytest.mark.parametrize("step", [sgd, adam, maml(0.1), moreau()], ids=["sgd", "adam", "maml", "moreau"])
def test_a_step_moves_what_is_trained_and_nothing_else_and_gives_the_same_bits_again(step: Any) -> None:
    ends: list[Params] = []
    for _ in range(2):
        home = by_hand.resident(bn=True)
        client = by_hand.client(home, by_hand.some(11), train={"batch": 5})  # 5, 5, and one that is skipped
        client.fit(cross_entropy, steps=7, train=head, step=step)
        assert torch.equal(home.params.get(~head)[0], home.initial.get(~head)[0])
        client.fit(cross_entropy, steps=7, train=everything, step=step)
        ends.append(home.params.copy())
    assert ends[0].digest() == ends[1].digest()
    assert not torch.equal(ends[0].weights, home.initial.weights)


@pytest.mark.parametrize("step", [maml, moreau], ids=["maml", "moreau"])
def test_a_step_that_was_not_made_is_refused(step: type[Maml] | type[Moreau]) -> None:
    client = by_hand.client(by_hand.resident(), by_hand.some(12))
    with pytest.raises(UsageError, match="a step is made by"):
        client.fit(cross_entropy, step=step)


# ---- how far steps reach


@pytest.mark.parametrize(
    ("momentum", "nesterov", "pull", "reach"),
    [
        (0.0, False, 0.0, 3.0),
        (0.5, False, 0.0, 1 + 1.5 + 1.75),
        (0.5, True, 0.0, 1.5 + 1.75 + 1.875),
        (0.0, False, 0.1, 1 + 0.9 + 0.81),
        (0.5, False, 0.1, 1 + (0.5 + 0.9) + (0.7 + 1 - 0.24)),  # velocities 1, 1.4 and 1.46
        (0.5, True, 0.1, 1.5 + (0.85 + 0.5 * 1.35) + (1 - 0.3025 + 0.5 * (0.675 + 0.6975))),
    ],
)
def test_three_steps_reach_as_far_as_worked_out_by_hand(
    momentum: float, nesterov: bool, pull: float, reach: float
) -> None:
    assert momentum_reach(3, momentum, nesterov, pull) == pytest.approx(reach, rel=1e-12)
    assert momentum_reach(3, momentum, nesterov, 1e-12) == pytest.approx(momentum_reach(3, momentum, nesterov))
