"""CReFF: FedAvg's rounds, a head re-trained on federated features beside them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from bench import Bench, descended
from riding import CLASSES, HOLDS, Ride
from torch import Tensor

from polyfed import rng
from polyfed.config import Train
from polyfed.message import Message
from polyfed.methods.base import Client, Server, Task, Upload
from polyfed.methods.creff import CReFF
from polyfed.methods.sites import Known
from polyfed.params import body, head
from polyfed.parts.match import class_means, match_features

Riding = Callable[..., Ride]
FEW = {"method.m": 3, "method.match_steps": 5, "method.head_epochs": 4, "method.head_batch": 1000}


def creff(ride: Riding, **keys: Any) -> Ride:
    return ride("creff", **{"data": "skewed", "model": "mlp-bn", **FEW} | keys)


def under(run: Ride, w: Tensor, v: Tensor) -> Tensor:
    """A model, flat, with another head."""
    made, (begin, end) = w.clone(), run.layout.ranges(head)[0]
    made[begin:end] = v
    return made


def gradients_at(run: Ride, flat: Tensor, client: int) -> Tensor:
    """Class gradients by autograd at a model in eval mode."""
    resident, data = run.world.resident, run.world.federation.clients[client].train
    resident.reset()
    resident.params.flat.copy_(flat)
    x, y = data.take(torch.arange(len(data)))
    rows, weight, found = resident.model.features(x).detach(), resident.model.head.weight.requires_grad_(True), []
    for c in HOLDS[client]:
        loss = F.cross_entropy(rows[y == c] @ weight.T, y[y == c])
        found.append(torch.autograd.grad(loss, weight)[0])
    return torch.stack(found)


def test_phase_one_is_fedavg(ride: Riding) -> None:
    plain, run = ride("fedavg", data="skewed", model="mlp-bn"), creff(ride)
    for round in (1, 2, 3):
        for k in range(4):
            assert torch.allclose(run.train(round, k).up.w, plain.train(round, k).up.w, rtol=1e-5, atol=1e-7)
    assert torch.allclose(run.params.flat, plain.params.flat, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("bias", [False, True])
def test_what_crosses_the_wire_and_its_bytes(ride: Riding, bias: bool) -> None:
    run = creff(ride, **{"model.bias": bias})
    p, i, p_h = run.layout.size, run.layout.n_integers, run.layout.length(head)
    assert p_h == CLASSES * (10 + bias)
    for seen in run.of("train"):
        own = len(HOLDS[seen.client])
        assert set(seen.down) == {"w", "w.integers", "head"}
        assert seen.down.nbytes == 4 * (p + p_h) + 8 * i
        assert set(seen.up) == {"w", "w.integers", "z", "classes"}
        assert seen.up.nbytes == 4 * (p + own * p_h) + 8 * (i + own)
        assert seen.up.classes.tolist() == list(HOLDS[seen.client])
        assert seen.after is None


def test_gradients_are_taken_at_the_retrained_head_that_was_sent(ride: Riding) -> None:
    run = creff(ride)
    for round in (1, 2, 3):
        for k in range(4):
            seen = run.train(round, k)
            at = under(run, seen.down.w, seen.down.head)
            assert torch.allclose(seen.up.z, gradients_at(run, at, k), atol=1e-5)
            if round > 1:
                assert not torch.allclose(seen.up.z, gradients_at(run, seen.down.w, k), atol=1e-3)


@pytest.mark.parametrize(
    ("keys", "rule"),
    [
        ({}, {}),
        ({"train.momentum": 0.9, "train.weight_decay": 0.1, "train.clip": 0.01}, {}),  # the clients', not the head's
        ({"method.head_momentum": 0.9, "method.head_decay": 0.1}, {"momentum": 0.9, "weight_decay": 0.1}),
        ({"method.head_clip": 0.01}, {"clip": 0.01}),
    ],
)
def test_features_are_matched_at_that_head_and_a_fresh_one_is_trained_on_them(
    ride: Riding, keys: dict[str, Any], rule: dict[str, Any]
) -> None:
    """Four steps on all features, plain unless its own keys say otherwise, from new initial values each round."""
    run = creff(ride, **keys)
    features = torch.randn(CLASSES, 3, 10, generator=rng.torch_generator(0, "federated-features"))
    starts = []
    for round in (1, 2):
        seen = [run.train(round, k) for k in range(4)]
        classes, goals = class_means([(s.up.classes, s.up.z) for s in seen])
        v = seen[0].down.head.view(CLASSES, 10)
        features = match_features(features, goals, classes, (v, None), 5, 0.1, flat=False)
        run.world.resident.reset()
        site = Server(run.world.resident, run.world.task, [], "sample", run.world.method.shared)
        site.round = round
        site.fresh(head)
        start = site.live.get(head)[0].view(CLASSES, 10)
        starts.append(start)
        h, y = features.flatten(0, 1), torch.arange(CLASSES).repeat_interleave(3)
        trained = descended([start], h, y, steps=4, lr=0.01, rule=Train(**rule))
        assert torch.allclose(run.train(round + 1, 0).down.head, trained, atol=1e-5)
    assert not torch.allclose(starts[0], starts[1])  # fresh each round
    assert not torch.allclose(starts[0].flatten(), run.initial.get(head)[0])


def test_gradients_and_the_global_model_are_those_of_what_was_received_whatever_is_live() -> None:
    bench = Bench(CReFF(m=2))
    v = torch.randn(10, generator=torch.Generator().manual_seed(1))

    def received() -> Client:
        retrained = bench.server.shared.copy()
        retrained.put(head, v)
        return bench.client(head=retrained)

    plain = received()
    expected = bench.method.train(plain)
    at = CReFF.under(plain.received.w, v)
    assert not torch.allclose(plain.live.flat, at.flat, atol=1e-3)  # it has trained since
    x = torch.randn(5, 3)
    answers = bench.method.global_predictor(plain)(x)
    moved = received()
    moved.live.flat.add_(1.0)
    assert torch.equal(bench.method.train(moved).z, expected.z)
    moved.load(at)
    assert torch.allclose(answers, moved.model(x), atol=1e-6)


def test_the_body_under_the_retrained_head_answers_for_all(ride: Riding) -> None:
    run = creff(ride, **{"eval.every": 1})
    flat = under(run, run.params.flat, run.state["state.head"])
    evaluated = [s for s in run.of("evaluate") if s.round == 3]
    assert len(evaluated) == 4
    for seen in evaluated:
        assert torch.equal(seen.live, flat)
    method, resident = run.world.method, run.world.resident
    server = Server(resident, run.world.task, [], "sample", method.shared)
    server.shared, server.state.head = run.params, run.state["state.head"]
    model = method.global_predictor(server)
    resident.reset()
    resident.params.flat.copy_(flat)
    resident.params.integers.copy_(run.params.integers)
    x = torch.randn(5, 8)
    assert torch.allclose(model(x), resident.model(x), atol=1e-6)
    assert run.result["global_local"] == run.result["personal_before"]
    assert not method.personalises


def test_without_anything_to_match_the_head_is_fedavgs(ride: Riding) -> None:
    run = creff(ride, **{"method.m": 0})
    assert torch.equal(run.state["state.head"], run.params.get(head)[0])
    assert set(run.train(1, 0).up) == {"w", "w.integers"}
    assert set(run.state) == {"params", "state.head"}


def test_buffers_that_stay_local_are_each_clients_own(ride: Riding) -> None:
    run = creff(ride, buffers="local")
    assert run.world.method.personalises
    last = [s for s in run.of("evaluate") if s.round == 4]
    assert not torch.equal(last[0].live, last[1].live)
    count = run.layout.n_weights
    assert torch.equal(last[0].live[:count], last[1].live[:count])
    assert run.result["failed"] == {}


def test_flat_matching_gives_another_head(ride: Riding) -> None:
    flat = creff(ride, **{"method.match": "flat"}).state["state.head"]
    assert flat.isfinite().all()
    assert not torch.equal(flat, creff(ride).state["state.head"])


def test_a_class_that_is_fitted_perfectly_is_skipped(ride: Riding) -> None:
    """Its gradient is zero: no direction, no features, and the others are matched all the same."""
    run = creff(ride)
    method, resident = CReFF(m=2, match_steps=3), run.world.resident
    task = Task(classes=CLASSES, train=Train())
    server = Server(resident, task, [Known(0, "a", 5, None)], "sample", method.shared)
    method.start(server)
    before = server.state.features.clone()
    uploads = [s.up for s in run.of("train") if s.round == 1][:1]
    z = uploads[0].z.clone()
    z[0] = 1e-9
    message = Message(**{**uploads[0].tensors(), "z": z})
    method.match_gradients(server, [Upload(0, 5, message)], server.shared)
    assert server.state.matched.tolist() == [0, 1, 0, 0, 0]
    moved = (server.state.features != before).flatten(1).any(1)
    assert moved.tolist() == [False, True, False, False, False]
    message["z"] = torch.zeros_like(z)
    method.match_gradients(server, [Upload(0, 5, message)], server.shared)
    assert server.state.matched.tolist() == [0, 1, 0, 0, 0]
    assert server.shared.get(body)[0].isfinite().all()
