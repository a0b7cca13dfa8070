"""FedDF (Lin et al. 2020): the average learns on public samples what the clients' models answer together."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import riding
import torch
import torch.nn.functional as F
from riding import Ride

import by_hand
from polyfed.data.samples import Samples
from polyfed.errors import UsageError
from polyfed.methods.base import part_message
from polyfed.methods.feddf import FedDF
from polyfed.params import everything
from polyfed.parts.distil import kl, mean_logits

Riding = Callable[..., Ride]
PUBLIC = {"split.public": 20}


def merged(method: FedDF, public: Samples | None = None, bn: bool = False, scale: float = 1.0):
    """A server after one round of two clients with random models; and their models."""
    home = by_hand.resident(bn=bn)
    draw = torch.Generator().manual_seed(5)
    models = [by_hand.as_params(home, scale * torch.rand(home.layout.size, generator=draw)) for _ in range(2)]
    method.bind(by_hand.Task())
    known = [by_hand.Known(k, str(k), n, None) for k, n in enumerate((1, 3))]
    task = by_hand.Task(classes=3, clients=2)
    server = by_hand.Server(home, task, known, "sample", everything, public or by_hand.some(12))
    method.start(server)
    sent = [part_message("w", *m.get(everything)) for m in models]
    method.merge(server, by_hand.uploads(*sent, sizes=[1, 3]))
    return server, models


def answers(home: Any, params: Any, x: torch.Tensor) -> torch.Tensor:
    home.params.set(params)
    with torch.no_grad():
        return home.model.eval()(x)


def average(models: list[Any], home: Any):
    return by_hand.as_params(home, 0.25 * models[0].flat + 0.75 * models[1].flat)


def test_the_teacher_is_the_plain_mean_of_the_clients_logits() -> None:
    home, data = by_hand.resident(), by_hand.some(130)  # more than one batch of answers
    models = [by_hand.as_params(home, torch.randn(home.layout.size)) for _ in range(3)]
    expected = sum(answers(home, m, data.pool.x) for m in models) / 3
    torch.testing.assert_close(mean_logits(home.frozen(home.initial, False), models, data), expected)


def test_it_descends_on_the_divergence_by_adam() -> None:
    """Full batches, so that torch's Adam sees the same: KL(softmax(teacher) || softmax(student)) from the average."""
    method, data = FedDF(steps=4, lr=0.01), by_hand.some(12)
    server, models = merged(method, data)
    home = server.resident
    teacher = sum(answers(home, m, data.pool.x) for m in models) / 2
    home.params.set(average(models, home))
    parameters = list(home.model.requires_grad_(True).parameters())
    optimiser = torch.optim.Adam(parameters, 0.01)
    for _ in range(4):
        optimiser.zero_grad()
        goal = teacher.softmax(1)
        (goal * (goal.log() - F.log_softmax(home.model(data.pool.x), 1))).sum(1).mean().backward()
        optimiser.step()
    torch.testing.assert_close(server.shared.flat, home.params.flat, rtol=1e-4, atol=1e-5)


def test_the_student_answers_more_like_the_ensemble() -> None:
    server, models = merged(FedDF(steps=25, lr=0.02))
    home, x = server.resident, server.public.pool.x
    teacher = mean_logits(home.frozen(home.initial, False), models, server.public)
    student = server.shared.copy()
    before, after = (float(kl(teacher, answers(home, p, x))) for p in (average(models, home), student))
    assert after < 0.5 * before


def test_labels_of_public_samples_are_never_looked_at() -> None:
    data = by_hand.some(12)
    other = Samples.of(data.pool.x, torch.zeros_like(data.y))
    assert torch.equal(merged(FedDF(steps=5), data)[0].shared.flat, merged(FedDF(steps=5), other)[0].shared.flat)


def test_averaged_statistics_stay() -> None:
    server, models = merged(FedDF(steps=5), bn=True)
    mean = average(models, server.resident)
    torch.testing.assert_close(server.shared.buffers, mean.buffers)
    assert not torch.allclose(server.shared.weights, mean.weights)


def test_it_ends_early_where_the_loss_no_longer_falls() -> None:
    """At a rate of 1 Adam leaps about; at 1e-4 it falls for as long as it may. What was done is on record."""
    leaping, falling = (merged(FedDF(steps=30, lr=lr, patience=5))[0] for lr in (1.0, 1e-4))
    steps = len(leaping.records["distillation"])
    assert 10 <= steps < 30
    assert steps % 5 == 0
    losses = falling.records["distillation"]
    assert len(losses) == falling.tally.steps == 30
    assert losses[-1] < losses[0]


def test_without_steps_nothing_is_distilled() -> None:
    server, models = merged(FedDF(steps=0))
    torch.testing.assert_close(server.shared.flat, average(models, server.resident).flat)
    assert len(server.records["distillation"]) == 0


def test_without_public_samples_it_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"^feddf teaches on samples of the server, and it has none: set split\.public"
    ):
        riding.ride(tmp_path / "run", "feddf")


def test_clients_train_as_in_fedavg(ride: Riding) -> None:
    one = ride({"name": "feddf", "steps": 5}, data="skewed", rounds=1, **PUBLIC)
    other = ride("fedavg", data="skewed", rounds=1)
    assert all(torch.equal(one.train(1, k).up.w, other.train(1, k).up.w) for k in range(4))
    assert not torch.equal(one.params.flat, other.params.flat)
    assert len(np.load(one.result.path / "arrays" / "distillation-000001.npy")) == 5
    assert not FedDF().wire().only_sums
