"""The identity chain: methods that are FedAvg under some parameter are FedAvg bit for bit."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from riding import INTO, Ride

import by_hand
from polyfed import rng
from polyfed.errors import UsageError
from polyfed.methods.base import methods
from polyfed.methods.fedper import FedPer
from polyfed.methods.fedprox import FedProx
from polyfed.methods.scaffold import Scaffold
from polyfed.models.base import models
from polyfed.params import nothing

Riding = Callable[..., Ride]
EQUAL = {"weighting": "uniform"}


def same_uploads(one: Ride, other: Ride, rounds: int = 3) -> bool:
    """Whether every client sent the same model, bit for bit."""
    return all(
        torch.equal(one.train(r, k).up.w, other.train(r, k).up.w) for r in range(1, rounds + 1) for k in range(4)
    )


def assert_is(one: Ride, other: Ride) -> None:
    """The same model in every upload and in the end, and it was really trained."""
    assert same_uploads(one, other)
    assert torch.equal(one.params.flat, other.params.flat)
    assert torch.equal(one.params.integers, other.params.integers)
    assert not torch.equal(one.params.flat, one.initial.flat)


class Bare(FedPer):
    """FedPer with nothing personal."""

    personal = nothing


CHAIN: dict[str, Any] = {
    "fedprox": {"method": {"name": "fedprox", "mu": 0.0}},
    "fedrs": {"method": {"name": "fedrs", "alpha": 1.0}},
    "fedphp": {"method": {"name": "fedphp", "lam": 0.0}},
    "fedper": {"method": Bare},
    "ditto": {"method": "ditto"},
    "ecl": {"method": {"name": "ecl", "phase2_epochs": 1}},
    "fedavg-ft": {"method": {"name": "fedavg-ft", "epochs": 1}},
    "fednova": {"method": "fednova"},  # all take as many steps
    "fedopt": {"method": {"name": "fedopt", "server": "sgd", "server_lr": 1.0, "momentum": 0.0}},
    "moon": {"method": {"name": "moon", "mu": 0.0}},
    "fedmmd": {"method": {"name": "fedmmd", "lam": 0.0}},
    "fedlc": {"method": {"name": "fedlc", "tau": 0.0}},
    "fedaws": {"method": {"name": "fedaws", "steps": 0}},
    "feddf": {"method": {"name": "feddf", "steps": 0}, "split.public": 10},
    "lws": {"method": "lws"},
    "tau-norm": {"method": "tau-norm"},
    "fedafa": {"method": {"name": "fedafa", "epochs": 1}},
}


@pytest.mark.parametrize("model", ["mlp", "mlp-bn"])
@pytest.mark.parametrize("name", CHAIN)
def test_it_is_fedavg_bit_for_bit(ride: Riding, name: str, model: str) -> None:
    assert_is(ride(**CHAIN[name], model=model, **EQUAL), ride("fedavg", model=model, **EQUAL))


@pytest.mark.parametrize("name", ["fedprox", "fedper", "fedopt", "fedmmd", "fedlc", "fedaws", "feddf"])
def test_where_nothing_is_remembered_even_the_fingerprint_is_fedavgs(ride: Riding, name: str) -> None:
    assert ride(**CHAIN[name], model="mlp", **EQUAL).result.fingerprint == ride(**EQUAL, model="mlp").result.fingerprint


@pytest.mark.parametrize("model", ["mlp", "mlp-bn"])
def test_k_cluster_with_one_cluster_is_fedavg(ride: Riding, model: str) -> None:
    one = ride({"name": "k-cluster", "k": 1}, model=model, **EQUAL)
    other = ride("fedavg", model=model, **EQUAL)
    assert same_uploads(one, other)
    assert torch.equal(one.state["state.models"][0], other.params.flat)
    assert torch.equal(one.state["state.counters"][0], other.params.integers)


@pytest.mark.parametrize("model", ["mlp", "mlp-bn"])
def test_maps_upload_with_alpha_1_is_fedavg_run_for_its_first_stage(ride: Riding, model: str) -> None:
    """32 samples in batches of 4: n_tot = 8 and n_1 = 4 steps, half an epoch."""
    one = ride({"name": "map", "alpha": 1.0}, model=model, **EQUAL)
    other = ride("fedavg", model=model, **EQUAL, **{"train.epochs": 0.5})
    assert one.train(1, 0).numbers["steps"] == 2 * other.train(1, 0).numbers["steps"] == 8
    assert_is(one, other)


@pytest.mark.parametrize(
    "method",
    [
        {"name": "fedprox", "mu": 0.1},
        {"name": "fedrs", "alpha": 0.5},
        {"name": "fedphp", "lam": 0.5},
        {"name": "map", "alpha": 1.0},
        "scaffold",
        "fednova",
        "fedopt",
        "feddyn",
        "moon",
        {"name": "fedmmd", "lam": 1.0},
        "fedlc",
        "fedaws",
    ],
    ids=str,
)
def test_with_other_parameters_it_is_not_fedavg(ride: Riding, method: Any) -> None:
    """The chain above would hold of a method that does nothing; this one shows that it does something."""
    data = "skewed"  # there is no missing class where all hold all
    assert not same_uploads(ride(method, data=data, **EQUAL), ride("fedavg", data=data, **EQUAL))


def test_local_with_full_participation_trains_the_same_batches(ride: Riding) -> None:
    """Its first round is FedAvg's local procedure; from the second on every client goes on from its own."""
    one, other = ride("local"), ride("fedavg")
    for k in range(4):
        assert torch.equal(one.train(1, k).memory().personal, other.train(1, k).up.w)
        assert len(one.train(1, k).up) == len(one.train(1, k).down) == 0
    assert not torch.equal(one.train(2, 0).memory().personal, other.train(2, 0).up.w)


