"""FedProto (Tan et al. 2022): no weight is sent; features are drawn towards the prototypes of all (eqs. 3, 6, 7)."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from riding import HOLDS, Ride
from torch import Tensor

import by_hand
from polyfed.message import Bundle, Message
from polyfed.methods.fedproto import FedProto
from polyfed.methods.sites import Upload
from polyfed.parts.prototypes import Nearest
from polyfed.parts.resident import Batch

Riding = Callable[..., Ride]


def batch_of(client: Any) -> Batch:
    index = torch.arange(client.n)
    return Batch(client.model, *client.data.take(index), index, client.data)


def given(prototypes: list[list[float]], classes: list[int]) -> Bundle:
    return Bundle(prototypes=torch.tensor(prototypes), classes=torch.tensor(classes))


# ---- the client


def test_the_loss_is_equation_7_and_a_class_without_a_prototype_adds_nothing() -> None:
    home, data = by_hand.resident(), by_hand.some(6)
    goal = [0.5, -1.0, 2.0, 0.0, 3.0]
    client = by_hand.client(home, data, received=given([goal], [2]))
    found = FedProto(lam=0.7).loss(client, batch_of(client))
    with torch.no_grad():
        h, z = home.model.features(data.pool.x), home.model(data.pool.x)
    apart = (h - torch.tensor(goal)).square()[data.y == 2].sum() / h.numel()  # the mean over the whole batch
    torch.testing.assert_close(found.detach(), F.cross_entropy(z, data.y) + 0.7 * apart)
    assert apart > 0.1


def test_before_there_are_prototypes_it_is_cross_entropy() -> None:
    home, data = by_hand.resident(), by_hand.some(6)
    client = by_hand.client(home, data, received=Bundle())
    with torch.no_grad():
        assert torch.equal(FedProto().loss(client, batch_of(client)), F.cross_entropy(home.model(data.pool.x), data.y))


def test_it_sends_the_mean_features_of_the_classes_it_holds() -> None:
    """Eq. 3, by the trained model, with BatchNorm in eval mode."""
    home, data = by_hand.resident(bn=True), by_hand.some(labels=[2, 0, 2, 2])
    client = by_hand.client(home, data, received=Bundle())
    home.model.train()
    up = FedProto().upload(client)
    home.model.eval()
    with torch.no_grad():
        h = home.model.features(data.pool.x)
    assert up.classes.tolist() == [0, 2]
    assert up.counts.tolist() == [1, 3]
    torch.testing.assert_close(up.prototypes, torch.stack([h[1], h[[0, 2, 3]].mean(0)]))
    assert set(up) == {"classes", "counts", "prototypes"}


def test_features_come_nearer_the_stronger_they_are_drawn(ride: Riding) -> None:
    def spread(run: Ride) -> float:
        sent: dict[int, list[Tensor]] = {}
        for k in range(4):
            up = run.train(3, k).up
            for c, row in zip(up.classes.tolist(), up.prototypes, strict=True):
                sent.setdefault(c, []).append(row)
        return sum(float(torch.stack(rows).var(0).sum()) for rows in sent.values() if len(rows) > 1)

    loose, tight = (spread(ride({"name": "fedproto", "lam": lam}, data="skewed")) for lam in (0.0, 20.0))
    assert tight < 0.7 * loose


# ---- the server


def sent(classes: list[int], values: list[float], counts: list[int], client: int = 0, n: int | None = None) -> Upload:
    rows = torch.tensor(values)[:, None].expand(-1, by_hand.WIDTH)
    message = Message(prototypes=rows.clone(), classes=torch.tensor(classes), counts=torch.tensor(counts))
    return Upload(client, sum(counts) if n is None else n, message)


@pytest.mark.parametrize(("average", "expected"), [("count", [5.5, 2.0, 4.0]), ("mean", [3.0, 2.0, 4.0])])
def test_prototypes_are_averaged_over_those_who_hold_the_class(average: str, expected: list[float]) -> None:
    """Eq. 6: class 0 is held by both, 3 samples of 8.0 ... and 1 of -2.0."""
    method = FedProto(average=average)
    server = by_hand.server(by_hand.resident(), [4, 3], method)
    assert len(method.send(server, 0)) == 0
    method.merge(server, [sent([0, 1], [8.0, 2.0], [3, 1]), sent([0, 2], [-2.0, 4.0], [1, 2], 1)])
    down = method.send(server, 0)
    assert down.classes.tolist() == [0, 1, 2]
    assert down.prototypes[:, 0].tolist() == pytest.approx(expected)


def test_a_class_nobody_sent_keeps_its_prototype() -> None:
    method = FedProto()
    server = by_hand.server(by_hand.resident(), [4, 3], method)
    method.merge(server, [sent([0, 1], [8.0, 2.0], [3, 1])])
    method.merge(server, [sent([1], [5.0], [1])])
    assert server.state.classes.tolist() == [0, 1]
    assert server.state.prototypes[:, 0].tolist() == [8.0, 5.0]


def test_who_lies_about_its_counts_weighs_no_more_than_what_it_said_it_has() -> None:
    method = FedProto()
    server = by_hand.server(by_hand.resident(), [4, 4], method)
    method.merge(server, [sent([0], [0.0], [10**15], n=4), sent([0], [1.0], [4], 1)])
    assert server.state.prototypes[0, 0] == 0.5
    method.merge(server, [sent([0], [9.0], [0], n=4), sent([0], [1.0], [4], 1)])
    assert server.state.prototypes[0, 0] == 1.0


# ---- whole runs


@pytest.mark.parametrize("model", ["mlp", "mlp-bn"])
def test_undrawn_it_is_local_bit_for_bit(ride: Riding, model: str) -> None:
    one = ride({"name": "fedproto", "lam": 0.0}, data="skewed", model=model)
    other, drawn = ride("local", data="skewed", model=model), ride("fedproto", data="skewed", model=model)
    for k in range(4):
        for r in (1, 2, 3):
            assert torch.equal(one.train(r, k).memory().personal, other.train(r, k).memory().personal)
        assert not torch.equal(drawn.train(3, k).memory().personal, other.train(3, k).memory().personal)


def test_no_weight_is_sent_and_the_bytes_are_those_of_the_accounting(ride: Riding) -> None:
    """Down C d, up #O_k (d + 1), beside ids of 8 bytes each; nothing goes down before anything came up."""
    run = ride("fedproto", data="skewed")
    d = run.world.sizes(run.world.resident)["d"]
    for k, holds in enumerate(HOLDS):
        assert run.train(1, k).down.nbytes == 0
        assert run.train(2, k).down.nbytes == 5 * (4 * d + 8)
        assert run.train(2, k).up.nbytes == len(holds) * (4 * d + 8 + 8)
        assert run.train(2, k).up.classes.tolist() == list(holds)
    weights = run.train(3, 0).memory().personal
    assert not any(
        len(t) == len(weights) for s in run.seen for t in (*s.up.tensors().values(), *s.down.tensors().values())
    )
    assert run.result["global"] is None


