"""MuPFL by its equations, on the wire, and with each of its modules off."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from bench import Bench, two_layers
from riding import CLASSES, HOLDS, Ride, leaks, learnt, spoiling
from torch import Tensor, nn

import polyfed
from polyfed import rng
from polyfed.api import config_of
from polyfed.config import Train
from polyfed.data.samples import Samples
from polyfed.errors import UsageError
from polyfed.message import Memory, Message
from polyfed.methods.base import Client, Server, Site, Upload
from polyfed.methods.mupfl import MuPFL
from polyfed.models.base import Net
from polyfed.params import bn, body, head
from polyfed.parts import bavd
from polyfed.parts.cluster import Grouping, cluster_update, cosines, group, similarity
from polyfed.parts.match import class_means, match_features

Riding = Callable[..., Ride]
FEW = {"method.m": 3, "method.tau": 2, "method.match_steps": 5, "method.tune_batch": 1000}
OFF = {"method.bavd": False, "method.acmu": False, "method.pkcf": False}


def mupfl(ride: Riding, **keys: Any) -> Ride:
    """A run with few features, on four clients that hold other classes."""
    return ride("mupfl", **{"data": "skewed", "model": "mlp-bn", **FEW} | keys)


def logged(run: Ride) -> str:
    return (run.result.path / "log.txt").read_text()


def sent_next(run: Ride, round: int) -> Tensor:
    """The shared model after a round."""
    return run.train(round + 1, 0).down.w


def head_of(run: Ride, w: Tensor) -> Tensor:
    return torch.cat([w[a:b] for a, b in run.layout.ranges(head)])


# ---- without an engine


def test_eqs_1_2_3_and_18_a_step_on_the_mean_loss_of_head_after_body() -> None:
    bench = Bench(MuPFL(bavd=False, acmu=False, pkcf=False), lr=0.5, batch=8)
    client = bench.client()
    x, y = client.data.take(torch.arange(8))
    model = client.model
    assert torch.equal(model(x), model.head(model.last(model.trunk(x))))  # eqs. 1 and 18
    weights = [p.detach().clone().requires_grad_(True) for p in model.parameters()]
    w1, b1, w2, b2 = weights
    logits = torch.relu(x @ w1.T + b1) @ w2.T + b2
    loss = -logits.log_softmax(1)[torch.arange(8), y].mean()  # eq. 2
    grads = torch.autograd.grad(loss, weights)
    bench.method.train(client)
    expected = torch.cat([(w - 0.5 * g).flatten() for w, g in zip(weights, grads, strict=True)])  # eq. 3
    assert torch.allclose(client.live.weights, expected, atol=1e-6)


def test_eqs_5_and_15_the_shared_model_is_the_average_by_samples() -> None:
    for acmu in (False, True):  # with all in one cluster and the same starts the sum is the same
        bench = Bench(MuPFL(bavd=False, pkcf=False, acmu=acmu, kappa=1), clients=2)
        start = bench.server.shared.flat.clone()
        a, b = start + 1, start + torch.arange(len(start))
        bench.method.merge(bench.server, [bench.upload(0, w=a), bench.upload(1, w=b)])
        shares = (0.5, 0.5) if acmu else (10 / 21, 11 / 21)  # n = 10 and 11; the cluster's mean is unweighted
        assert torch.allclose(bench.server.shared.flat, shares[0] * a + shares[1] * b, atol=1e-5)


def test_eqs_7_8_14_and_15_from_private_heads() -> None:
    """Two families of updates; heads start apart; buffers are averaged plainly."""
    bench = Bench(MuPFL(bavd=False, m=2, match_steps=1), clients=5)
    layout, start = bench.resident.layout, bench.server.shared.flat.clone()
    (begin, end), n = layout.ranges(head)[0], [10, 11, 12, 13, 14]
    heads = torch.randn(5, end - begin, generator=torch.Generator().manual_seed(1))
    starts = start.repeat(5, 1)
    starts[:, begin:end] = heads
    moves = torch.zeros(5, len(start))
    moves[:2, ::2], moves[2:, 1::2] = 1.0, -1.0  # orthogonal
    moves[0] *= 3
    z, none = torch.ones(1, 2, 5), torch.tensor([0])
    uploads = [bench.upload(k, w=starts[k] + moves[k], start_head=heads[k], z=z, classes=none) for k in range(5)]
    bench.method.merge(bench.server, uploads)
    assert bench.server.records["clusters"].tolist() in (
        [[0, 0], [1, 0], [2, 1], [3, 1], [4, 1]],
        [[0, 1], [1, 1], [2, 0], [3, 0], [4, 0]],
    )
    assert bench.server.records["silhouette"][0][0] == 2
    mean = torch.stack([moves[:2].mean(0)] * 2 + [moves[2:].mean(0)] * 3)
    expected = (torch.tensor(n) / sum(n)) @ (starts + mean)
    assert torch.allclose(bench.server.shared.flat, expected, atol=1e-5)


def test_the_similarity_looks_at_weights_only_and_buffers_stay_each_ones_own() -> None:
    def net() -> Net:
        return Net(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), nn.Identity(), nn.Linear(4, 2))

    bench = Bench(MuPFL(bavd=False, pkcf=False), clients=4, net=net)
    count, start = bench.resident.layout.n_weights, bench.server.shared.flat
    moves = torch.zeros(4, len(start))
    moves[:2, : count // 2], moves[2:, count // 2 : count] = 1, 1
    moves[:, count:] = torch.tensor([100.0, 0, 100, 0])[:, None]  # would pair 0 with 2 and 1 with 3
    counter = torch.tensor([7])
    bench.method.merge(
        bench.server, [Upload(k, 10, Message(**{"w": start + moves[k], "w.integers": counter})) for k in range(4)]
    )
    labels = bench.server.records["clusters"][:, 1].tolist()
    assert labels[0] == labels[1] != labels[2] == labels[3]
    assert torch.allclose(bench.server.shared.buffers, (start + moves)[:, count:].mean(0))
    assert bench.server.shared.integers.tolist() == [7]


@pytest.mark.parametrize("odd", [0, 3])
def test_a_client_without_a_map_is_clustered_by_its_update(odd: int) -> None:
    """It took no step, or sent something else: its map is zero, like nobody's."""
    bench = Bench(MuPFL(pkcf=False), clients=4)
    start = bench.server.shared.flat
    moves = torch.zeros(4, len(start))
    moves[:2, ::2], moves[2:, 1::2] = 1, 1
    maps = [torch.tensor([1.0, 0.0])] * 2 + [torch.tensor([0.0, 1.0])] * 2
    maps[1] = torch.zeros(odd)
    bench.method.merge(bench.server, [bench.upload(k, w=start + moves[k], map=maps[k]) for k in range(4)])
    labels = bench.server.records["clusters"][:, 1].tolist()
    assert labels[0] == labels[1] != labels[2] == labels[3]
    everyone_without = [bench.upload(k, w=start + moves[k], map=torch.zeros(0)) for k in range(4)]
    bench.method.merge(bench.server, everyone_without)
    assert torch.isfinite(bench.server.shared.flat).all()


