"""K-Cluster, IFCA (Ghosh et al. 2020): k models, each client trains the one with the smallest loss on its data."""

from collections.abc import Callable

import pytest
import torch
from riding import Ride

import by_hand
from polyfed.message import Bundle, Message
from polyfed.methods.kcluster import KCluster
from polyfed.parts.losses import cross_entropy

Riding = Callable[..., Ride]


def received(home, *values) -> Bundle:
    """These models, as they come down."""
    models = [by_hand.as_params(home, v) for v in values]
    counters = torch.stack([torch.full_like(m.integers, i) for i, m in enumerate(models)])
    return Bundle(models=torch.stack([m.flat for m in models]), counters=counters)


def test_the_model_with_the_smallest_training_loss_is_chosen() -> None:
    """Line 6: j = argmin_j F_k(w_j)."""
    home, data = by_hand.resident(bn=True), by_hand.some(12)
    trained = by_hand.client(home, data, train={"lr": 0.5})
    trained.fit(cross_entropy, epochs=30)
    good = home.params.flat.clone()
    for place in (0, 1, 2):
        models = [home.initial.flat, home.initial.flat * -1, home.initial.flat * 2]
        models[place] = good
        client = by_hand.client(home, data, received=received(home, *models))
        KCluster(k=3).adapt(client)
        assert client.scratch.choice == place
        assert torch.equal(home.params.flat, good)
        assert set(home.params.integers.tolist()) == {place}
        losses = [client.mean_loss(by_hand.as_params(home, m), cross_entropy) for m in models]
        assert losses.index(min(losses)) == place


def test_the_choice_goes_up_with_the_trained_model() -> None:
    home, data = by_hand.resident(), by_hand.some(12)
    client = by_hand.client(home, data, received=received(home, home.initial.flat, home.initial.flat + 5))
    upload = KCluster(k=2).train(client)
    assert set(upload) == {"w", "choice"}
    assert upload.choice == client.scratch.choice == 0
    assert torch.equal(upload.w, home.params.flat)


def test_each_model_is_the_average_of_those_who_chose_it() -> None:
    """One nobody chose stays; weights are those of the run, within the cluster."""
    home = by_hand.resident()
    method = KCluster(k=3)
    server = by_hand.server(home, [1, 3, 5, 7], method)
    before = server.state.models.clone()
    sent = [Message(w=by_hand.as_params(home, v).flat, choice=j) for v, j in ((4.0, 2), (8.0, 2), (1.0, 0))]
    method.merge(server, by_hand.uploads(*sent, sizes=[1, 3, 5]))
    assert set(server.state.models[2].tolist()) == {0.25 * 4 + 0.75 * 8}
    assert set(server.state.models[0].tolist()) == {1.0}
    assert torch.equal(server.state.models[1], before[1])


def test_the_first_model_is_everybodys_and_the_others_are_drawn_by_the_seed(ride: Riding) -> None:
    home = by_hand.resident()
    servers = [by_hand.server(home, [1], KCluster(k=3), seed=s) for s in (0, 0, 1)]
    one, same, other = (s.state.models for s in servers)
    assert torch.equal(one, same)
    assert torch.equal(one[0], home.initial.flat)
    assert not torch.equal(one[1], one[2])
    assert not torch.equal(one[1], other[1])


def test_all_models_go_down_and_one_comes_up(ride: Riding) -> None:
    run = ride({"name": "k-cluster", "k": 3}, data="skewed", model="mlp-bn", rounds=2)
    for seen in run.of("train"):
        assert set(seen.down) == {"models", "counters"}
        assert seen.down.models.shape == (3, run.layout.size)
        assert set(seen.up) == {"w", "w.integers", "choice"}
        assert seen.up.choice in (0, 1, 2)
    two = run.train(2, 0).down.models
    for j in range(3):
        members = [s for s in run.of("train") if s.round == 1 and s.up.choice == j]
        if not members:
            assert torch.equal(two[j], run.train(1, 0).down.models[j])
            continue
        n = torch.tensor([len(run.world.federation.clients[s.client].train) for s in members], dtype=torch.float64)
        mean = (n / n.sum()) @ torch.stack([s.up.w.double() for s in members])
        torch.testing.assert_close(two[j].double(), mean, rtol=1e-5, atol=1e-6)


def test_a_client_answers_with_the_model_it_would_choose_now(ride: Riding) -> None:
    run = ride({"name": "k-cluster", "k": 3}, data="skewed", rounds=2)
    models = run.state["state.models"]
    for k in range(4):
        flat = torch.cat([p.detach().flatten() for p in run.result.client(k).model.parameters()])
        assert any(torch.equal(flat, m) for m in models)
    assert run.result["global"] is None


@pytest.mark.parametrize("k", [1, 2])
def test_with_local_buffers_only_weights_are_exchanged(ride: Riding, k: int) -> None:
    run = ride({"name": "k-cluster", "k": k}, data="skewed", model="mlp-bn", rounds=2, buffers="local")
    assert run.result["rejected"] == {}
    for seen in run.of("train"):
        assert seen.down.models.shape == (k, run.layout.n_weights)
        assert seen.up.w.shape == (run.layout.n_weights,)
        assert torch.equal(seen.memory()["personal"], seen.live[run.layout.n_weights :])