def test_its_head_answers_or_the_nearest_prototype(ride: Riding) -> None:
    run = ride("fedproto", data="skewed")
    flat = torch.cat([p.detach().flatten() for p in run.result.client(0).model.parameters()])
    assert torch.equal(flat, run.train(3, 0).memory().personal)
    other = ride({"name": "fedproto", "predict": "prototype"}, data="skewed")
    made = other.result.client(0).model
    assert isinstance(made, Nearest)
    assert torch.equal(made.get_buffer("prototypes"), other.state["state.prototypes"])
    assert torch.equal(torch.cat([p.detach().flatten() for p in made.parameters()]), flat)  # it trains alike


def test_where_nobody_sent_a_prototype_the_head_answers() -> None:
    client = by_hand.client(by_hand.resident(), by_hand.some(6), received=Bundle())
    assert FedProto(predict="prototype").predictor(client) is client.model


def test_a_newcomer_trains_at_the_end_towards_the_prototypes(ride: Riding) -> None:
    runs = [ride({"name": "fedproto", "lam": lam}, data="skewed", **{"split.heldout": 1}) for lam in (0.0, 20.0)]
    (out,) = runs[0].world.federation.heldout
    left = [next(s.live for s in run.of("finish") if s.client == out) for run in runs]
    assert not torch.equal(left[0], runs[0].initial.flat)
    assert not torch.equal(left[0], left[1])