@pytest.mark.parametrize("run", [{}, {"momentum": 0.9, "weight_decay": 0.1, "clip": 1e-3}])
def test_eq_21_the_head_descends_on_the_features_of_the_matched_classes(run: dict[str, Any]) -> None:
    """By plain SGD, whatever the rule of the run."""
    bench = Bench(MuPFL(m=3, tau=2, tune_lr=0.4, tune_batch=100), **run)
    h = torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(3))
    client = bench.client(features=h, feature_classes=torch.tensor([1]))
    frozen_body = client.live.get(body)[0]
    weight, bias = (p.detach().clone() for p in client.model.head.parameters())
    bench.method.adapt(client)
    for _ in range(2):
        error = (h[0] @ weight.T + bias).softmax(1) - torch.tensor([0.0, 1.0])
        weight, bias = weight - 0.4 * error.T @ h[0] / 3, bias - 0.4 * error.mean(0)
    assert torch.allclose(client.live.get(head)[0], torch.cat([weight.flatten(), bias]), atol=1e-6)
    assert torch.equal(client.live.get(body)[0], frozen_body)


@pytest.mark.parametrize("key", ["tune_momentum", "tune_decay", "tune_clip"])
def test_tuning_has_a_rule_of_its_own(key: str) -> None:
    method = MuPFL(m=3, **{key: 0.2})
    rule = Train(**{{"tune_decay": "weight_decay"}.get(key, key.removeprefix("tune_")): 0.2})
    bench, used = Bench(method), []
    client = bench.client(features=torch.randn(1, 3, 4), feature_classes=torch.tensor([1]))
    client.fit = lambda *given, **options: used.append(options["rule"])  # type: ignore[method-assign]
    method.adapt(client)
    assert used == [rule]


def test_a_private_head_goes_on_from_the_clients_own_last_one() -> None:
    bench = Bench(MuPFL(m=3, tau=2))
    sent = {"features": torch.randn(2, 3, 4), "feature_classes": torch.tensor([0, 1])}
    own = torch.randn(10)
    starts = []
    for kept in (None, own, own + 1):
        memory = Memory() if kept is None else Memory(own_head=kept)
        client = bench.client(memory=memory, **sent)
        bench.method.adapt(client)
        starts.append(client.live.get(head)[0])
        if kept is not None:
            assert torch.equal(client.memory.own_head, kept)
    assert len({tuple(s.tolist()) for s in starts}) == 3
    without = bench.client(memory=Memory(own_head=own))  # nothing is matched yet: the head is left as it is
    bench.method.adapt(without)
    assert torch.equal(without.live.get(head)[0], own)


