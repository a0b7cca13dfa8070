"""pFedLA (Ma et al. 2022): every client's model is mixed from everybody's, layer by layer, by its own hypernetwork."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from riding import Ride

import by_hand
from polyfed.methods.base import Server, Upload, part_message
from polyfed.methods.pfedla import PFedLA
from polyfed.params import everything
from polyfed.parts.hypernet import Hypernetwork, layers_of, slopes_of

Riding = Callable[..., Ride]


def ready(clients: int = 3, **keys: Any) -> tuple[PFedLA, Server]:
    method = PFedLA(**{"embedding": 5, "hidden": 6} | keys)
    return method, by_hand.server(by_hand.resident(bn=True), [1] * clients, method)


def merge(method: PFedLA, server: Server, values: dict[int, float], counter: int = 0) -> None:
    messages = {}
    for client, value in values.items():
        params = by_hand.as_params(server.resident, value)
        params.integers.fill_(counter + client)
        messages[client] = part_message("w", *params.get(everything))
    method.merge(server, [Upload(k, 1, message) for k, message in messages.items()])


def set_weights(monkeypatch: pytest.MonkeyPatch, rows: Sequence[Sequence[float]]) -> None:
    """Hypernetworks that say this for every layer, a row for each client."""

    def fixed(method: PFedLA, server: Server, id: int) -> Hypernetwork:
        made = Hypernetwork(len(layers_of(server.shared.layout)), len(server.clients), 5, 6)
        with torch.no_grad():
            made.perceptron[4].weight.zero_()
            made.perceptron[4].bias.copy_(torch.tensor(rows[id]).repeat(made.shape[0]))
        return made

    monkeypatch.setattr(PFedLA, "hypernetwork", fixed)


def test_before_anybody_has_sent_a_model_all_get_the_initial_one() -> None:
    method, server = ready()
    for k in range(3):
        assert torch.equal(method.send(server, k).w, server.resident.initial.flat)
    assert len(server.state) == 0


def test_who_is_alone_gets_its_own_model_back() -> None:
    method, server = ready()
    merge(method, server, {1: 4.0}, counter=7)
    assert set(method.send(server, 1).w.tolist()) == {4.0}
    assert set(method.send(server, 1)["w.integers"].tolist()) == {8}
    assert set(method.send(server, 0).w.tolist()) == {4.0}  # nobody else has sent one yet
    assert set(method.send(server, 0)["w.integers"].tolist()) == {0}  # but counters are one's own


def test_a_model_is_the_weighted_sum_of_those_who_sent_one(monkeypatch: pytest.MonkeyPatch) -> None:
    set_weights(monkeypatch, [[1.0, 9.0, 3.0], [0.0, 0.0, 2.0], [-1.0, 5.0, 0.0]])
    method, server = ready()
    merge(method, server, {0: 2.0, 2: 6.0})
    sent = [method.send(server, k).w for k in range(3)]
    assert set(sent[0].tolist()) == {5.0}  # (2 + 3 * 6) / 4: client 1 has no model to give
    assert set(sent[1].tolist()) == {6.0}  # a newcomer
    assert set(sent[2].tolist()) == {6.0}  # no weight at all: its own
    merge(method, server, {1: 1.0})
    assert set(method.send(server, 2).w.tolist()) == {1.0}  # now client 1 has one


def test_the_hypernetwork_follows_the_change_of_its_client() -> None:
    """Its client goes to larger values, so that it weighs larger models more; nobody else's hypernetwork moves."""
    method, server = ready(lr=1e-4)
    merge(method, server, {0: 1.0, 1: 2.0, 2: 0.5})
    assert not any(name.startswith("hypernetwork") for name in server.state)  # there was nothing to mix yet
    before = method.shares(server, 0, method.hypernetwork(server, 0)).detach()
    merge(method, server, {0: 3.0})
    assert [name for name in server.state if name.startswith("hypernetwork")] == ["hypernetwork_0"]
    after = method.shares(server, 0, method.hypernetwork(server, 0)).detach()
    more = (after - before) @ torch.tensor([1.0, 2.0, 0.5])  # the models that the weights were learnt on
    assert (more > -1e-6).all()
    assert float(more.sum()) > 1e-3


def test_the_step_is_one_of_gradient_descent_on_the_stored_models() -> None:
    method, server = ready(lr=0.02)
    merge(method, server, {0: 1.0, 1: 2.0, 2: 0.5})
    layers, models = layers_of(server.shared.layout), method.models(server)
    sent, hyper = method.personal_model(server, 2), method.hypernetwork(server, 2)
    change = by_hand.as_params(server.resident, 3.0).flat - sent.flat
    hyper.descend(method.shares(server, 2, hyper), slopes_of(layers, models, change), 0.02)
    merge(method, server, {2: 3.0})
    assert torch.equal(server.state.hypernetwork_2, hyper.values())
    assert set(server.state.model_2.flat.tolist()) == {3.0}


def test_all_learn_from_the_models_of_before_whatever_their_order() -> None:
    states = []
    for order in ((0, 1, 2), (2, 0, 1)):
        method, server = ready()
        merge(method, server, {0: 1.0, 1: 2.0, 2: 0.5})
        merge(method, server, {k: 3.0 + k for k in order})
        states.append({name: server.state[name] for name in sorted(server.state)})
    assert states[0].keys() == states[1].keys()
    for name, one in states[0].items():
        other = states[1][name]
        assert torch.equal(one.flat, other.flat) if name.startswith("model") else torch.equal(one, other)


def test_sending_is_pure() -> None:
    method, server = ready()
    merge(method, server, {0: 1.0, 1: 2.0, 2: 0.5})
    before = {name: id(server.state[name]) for name in server.state}
    assert torch.equal(method.send(server, 1).w, method.send(server, 1).w)
    assert before == {name: id(server.state[name]) for name in server.state}


# ---- whole runs


@pytest.mark.parametrize("model", ["mlp", "mlp-bn"])
def test_its_first_round_is_fedavgs_and_then_all_get_models_of_their_own(ride: Riding, model: str) -> None:
    one, other = ride("pfedla", data="skewed", model=model), ride("fedavg", data="skewed", model=model)
    for k in range(4):
        assert torch.equal(one.train(1, k).up.w, other.train(1, k).up.w)
        sent = torch.stack([one.train(1, j).up.w for j in range(4)])
        got = one.train(2, k).down.w
        assert (got <= sent.max(0).values + 1e-5).all()
        assert (got >= sent.min(0).values - 1e-5).all()
    downs = [one.train(2, k).down.w for k in range(4)]
    assert not any(torch.equal(downs[0], each) for each in downs[1:])
    assert one.result["global"] is None


def test_the_server_keeps_a_model_and_a_hypernetwork_of_everybody(ride: Riding) -> None:
    run = ride("pfedla", data="skewed")
    state = {name for name in run.state if name.startswith("state.")}
    assert state == {f"state.{what}_{k}" for what in ("model", "hypernetwork") for k in range(4)}
    for k in range(4):
        assert torch.equal(run.state[f"state.model_{k}"].flat, run.train(3, k).up.w)


def test_what_answers_is_what_would_be_sent(ride: Riding) -> None:
    run = ride("pfedla", data="skewed")
    for seen in [s for s in run.of("evaluate") if s.round > 3][:4]:
        flat = torch.cat([p.detach().flatten() for p in run.result.client(seen.client).model.parameters()])
        assert torch.equal(flat, seen.down.w)