def test_scaffolds_first_round_is_fedavgs(ride: Riding) -> None:
    one, other = ride("scaffold", rounds=1), ride("fedavg", rounds=1, **EQUAL)
    torch.testing.assert_close(one.params.flat, other.params.flat, rtol=1e-5, atol=1e-7)
    assert not torch.equal(one.params.flat, one.initial.flat)


def test_fedavg_with_one_client_is_a_loop_written_by_hand(ride: Riding) -> None:
    keys = {"split.partition": "iid", "split.clients": 1, "train.epochs": 2}
    run = ride("fedavg", **keys)
    config = run.result.config
    with rng.seeded(0, "init"):
        net = models.build(config["model"], "model").build((INTO,), 5)
    data = run.world.federation.clients[0].train
    for round in (1, 2, 3):
        for epoch in (0, 1):
            order = torch.from_numpy(rng.generator(0, "batches", round, 0, 0, epoch).permutation(len(data)))
            for at in range(0, len(data), 4):
                x, y = data.take(order[at : at + 4])
                gradient = torch.autograd.grad(F.cross_entropy(net(x), y), list(net.parameters()))
                with torch.no_grad():
                    for parameter, grad in zip(net.parameters(), gradient, strict=True):
                        parameter.sub_(grad, alpha=0.1)
    flat = torch.cat([p.detach().flatten() for p in net.parameters()])
    assert len(data) == 128
    assert torch.equal(run.params.flat, flat)
    assert run.train(3, 0).numbers["steps"] == 64


@pytest.mark.parametrize("mu", [0.0, 0.1, 2.0])
def test_fedproxs_steps_are_those_computed_by_hand(mu: float) -> None:
    """FedProx eq. 2: w <- w - eta (grad F(w) + mu (w - w_g)); its first step has nothing to pull at yet."""
    home = by_hand.resident()
    lr, data = 0.5, by_hand.some(4)  # one batch: the order within it does not matter to the mean
    client = by_hand.client(home, data, train={"lr": lr})
    w_g = home.initial.weights.clone()
    by_step = [w_g]
    for _ in range(3):
        home.params.weights.copy_(by_step[-1])
        loss = F.cross_entropy(home.model.requires_grad_(True)(data.pool.x), data.y)
        grads = torch.autograd.grad(loss, list(home.model.parameters()))
        g = torch.cat([grad.flatten() for grad in grads])
        by_step.append(by_step[-1] - lr * (g + mu * (by_step[-1] - w_g)))
    for steps in (1, 2, 3):
        client = by_hand.client(home, data, train={"lr": lr})
        FedProx(mu=mu).local(client, steps=steps)
        torch.testing.assert_close(home.params.weights, by_step[steps], rtol=1e-5, atol=1e-6)
    plain = by_hand.client(home, data, train={"lr": lr})
    FedProx(mu=0.0).local(plain, steps=2)
    pulled = float((by_step[2] - home.params.weights).norm())
    assert (pulled > 1e-3) == (mu > 0)


@pytest.mark.parametrize("split", [0, 1, 0.0, 1.0, -0.5, 1.5])
def test_map_refuses_a_split_that_leaves_a_stage_empty(split: float) -> None:
    with pytest.raises(UsageError, match=r"method\.split"):
        methods.build({"name": "map", "split": split}, "method")


def test_scaffold_with_another_server_rate_is_not_fedavg(ride: Riding) -> None:
    one = ride({"name": "scaffold", "server_lr": 0.5}, rounds=1)
    other = ride("fedavg", rounds=1, **EQUAL)
    half = (one.initial.flat + other.params.flat) / 2
    torch.testing.assert_close(one.params.flat, half, rtol=1e-5, atol=1e-6)
    assert issubclass(Scaffold, methods.get("fedavg").__mro__[1])