# ---- on the wire


@pytest.mark.parametrize("model", ["mlp", "mlp-bn"])
@pytest.mark.parametrize("bias", [False, True])
def test_what_crosses_the_wire_and_its_bytes(ride: Riding, model: str, bias: bool) -> None:
    run = mupfl(ride, model=model, **{"model.bias": bias})
    layout, m, d = run.layout, 3, 10
    p, i, p_h = layout.size, layout.n_integers, layout.length(head)
    maps = 2 * d  # two layers of ten activations
    assert p_h == CLASSES * (d + bias)
    for seen in run.of("train"):
        own = len(HOLDS[seen.client])
        beside = {"w.integers"} if model == "mlp-bn" else set()
        assert set(seen.up) == {"w", "z", "classes", "map", "start_head"} | beside
        assert seen.up.nbytes == 4 * (p + maps + own * p_h + p_h) + 8 * (i + own)
        assert seen.up.classes.tolist() == list(HOLDS[seen.client])
        later = {"features", "feature_classes"} if seen.round > 1 else set()
        assert set(seen.down) == {"w"} | later | beside
        assert seen.down.nbytes == 4 * p + 8 * i + (seen.round > 1) * (4 * CLASSES * m * d + 8 * CLASSES)
        assert 0 <= seen.up.map.min() < seen.up.map.max() <= 1


def test_bytes_with_the_received_head_tuned(ride: Riding) -> None:
    run = mupfl(ride, **{"method.tune_from": "global"})
    p, p_h = run.layout.size, run.layout.length(head)
    for seen in run.of("train"):
        own = len(HOLDS[seen.client])
        assert "start_head" not in seen.up
        assert seen.up.nbytes == 4 * (p + 20 + own * p_h) + 8 * (run.layout.n_integers + own)
        assert seen.after is None  # and nothing is kept


def test_the_finish_round_sends_the_features_once_more_and_gets_nothing(ride: Riding) -> None:
    run = mupfl(ride)
    assert {s.client for s in run.of("finish")} == {0, 1, 2, 3}
    assert all("features" in s.down and len(s.up) == 0 for s in run.of("finish"))


def test_gradients_are_those_of_the_received_model_before_tuning(ride: Riding) -> None:
    """Eq. 16 at (u_glo, v_glo), in eval mode, over all of a class where it has no more than b_real samples."""
    run = mupfl(ride)
    for round in (1, 2):
        for k in range(4):
            seen = run.train(round, k)
            assert torch.allclose(seen.up.z, gradients_at(run, run.down_whole(seen).flat, k), atol=1e-5)


def gradients_at(run: Ride, flat: Tensor, client: int) -> Tensor:
    """Class gradients by autograd at a model in eval mode: [classes, C, d]."""
    resident, data = run.world.resident, run.world.federation.clients[client].train
    resident.reset()
    resident.params.flat.copy_(flat)
    x, y = data.take(torch.arange(len(data)))
    rows, layer, found = resident.model.eval().features(x).detach(), resident.model.head, []
    for c in HOLDS[client]:
        layer.requires_grad_(True)
        loss = F.cross_entropy(layer(rows[y == c]), y[y == c])
        weight, *bias = torch.autograd.grad(loss, list(layer.parameters()))
        found.append(torch.cat([weight, bias[0][:, None]], 1) if bias else weight)
    return torch.stack(found)


def test_local_gradients_are_those_of_the_trained_model(ride: Riding) -> None:
    run = mupfl(ride, **{"method.grad_at": "local"})
    for k in range(4):
        seen = run.train(2, k)
        assert torch.allclose(seen.up.z, gradients_at(run, seen.up.w, k), atol=1e-5)
        assert not torch.allclose(seen.up.z, gradients_at(run, seen.down.w, k), atol=1e-3)


@pytest.mark.parametrize("grad_at", ["global", "local"])
@pytest.mark.parametrize("bias", [False, True])
def test_features_are_matched_at_the_head_the_gradients_belong_to_and_start_warm(
    ride: Riding, grad_at: str, bias: bool
) -> None:
    """Eqs. 17-20: at the head that was sent, or (algorithm 1) at the head of the new model; from the last features."""
    run = mupfl(ride, **{"method.grad_at": grad_at, "model.bias": bias})
    features = None
    for round in (1, 2):
        uploads = [run.train(round, k).up for k in range(4)]
        classes, goals = class_means([(u.classes, u.z) for u in uploads])
        before = features if features is not None else initial_features(run)
        at = run.train(round, 0).down.w if grad_at == "global" else sent_next(run, round)
        v = head_of(run, at)
        split = v[: CLASSES * 10].view(CLASSES, 10), v[CLASSES * 10 :] if bias else None
        features = match_features(before, goals, classes, split, 5, 0.1, flat=False)
        assert torch.allclose(run.train(round + 1, 0).down.features, features, atol=1e-6)
        assert not torch.allclose(features, before, atol=1e-3)


