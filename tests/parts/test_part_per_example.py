"""Gradients of single examples: clipped sums equal those of one backward pass per example, on both paths."""

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from polyfed.config import Train, make_config
from polyfed.data.samples import Samples
from polyfed.errors import UsageError
from polyfed.message import Memory, Message
from polyfed.methods.base import Client, Method, Task
from polyfed.methods.ditto import Ditto
from polyfed.methods.fedprox import FedProx
from polyfed.methods.map import MAP
from polyfed.models.base import Net
from polyfed.params import everything, head
from polyfed.parts import per_example
from polyfed.parts.fit import Fit, Poisson, Stream, Tally, poisson, sampling_rate, shuffled
from polyfed.parts.losses import LogitLoss, cross_entropy
from polyfed.parts.per_example import clipped_sum
from polyfed.parts.resident import Batch, Resident
from polyfed.parts.steps import Private, sgd

MODELS = {"mlp": (1, 8, 8), "lenet": (3, 28, 28), "resnet8-gn": (3, 16, 16)}
VMAP = {"resnet8-gn": 1e-3}  # with group normalisation vmap has fewer digits in float32; in double precision it has all


def resident_of(model: str, method: Method | None = None) -> Resident:
    spec, method = make_config({"model": model}).model, method or Method()
    torch.manual_seed(0)
    return Resident(lambda: method.build(spec.build(MODELS[model], 5)))


def samples_of(shape: tuple[int, ...], count: int = 6) -> Samples:
    x = torch.randn(count, *shape, generator=torch.Generator().manual_seed(1))
    if len(shape) == 3:
        x = x.contiguous(memory_format=torch.channels_last)
    return Samples.of(x, torch.arange(count) % 5)


def fit_of(resident: Resident, on: Samples, loss: Any = cross_entropy, train: Any = everything, **rule: Any) -> Fit:
    stream = Stream(on, len(on), shuffled, np.random.default_rng, None)
    return Fit(resident, loss, stream, Train(**rule), 0.1, train, "train", None, Tally(), {})


def by_hand(fit: Fit, batch: Batch, clip: float) -> list[Tensor]:
    """One backward pass for each example."""
    total = [torch.zeros_like(p) for p in fit.values]
    for i in range(len(batch)):
        here = slice(i, i + 1)
        one = Batch(batch.model, batch.x[here], batch.y[here], batch.index[here], batch.on)
        found = torch.autograd.grad(fit.loss(one), fit.parameters, allow_unused=True)
        rows = [torch.zeros_like(p) if g is None else g for p, g in zip(fit.values, found, strict=True)]
        length = torch.sqrt(sum(((g**2).sum() for g in rows), torch.zeros(())))
        for sum_, g in zip(total, rows, strict=True):
            sum_ += g * min(1.0, clip / float(length))
    return total


def difference(found: list[Tensor], expected: list[Tensor]) -> float:
    a, b = torch.cat([t.flatten() for t in found]), torch.cat([t.flatten() for t in expected])
    return float((a - b).norm() / b.norm())


def batch_of(fit: Fit) -> Batch:
    batch = fit.next()
    assert batch is not None
    return batch


@pytest.mark.parametrize("model", MODELS)
def test_both_paths_give_the_gradients_of_single_examples(model: str) -> None:
    resident = resident_of(model)
    fit = fit_of(resident, samples_of(MODELS[model]))
    batch = batch_of(fit)
    clip = 0.7 * float(per_example._one_by_one(fit, batch, math.inf).lengths.median())  # some are clipped, some not
    expected = by_hand(fit, batch, clip)
    kept = per_example._kept_books(fit, batch, clip)
    assert kept is not None, "the fast path applies to these layers"
    assert difference(kept.sums, expected) < 1e-5
    assert difference(per_example._one_by_one(fit, batch, clip).sums, expected) < VMAP.get(model, 1e-5)


def test_vmap_equals_the_gradients_of_single_examples_in_double_precision() -> None:
    resident = resident_of("resnet8-gn")
    on = samples_of(MODELS["resnet8-gn"], 3)
    fit = fit_of(resident, on)
    batch = batch_of(fit)
    double = copy.deepcopy(resident.model).double()
    fit.resident = type("Twin", (), {"model": double})()  # type: ignore[assignment]
    fit.parameters = [p.requires_grad_(True) for p in double.parameters()]
    fit.values = [p.detach() for p in fit.parameters]
    twin = Batch(double, batch.x.double(), batch.y, batch.index, batch.on)
    assert difference(per_example._one_by_one(fit, twin, 0.5).sums, by_hand(fit, twin, 0.5)) < 1e-12


