"""FLDA (Peterson et al. 2019): a gate mixes the averaged network with a private one."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from riding import Ride

import by_hand
from polyfed.methods.fedavg import FedAvg
from polyfed.methods.flda import FLDA, TwoNetworks
from polyfed.params import named
from polyfed.parts.mixture import Personal
from polyfed.parts.resident import Batch, Resident

Riding = Callable[..., Ride]
GATE = named("gate.*")


def home(gate: float | None = None, **shape: Any) -> Resident:
    """Two tiny networks; with `gate` their gate says that for every sample."""
    made = by_hand.resident(make=lambda: FLDA().build(by_hand.tiny_net(**shape)))
    if gate is not None:
        made.initial.put(GATE, torch.tensor([0.0] * by_hand.WIDTH + [gate]))
        made.params.set(made.initial)
    return made


@pytest.mark.parametrize("bias", [-1.5, 0.0, 0.5])
def test_the_answer_is_the_mixture(bias: float) -> None:
    """p = a softmax(G) + (1 - a) softmax(P), a = sigmoid(v . h_G + b); its logarithm is given."""
    torch.manual_seed(0)
    made = TwoNetworks(by_hand.tiny_net()).eval()
    x = by_hand.some(6).pool.x
    with torch.no_grad():
        made.own.head.weight.neg_()
        made.gate.bias.fill_(bias)
        a = torch.sigmoid(made.features(x) @ made.gate.weight[0] + bias)[:, None]
        expected = a * made(x).softmax(1) + (1 - a) * made.own(x).softmax(1)
        found, shared = Personal(made)(x), made(x).softmax(1)
    torch.testing.assert_close(found.exp(), expected)
    assert (a > 0).all()
    assert float((found.exp() - shared).abs().max()) > 1e-2


def test_the_private_network_starts_as_the_shared_one_and_is_its_own() -> None:
    made = home()
    shared, private = made.initial.get(FLDA().shared)[0], made.initial.get(named("own.*"))[0]
    assert torch.equal(shared, private)
    assert torch.equal(shared, by_hand.resident().initial.flat)  # and as FedAvg's
    with torch.no_grad():
        made.model.head.weight.add_(1)
    assert not torch.equal(made.params.get(FLDA().shared)[0], made.params.get(named("own.*"))[0])


@pytest.mark.parametrize("generic", [0.0, 0.5])
def test_the_loss_is_the_likelihood_of_the_mixture(generic: float) -> None:
    made, data = home(0.3), by_hand.some(6)
    made.initial.put(named("own.*"), made.initial.get(named("own.*"))[0] * -1)
    client = by_hand.client(made, data)
    x, y = data.pool.x, data.y
    net: Any = made.model
    found = FLDA(generic=generic).loss(client, Batch(net, x, y, torch.arange(6), data))
    with torch.no_grad():
        a = torch.sigmoid(torch.tensor(0.3))
        p = a * net(x).softmax(1) + (1 - a) * net.own(x).softmax(1)
        expected = -p[torch.arange(6), y].log().mean() + generic * F.cross_entropy(net(x), y)
    torch.testing.assert_close(found.detach(), expected)


@pytest.mark.parametrize("bn", [False, True])
def test_under_an_open_gate_the_upload_is_fedavgs(bn: bool) -> None:
    train, data = {"lr": 0.3, "batch": 4, "epochs": 2}, by_hand.some(12)
    upload = FLDA().train(by_hand.client(home(100.0, bn=bn), data, train=train))
    plain = by_hand.resident(bn=bn)
    expected = FedAvg().train(by_hand.client(plain, data, train=train))
    torch.testing.assert_close(upload.w, expected.w, rtol=1e-5, atol=1e-6)
    assert not torch.equal(upload.w, plain.initial.flat)


def test_under_a_shut_gate_nothing_is_learnt_in_common_unless_the_shared_network_is_asked_too() -> None:
    train, data = {"lr": 0.3, "batch": 4, "epochs": 2}, by_hand.some(12)
    made = home(-100.0)
    start = made.initial.get(FLDA().shared)[0]
    client = by_hand.client(made, data, train=train)
    torch.testing.assert_close(FLDA().train(client).w, start, rtol=0, atol=1e-6)
    private = FedAvg().train(by_hand.client(by_hand.resident(), data, train=train)).w
    torch.testing.assert_close(client.live.get(named("own.*"))[0], private, rtol=1e-5, atol=1e-6)
    asked = FLDA(generic=1.0).train(by_hand.client(made, data, train=train)).w
    torch.testing.assert_close(asked, private, rtol=1e-5, atol=1e-6)  # the gate is shut: FedAvg's own steps


def test_everything_is_trained_together_and_only_the_shared_network_is_sent(ride: Riding) -> None:
    run, plain = ride("flda", data="skewed"), ride("fedavg", data="skewed")
    for k in range(4):
        seen = run.train(1, k)
        assert len(seen.up.w) == len(seen.down.w) == plain.layout.size
        before, after = run.initial.get(FLDA().personal)[0], seen.memory().personal
        width = run.world.sizes(run.world.resident)["d"] + 1  # of the gate
        assert not torch.equal(before[:-width], after[:-width])
        assert not torch.equal(before[-width:], after[-width:])
        assert not torch.equal(seen.up.w, plain.train(1, k).up.w)
    assert torch.equal(run.initial.get(FLDA().shared)[0], plain.initial.flat)


def test_the_shared_network_answers_for_all_and_the_mixture_for_a_client(ride: Riding) -> None:
    run = ride("flda", data="skewed")
    x = run.world.federation.global_test.take(torch.arange(20))[0]
    with torch.inference_mode():
        alone = ride("fedavg", data="skewed").world.resident.frozen
        plain = ride("fedavg", data="skewed").initial.copy()
        plain.flat.copy_(run.params.get(FLDA().shared)[0])
        assert torch.equal(run.result.global_model().model(x), alone(plain, False).model(x))
        model = run.result.client(1).model
        assert isinstance(model, Personal)
        torch.testing.assert_close(model(x).exp().sum(1), torch.ones(20))
    values = run.params.copy()
    values.put(FLDA().personal, run.train(3, 1).memory().personal)
    assert torch.equal(torch.cat([p.detach().flatten() for p in model.parameters()]), values.flat)


def test_a_newcomer_trains_its_own_network_and_gate_beside_the_shared_one(ride: Riding) -> None:
    run = ride("flda", data="skewed", rounds=2, **{"split.heldout": 1})
    (seen,) = run.of("finish")
    made = by_hand.as_params(run.world.resident, seen.live)
    assert torch.equal(made.get(FLDA().shared)[0], run.params.get(FLDA().shared)[0])
    assert not torch.equal(made.get(FLDA().personal)[0], run.initial.get(FLDA().personal)[0])