def initial_features(run: Ride) -> Tensor:
    """H as the server starts with it: N(0, 1), from the seed."""
    return torch.randn(CLASSES, 3, 10, generator=rng.torch_generator(0, "federated-features"))


def test_a_class_nobody_sent_is_neither_matched_nor_sent_nor_moved(ride: Riding) -> None:
    run = mupfl(ride, participation=0.25)  # one client a round: 0, 0 and 3
    first, second, third = run.of("train")
    assert [s.client for s in (first, second, third)] == [0, 0, 3]
    assert "features" not in first.down
    assert second.down.feature_classes.tolist() == third.down.feature_classes.tolist() == [0, 1]
    assert run.state["state.matched"].tolist() == [1, 1, 0, 1, 0]
    features = run.state["state.features"]
    assert torch.equal(features[[2, 4]], initial_features(run)[[2, 4]])  # never sent
    assert torch.equal(features[:2], third.down.features)  # not sent in the last round
    assert not torch.equal(features[3], initial_features(run)[3])


def test_the_start_head_is_the_clients_last_head_tuned(ride: Riding) -> None:
    """Eq. 21: with one batch of all features, two plain steps."""
    run = mupfl(ride)
    for k in range(4):
        first, second = run.train(1, k), run.train(2, k)
        assert torch.equal(first.up.start_head, head_of(run, first.down.w))  # nothing to tune on: the received one
        kept = first.memory().own_head
        assert torch.equal(kept, head_of(run, first.up.w))
        assert torch.equal(second.memory(after=False).own_head, kept)
        h = second.down.features.flatten(0, 1)
        y = second.down.feature_classes.repeat_interleave(3)
        v = kept.view(CLASSES, 10)
        for _ in range(2):
            v = v - 0.1 * ((h @ v.T).softmax(1) - F.one_hot(y, CLASSES)).T @ h / len(h)
        assert torch.allclose(second.up.start_head, v.flatten(), atol=1e-5)


def test_nobody_receives_another_clients_head(ride: Riding) -> None:
    run = mupfl(ride)
    for seen in run.of("train"):
        own = seen.memory().own_head
        values = learnt(own, seen.up.start_head)
        assert leaks(values, seen.up)  # it leaves inside the model, by the paper's design
        for other in run.seen:
            assert not leaks(values, other.down)


def test_the_wire_says_that_the_head_leaves() -> None:
    words = MuPFL().wire().describe()["up"]
    assert "its head too" in words["w"]
    assert "start_head" in words
    assert not MuPFL().wire().only_sums
    assert MuPFL(bavd=False, acmu=False, pkcf=False).wire().only_sums


def test_the_stored_head_is_read_but_not_written_when_a_client_is_personalised(ride: Riding) -> None:
    run = mupfl(ride)
    for k in range(4):
        finish = next(s for s in run.of("finish") if s.client == k)
        assert torch.equal(finish.memory().own_head, run.train(3, k).memory().own_head)
        assert torch.equal(finish.memory().own_head, finish.memory(after=False).own_head)
        tuned = finish.memory().tuned
        assert not torch.equal(tuned.flat, finish.down.w)
        final = [s for s in run.of("evaluate") if s.client == k][-1]
        assert torch.equal(final.live, tuned.flat)  # the personal model answers
        assert final.after is None


def test_a_rejected_upload_leaves_the_head_as_it_was(ride: Riding) -> None:
    run = ride(spoiling(MuPFL, who=1, when=2), data="skewed", model="mlp-bn", **FEW)
    assert run.result["rejected"] == {"nonfinite": 1}
    before = run.train(1, 1).memory().own_head
    assert torch.equal(run.train(3, 1).memory(after=False).own_head, before)
    assert not torch.equal(run.train(3, 0).memory(after=False).own_head, run.train(1, 0).memory().own_head)


# ---- ACMU in a run