def client_of(method: Method, memory: Memory | None = None, model: str = "mlp", **train: Any) -> Client:
    task = Task(classes=5, clients=2, rounds=4, shape=MODELS[model], train=Train(**{"batch": 6, "lr": 0.1} | train))
    method.bind(task)
    resident = resident_of(model, method)
    on = samples_of(MODELS[model])
    down = Message(w=resident.initial)
    return Client(0, resident, task, 1, on, torch.bincount(on.y, minlength=6)[:5], down, memory or Memory())


@pytest.mark.parametrize("model", MODELS)
def test_losses_of_methods_have_single_gradients_too(model: str) -> None:
    """MAP's restricted softmax, and distillation from an inherited model whose answers lie in a table."""
    method = MAP(lam=0.5)
    client = client_of(method, model=model)
    inherited = client.live.copy()
    inherited.flat.mul_(1.1)
    client.memory.hpm = inherited
    for loss in (lambda batch: method.loss(client, batch), method.teach(client)):
        fit = fit_of(client.resident, client.data, loss)
        batch = batch_of(fit)
        assert per_example._kept_books(fit, batch, 0.5) is None, "nobody promises that this is a mean over rows"
        assert difference(clipped_sum(fit, batch, 0.5).sums, by_hand(fit, batch, 0.5)) < VMAP.get(model, 1e-5)


@pytest.mark.parametrize("make", [FedProx, Ditto])
@pytest.mark.parametrize("model", MODELS)
def test_losses_with_terms_in_parameters_have_single_gradients(make: Callable[[], Method], model: str) -> None:
    """Their terms are corrections, which see the sum; what is clipped is each example's own loss."""
    method = make()
    client = client_of(method, model=model)
    fit = fit_of(client.resident, client.data, lambda batch: method.loss(client, batch))
    batch = batch_of(fit)
    assert difference(clipped_sum(fit, batch, 0.5).sums, by_hand(fit, batch, 0.5)) < VMAP.get(model, 1e-5)


@pytest.mark.parametrize("make", [FedProx, Ditto])
def test_corrections_act_on_the_private_gradient(make: Callable[[], Method]) -> None:
    """Sigma 0, no clipping and all samples in every batch: FedProx and Ditto train as they do without privacy."""
    from polyfed.methods.sites import PrivateFits

    ends = []
    for private in (False, True):
        method = make()
        client = client_of(method, epochs=2, momentum=0.5, weight_decay=0.01)
        if private:
            client.private = PrivateFits(Private(math.inf, 0.0, torch.zeros_like), method.private_steps(6))
        method.train(client)
        ends.append(client.live.flat.clone())
        assert client.steps == method.private_steps(6)
    assert torch.allclose(*ends, atol=2e-6)
    assert not torch.equal(ends[0], client.received.w.flat)


def test_without_noise_and_bound_it_is_a_full_batch_step() -> None:
    ends = []
    for step in (sgd, Private(math.inf, 0.0, torch.zeros_like)):
        resident = resident_of("mlp")
        fit_of(resident, samples_of(MODELS["mlp"]), momentum=0.9).run(3, step)
        ends.append(resident.params.flat.clone())
    assert torch.allclose(*ends, atol=1e-6)


def test_the_noise_has_the_length_it_should() -> None:
    """An empty batch is a step of noise alone: -lr * sigma * C / (q n) for each standard normal number."""
    resident = resident_of("mlp")
    before = resident.params.flat.clone()
    fit = fit_of(resident, samples_of(MODELS["mlp"]))
    fit.stream = Poisson(fit.stream.samples, 2, np.random.default_rng, None)
    fit.stream.chance = 0.0
    fit.run(1, Private(0.5, 3.0, torch.ones_like))
    assert torch.allclose(before - resident.params.flat, torch.full_like(before, 0.1 * 3.0 * 0.5 / 2), atol=1e-7)
    assert (fit.tally.steps, fit.tally.samples) == (1, 0)


def test_one_example_moves_the_sum_by_at_most_twice_the_bound() -> None:
    resident = resident_of("lenet")
    on = samples_of(MODELS["lenet"])
    fit = fit_of(resident, on)
    batch = batch_of(fit)
    other = batch.x.clone()
    other[2] = 100 * torch.randn(other[2].shape)
    changed = Batch(batch.model, other, batch.y, batch.index, batch.on)
    for path in (per_example._kept_books, per_example._one_by_one):
        one, two = path(fit, batch, 0.1), path(fit, changed, 0.1)
        assert one is not None
        assert two is not None
        moved = math.sqrt(sum(float(((a - b) ** 2).sum()) for a, b in zip(one.sums, two.sums, strict=True)))
        assert 0.01 < moved <= 0.2 + 1e-5


def test_large_batches_are_taken_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    resident = resident_of("mlp")
    fit = fit_of(resident, samples_of(MODELS["mlp"]))
    batch = batch_of(fit)
    whole = clipped_sum(fit, batch, 0.5)
    monkeypatch.setattr(per_example, "MOST", 1)
    pieces = clipped_sum(fit, batch, 0.5)
    assert difference(pieces.sums, whole.sums) < 1e-6
    assert torch.allclose(pieces.lengths, whole.lengths, rtol=1e-5)
    assert float(pieces.losses.mean()) == pytest.approx(float(whole.losses.mean()), rel=1e-5)


def test_a_head_alone_is_trained_on_features() -> None:
    resident = resident_of("mlp")
    rows = Samples.of(torch.randn(6, resident.model.head.in_features), torch.arange(6) % 5, "head")  # type: ignore[arg-type]
    for train in (head, everything):  # what is not reached has no gradient
        fit = fit_of(resident, rows, train=train)
        batch = batch_of(fit)
        assert difference(clipped_sum(fit, batch, 0.5).sums, by_hand(fit, batch, 0.5)) < 1e-5


class Twice(nn.Module):
    """A layer that is called twice, or whose output is written over."""

    def __init__(self, inplace: bool):
        super().__init__()
        self.layer, self.inplace = nn.Linear(4, 4), inplace

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).relu_() if self.inplace else self.layer(self.layer(x).tanh())


@pytest.mark.parametrize("inplace", [False, True])
def test_what_the_books_cannot_tell_is_left_to_vmap(inplace: bool) -> None:
    torch.manual_seed(0)
    resident = Resident(lambda: Net(Twice(inplace), nn.Identity(), nn.Linear(4, 5), ()))
    fit = fit_of(resident, samples_of((4,)))
    batch = batch_of(fit)
    assert per_example._kept_books(fit, batch, 0.3) is None
    assert difference(clipped_sum(fit, batch, 0.3).sums, by_hand(fit, batch, 0.3)) < 1e-5


def test_tensors_beside_the_model_are_refused() -> None:
    resident = resident_of("mlp")
    fit = fit_of(resident, samples_of(MODELS["mlp"]), loss=LogitLoss(), train=[torch.zeros(3)])
    with pytest.raises(UsageError, match="tensors beside"):
        clipped_sum(fit, batch_of(fit), 1.0)


def test_poisson_batches_hold_each_sample_with_the_same_chance() -> None:
    on = samples_of((4,), 50)
    stream = Poisson(on, 10, lambda step: np.random.default_rng(step), None)
    sizes = [len(next(stream)[1]) for _ in range(400)]
    again = Poisson(on, 10, lambda step: np.random.default_rng(step), None)
    assert [len(next(again)[1]) for _ in range(400)] == sizes
    assert abs(sum(sizes) / 400 - 10) < 5 * math.sqrt(50 * 0.2 * 0.8 / 400)
    assert len(set(sizes)) > 5
    assert stream.per_epoch == 5
    assert (sampling_rate(8, 32), sampling_rate(64, 32)) == (1.0, 0.5)
    with pytest.raises(TypeError, match="no order"):
        poisson(on, np.random.default_rng(0))


def test_a_fit_that_cannot_be_private_is_refused() -> None:
    from polyfed.methods.sites import PrivateFits
    from polyfed.parts.fit import balanced
    from polyfed.parts.steps import maml

    client = client_of(Method())
    client.private = PrivateFits(Private(1.0, 0.0, torch.zeros_like), 2)
    cases: list[dict[str, Any]] = [{"step": maml(0.1)}, {"batches": balanced}, {"batch": 3}, {"patience": 2}]
    cases.append({"on": client.data.only(torch.arange(6) < 3)})
    for case in cases:
        with pytest.raises(UsageError, match="private fit"):
            client.fit(cross_entropy, **case)
    with pytest.raises(UsageError, match="3 private steps in one round, and 2 are paid for"):
        client.fit(cross_entropy, steps=3)