@pytest.mark.parametrize("tune_from", ["private", "global"])
def test_a_round_is_eqs_7_to_15_of_what_came_up(ride: Riding, tune_from: str) -> None:
    run = mupfl(ride, **{"method.tune_from": tune_from, "method.kappa": 2})
    count = run.layout.n_weights
    for round in (1, 2):
        seen = [run.train(round, k) for k in range(4)]
        starts = torch.stack([s.down.w[:count] for s in seen])
        (begin, end) = run.layout.ranges(head)[0]
        for row, s in zip(starts, seen, strict=True):
            if tune_from == "private":
                row[begin:end] = s.up.start_head
            elif round == 2:  # one batch of all features, two plain steps from the received head
                h, v = s.down.features.flatten(0, 1), row[begin:end].view(CLASSES, 10)
                y = F.one_hot(s.down.feature_classes.repeat_interleave(3), CLASSES)
                for _ in range(2):
                    v = v - 0.1 * ((h @ v.T).softmax(1) - y).T @ h / len(h)
                row[begin:end] = v.flatten()
        trained = torch.stack([s.up.w[:count] for s in seen])
        labels = np.load(run.result.path / "arrays" / f"clusters-{round:06d}.npy")
        assert labels[:, 0].tolist() == [0, 1, 2, 3]
        grouping = Grouping(labels[:, 1].tolist())
        assert grouping.kappa == 2
        n = torch.tensor([float(run.world.federation.clients[k].train.rows.numel()) for k in range(4)])
        w = (n / n.sum()) @ torch.stack(cluster_update(starts, trained, grouping))
        assert torch.allclose(sent_next(run, round)[:count], w, atol=1e-5)
        buffers = (n / n.sum()) @ torch.stack([s.up.w[count:] for s in seen])
        assert torch.allclose(sent_next(run, round)[count:], buffers, atol=1e-5)
        gram = similarity(cosines(trained - starts), cosines(torch.stack([s.up.map for s in seen])), 0.5)
        best = group(gram, np.zeros((4, 1)), "adaptive", 2, 2, seed=0)
        if best.kappa == 2:
            assert len(set(zip(best.labels, grouping.labels, strict=True))) == 2


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_with_the_received_head_all_start_heads_are_the_servers_own_bit_for_bit(ride: Riding, momentum: float) -> None:
    starts: dict[tuple[int, int], Tensor] = {}
    servers: dict[int, Tensor] = {}

    class Looking(MuPFL):
        def upload(self, client: Client) -> Message:
            starts[client.round, client.id] = client.scratch.start_head
            return super().upload(client)

        def starts(self, server: Server, uploads: Any) -> list[Tensor]:
            rows = super().starts(server, uploads)
            begin, end = server.shared.layout.ranges(head)[0]
            servers[server.round] = torch.stack(rows)[:, begin:end]
            return rows

    rule = {"method.tune_momentum": momentum, "train.schedule": [0.5, 1], "method.tune_decay": 0.01}
    keys = {"method.tune_from": "global", "method.tau": 3.5, "method.tune_batch": 4} | rule
    run = ride(Looking, data="skewed", model="mlp", **FEW | keys)
    for round in (1, 2, 3):
        for k in range(4):
            assert torch.equal(starts[round, k], starts[round, 0])
            assert torch.equal(servers[round][k], starts[round, 0])
        received = head_of(run, run.train(round, 0).down.w)
        assert torch.equal(received, starts[round, 0]) == (round == 1)


def test_a_head_that_all_tune_alike_is_tuned_once_and_nobody_sees_it(
    ride: Riding, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned: list[tuple[int, int]] = []
    fit = Site.fit

    def counted(self: Site, *given: Any, **options: Any) -> int:
        if options.get("key") == "pkcf":
            tuned.append((self.round, id(self.resident)))
        return fit(self, *given, **options)

    monkeypatch.setattr(Site, "fit", counted)
    keys = {"method.tune_from": "global", "method.tune_batch": 4, "eval.every": 1}
    once = mupfl(ride, **keys)
    with_features = [entry for entry in tuned if entry[0] > 1]
    assert max(map(with_features.count, with_features)) <= 2, "a round's training, or its evaluation and the finish"
    tuned.clear()
    monkeypatch.setattr(Site, "once", lambda self, part, given, fit, alike=True: fit())

    class Each(MuPFL):
        """Another name, so that it runs again."""

    each = ride(Each, **{"data": "skewed", "model": "mlp-bn", **FEW} | keys)
    assert len(tuned) > 3 * len(with_features)
    assert once.result.fingerprint == each.result.fingerprint
    numbers = [run.result.records("training")[["steps", "samples", "loss"]] for run in (once, each)]
    assert numbers[0].equals(numbers[1])


def test_a_head_tuned_for_an_evaluation_is_not_tuned_again_in_the_next_round(
    ride: Riding, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned: list[tuple[int, int]] = []
    fit = Site.fit

    def counted(self: Site, loss: Any, on: Any, **options: Any) -> int:
        if on.cut == "head":
            tuned.append((self.round, self._client))
        return fit(self, loss, on, **options)

    monkeypatch.setattr(Site, "fit", counted)
    keys = {"method.tune_batch": 4, "eval.every": 1, "train.schedule": [0.5, 1]}
    once = mupfl(ride, **keys)
    assert len(set(tuned)) == len(tuned) > 4, "once for an evaluation and the round, or the finish, after it"
    tuned.clear()
    monkeypatch.setattr(Site, "once", lambda self, part, given, fit, alike=True: fit())

    class Again(MuPFL):
        """Another name, so that it runs again."""

    again = ride(Again, **{"data": "skewed", "model": "mlp-bn", **FEW} | keys)
    assert len(tuned) > len(set(tuned))
    assert once.result.fingerprint == again.result.fingerprint
    numbers = [run.result.records("training")[["steps", "samples", "loss"]] for run in (once, again)]
    assert numbers[0].equals(numbers[1])
    curves = [run.result.records("rounds") for run in (once, again)]
    assert curves[0].equals(curves[1])


def test_an_idle_client_does_not_take_a_head_that_its_evaluation_tuned() -> None:
    bench = Bench(MuPFL(m=3, tau=2))
    sent = {"features": torch.randn(1, 3, 4), "feature_classes": torch.tensor([1])}
    bench.method.adapt(bench.client(**sent))
    lazy = bench.client(**sent)
    lazy.idle, before = True, lazy.live.get(head)[0]
    bench.method.adapt(lazy)
    assert torch.equal(lazy.live.get(head)[0], before)


def test_one_cluster_of_equal_clients_is_fedavg(ride: Riding) -> None:
    plain = ride("fedavg", data="even", model="mlp-bn")
    one = ride("mupfl", data="even", model="mlp-bn", **OFF | {"method.acmu": True, "method.kappa": 1})
    assert torch.allclose(one.params.flat, plain.params.flat, rtol=1e-5, atol=1e-6)
    assert not torch.equal(one.params.flat, plain.initial.flat)


def test_all_modules_off_is_fedavg_bit_for_bit_and_then_local_training(ride: Riding) -> None:
    plain = ride("fedavg", data="skewed", model="mlp-bn")
    tuned = ride({"name": "fedavg-ft", "epochs": 1.0}, data="skewed", model="mlp-bn")
    off = ride("mupfl", data="skewed", model="mlp-bn", **OFF)
    assert off.params.digest() == plain.params.digest()
    assert set(off.state) == {"params"}
    for round in (1, 2, 3):
        for k in range(4):
            assert torch.equal(off.train(round, k).up.w, plain.train(round, k).up.w)
            assert set(off.train(round, k).up) == {"w", "w.integers"}
            assert off.train(round, k).after is None
    for one, other in zip(off.of("finish"), tuned.of("finish"), strict=True):
        assert torch.equal(one.memory().tuned.flat, other.memory().tuned.flat)  # FedAvg+local
    assert off.result["personal"] == tuned.result["personal"]


def test_without_features_nothing_is_tuned_kept_or_sent(ride: Riding) -> None:
    none = mupfl(ride, **{"method.m": 0})
    off = mupfl(ride, **{"method.pkcf": False})
    assert none.params.digest() == off.params.digest()
    for seen in none.of("train"):
        assert set(seen.up) == {"w", "w.integers", "map"}
        assert set(seen.down) == {"w", "w.integers"}
        assert seen.after is None


def test_tuning_without_epochs_leaves_the_head(ride: Riding) -> None:
    run = mupfl(ride, **{"method.tau": 0})
    assert torch.equal(run.train(2, 0).up.start_head, run.train(1, 0).memory().own_head)


def test_training_the_body_alone_leaves_the_start_head(ride: Riding) -> None:
    run = mupfl(ride, **{"method.train_after_tune": "body"})
    for seen in run.of("train"):
        assert torch.equal(head_of(run, seen.up.w), seen.up.start_head)
        assert torch.equal(seen.memory().own_head, seen.up.start_head)
        assert not torch.equal(seen.up.w, seen.down.w)
    assert not torch.equal(run.train(2, 0).up.start_head, run.train(1, 0).up.start_head)


def test_what_is_not_needed_is_not_sent(ride: Riding) -> None:
    alone = {"w", "w.integers"}
    pkcf = {"z", "classes"}
    assert set(mupfl(ride, **{"method.acmu": False}).train(2, 0).up) == alone | pkcf  # no start head, no map
    assert set(mupfl(ride, **{"method.bavd": False}).train(2, 0).up) == alone | pkcf | {"start_head"}
    weights = {"method.metric": "weights", "method.kappa": 2}
    assert set(mupfl(ride, **weights).train(2, 0).up) == alone | pkcf | {"start_head"}


def test_kappa_has_to_leave_room(ride: Riding) -> None:
    with pytest.raises(UsageError, match=r"^method.kappa=4 needs more than the 4 clients selected each round$"):
        mupfl(ride, **{"method.kappa": 4})
    with pytest.raises(UsageError, match="2 clients selected"):
        mupfl(ride, participation=0.5, **{"method.kappa": 3})


def test_too_few_uploads_for_kappa_are_logged(ride: Riding) -> None:
    run = ride(spoiling(MuPFL, who=1, when=2), data="skewed", model="mlp-bn", **FEW | {"method.kappa": 3})
    assert "round 2: 3 uploads make 2 clusters, not method.kappa=3" in logged(run)
    assert "round 1: 4 uploads" not in logged(run)
    assert len(set(np.load(run.result.path / "arrays" / "clusters-000003.npy")[:, 1])) == 3


def test_two_selected_clients_are_one_cluster(ride: Riding) -> None:
    run = mupfl(ride, participation=0.5)
    for round in (1, 2, 3):
        assert set(np.load(run.result.path / "arrays" / f"clusters-{round:06d}.npy")[:, 1]) == {0}
        assert len(np.load(run.result.path / "arrays" / f"silhouette-{round:06d}.npy")) == 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kappa": 0}, "'method.kappa': input should be greater than or equal to 1"),
        ({"kappa": "many"}, "'method.kappa': input should be"),
        ({"kappa_min": 5, "kappa_max": 3}, "method.kappa_min=5 is above method.kappa_max=3"),
        ({"metric": "weights"}, "method.metric=weights needs a number of clusters, method.kappa"),
        ({"bavd_keep_ratio": 0.0}, "'method.bavd_keep_ratio'"),
        ({"bavd": "drop"}, "'method.bavd': input should be a valid boolean, unable to interpret input, or 'dropout'"),
        ({"bavd_soft": True, "bavd_keep_ratio": 0.5}, "method.bavd_soft and method.bavd_keep_ratio are two ways"),
        ({"tune_momentum": 1.0}, "'method.tune_momentum'"),
        ({"alpha": 1.5}, "'method.alpha'"),
        ({"match_steps": 0}, "'method.match_steps'"),
    ],
)
def test_impossible_settings_get_one_sentence(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        config_of({"method": {"name": "mupfl", **given}})
    assert str(refused.value).startswith(said)
    assert "\n" not in str(refused.value)


# ---- BAVD in a run


def test_bavd_changes_training_from_the_second_step_on(ride: Riding) -> None:
    on = mupfl(ride, **{"method.acmu": False, "method.pkcf": False})
    off = mupfl(ride, **OFF)
    for k in range(3):
        assert not torch.equal(on.train(1, k).up.w, off.train(1, k).up.w)
    one_step = {"train.batch": 64, "rounds": 1}
    first = mupfl(ride, **{"method.acmu": False, "method.pkcf": False} | one_step)
    assert torch.equal(first.train(1, 0).up.w, mupfl(ride, **OFF | one_step).train(1, 0).up.w)


@pytest.mark.parametrize("reset", ["epoch", "never"])
def test_other_resets(ride: Riding, reset: str) -> None:
    run = mupfl(ride, **{"method.bavd_reset": reset, "train.epochs": 2})
    plain = mupfl(ride, **{"train.epochs": 2})
    assert [s.numbers["steps"] for s in run.of("train")] == [s.numbers["steps"] for s in plain.of("train")]
    first, second = run.train(1, 0), run.train(2, 0)
    assert torch.equal(first.up.w, plain.train(1, 0).up.w) == (reset == "never")
    assert ("map_0" in first.memory()) == (reset == "never")
    if reset == "never":
        assert set(second.memory()) == {"own_head", "map_0", "map_1", "map_loss_0", "map_loss_1"}
        assert not torch.equal(second.up.w, plain.train(2, 0).up.w)


def test_other_masks_run_too(ride: Riding) -> None:
    kept = mupfl(ride).params.digest()
    for keys in (
        {"method.bavd_granularity": "spatial", "method.bavd_psi": "printed"},
        {"method.bavd_compare": "map"},
        {"method.bavd_soft": True},
        {"method.bavd_inverse": True},
        {"method.bavd_keep_ratio": 0.5},
        {"method.match": "flat"},
        {"method.kappa_max": 2, "method.alpha": 1.0},
    ):
        run = mupfl(ride, **keys)
        assert run.result["rejected"] == {}
        if "method.kappa_max" not in keys:
            assert run.params.digest() != kept


def test_the_dropout_control_has_no_maps(ride: Riding) -> None:
    control = mupfl(ride, **{"method.bavd": "dropout"})
    assert all("map" not in s.up for s in control.of("train"))
    assert set(control.train(2, 0).memory()) == {"own_head"}
    off = mupfl(ride, **{"method.bavd": False})
    assert not torch.equal(control.train(1, 0).up.w, off.train(1, 0).up.w)
    assert torch.equal(control.train(1, 0).up.z, off.train(1, 0).up.z)  # gradients are taken in eval mode
    told = Bench(MuPFL(bavd="dropout"), net=lambda: Net(nn.Linear(3, 4), nn.Identity(), nn.Linear(4, 2))).server.said
    assert told == ["the model names no place where BAVD may listen: nothing is masked"]
    assert not Bench(MuPFL(bavd="dropout")).server.said


@pytest.mark.parametrize("keys", [{"method.bavd_soft": True}, {"method.bavd": "dropout"}])
def test_what_is_drawn_does_not_depend_on_the_workers(tmp_path: Any, keys: dict[str, Any]) -> None:
    small = {"method": "mupfl", "split.clients": 4, "rounds": 2, "model.width": 0.1, "eval.every": 9} | FEW | keys
    runs = [polyfed.run(small, {"engine.workers": n}, out=tmp_path / str(n)) for n in (0, 2)]
    assert runs[0]["fingerprint"] == runs[1]["fingerprint"]


def test_a_model_without_a_place_to_listen_is_told(ride: Riding) -> None:
    bench = Bench(MuPFL(), net=lambda: Net(nn.Linear(3, 4), nn.Identity(), nn.Linear(4, 2)))
    assert bench.server.said == ["the model names no place where BAVD may listen: nothing is masked"]
    client = bench.client()
    assert len(bench.method.train(client).map) == 0
    assert not Bench(MuPFL()).server.said


def test_masks_of_one_work_do_not_reach_the_next() -> None:
    bench = Bench(MuPFL(pkcf=False))
    bench.method.train(bench.client())
    assert all(layer.map is not None for layer in bavd.layers(bench.resident.model))
    bench.client(1)
    assert all(layer.map is None for layer in bavd.layers(bench.resident.model))


# ---- images, sequences, augmentation, odd clients


@pytest.mark.parametrize(("model", "shape"), [("cnn-bn", (16, 16, 1)), ("resnet8", (8, 8, 1)), ("har-cnn", (2, 40))])
def test_convolutions(tmp_path: Any, model: str, shape: tuple[int, ...]) -> None:
    draw = np.random.default_rng(0)
    x = draw.integers(0, 256, (42, *shape)).astype(np.uint8) if len(shape) == 3 else draw.normal(size=(42, *shape))
    y = np.arange(42) % 3
    keys = {"method.m": 2, "method.tau": 1, "method.match_steps": 2, "method.augment": len(shape) == 3}
    result = polyfed.run(
        {
            "data": (x if len(shape) == 3 else x.astype(np.float32), y),
            "model": {"name": model, "width": 0.5 if model == "resnet8" else 0.2},
        },
        {"method": "mupfl", "split.partition": "iid", "split.clients": 3, "rounds": 2, "train.batch": 8} | keys,
        {"engine.workers": 0},
        out=tmp_path / "run",
    )
    assert result["failed"] == result["rejected"] == {}
    assert len(np.load(tmp_path / "run" / "arrays" / "clusters-000002.npy")) == 3


def test_augmented_gradients_differ_only_in_the_gradients() -> None:
    def net() -> Net:
        return Net(nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.ReLU()), nn.Identity(), nn.Linear(4, 2))

    found = {}
    for augment in (False, True):
        bench = Bench(MuPFL(augment=augment, m=2, bavd=False), net=net)
        client = bench.client()
        x = torch.randn(8, 1, 4, 4, generator=torch.Generator().manual_seed(0))
        client.data = Samples.of(x, torch.arange(8) % 2)
        found[augment] = bench.method.train(client)
    assert torch.equal(found[False].w, found[True].w)
    assert not torch.allclose(found[False].z, found[True].z, atol=1e-3)


def test_a_client_with_one_sample_and_one_that_never_trained(ride: Riding) -> None:
    run = mupfl(ride, participation=0.25, rounds=2)
    never = {0, 1, 2, 3} - {s.client for s in run.of("train")}
    assert never
    for seen in run.of("finish"):
        memory = seen.memory()
        assert ("own_head" in memory) == (seen.client not in never)
        assert "tuned" in memory
    bench = Bench(MuPFL(m=2, match_steps=1), net=two_layers)
    client = bench.client()
    client.data, client.counts = client.data.only(torch.arange(8) == 3), torch.tensor([0, 1])
    up = bench.method.train(client)
    assert up.classes.tolist() == [1]
    assert torch.isfinite(up.w).all()


def test_buffers_that_stay_local(ride: Riding) -> None:
    run = mupfl(ride, buffers="local")
    assert all(len(s.up.w) == run.layout.n_weights and "w.integers" not in s.up for s in run.of("train"))
    assert run.result["rejected"] == {}
    assert run.layout.length(bn) > 0
