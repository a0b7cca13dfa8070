"""The defence of a run at work: any order of uploads, what it counts and says, and the server's own update."""

import random
from typing import Any

import numpy as np
import pytest
import torch

from polyfed.api import config_of
from polyfed.engine.work import World
from polyfed.message import Message
from polyfed.methods.base import Server, Upload, part_message
from polyfed.threats.defences import defences
from polyfed.threats.defender import Defender

IDS = (2, 3, 5, 7, 11, 13, 17, 19)


@pytest.fixture(scope="module")
def world(trial: Any) -> World:
    """A world whose model has float and integer buffers, and whose server has samples of its own."""
    return World(config_of(trial.keys({"model.name": "mlp-bn", "split.public": 20})))


def server_of(world: World, weighting: str = "uniform", **keys: Any) -> Server:
    server = Server(world.resident, world.task, [], weighting, world.method.shared, world.federation.public)
    rule = defences.build(keys, "defence")
    server.defence = Defender(rule, server, world.wire, world.method)  # type: ignore[arg-type]
    server.begin(1)
    return server


def uploads_of(server: Server, ids: tuple[int, ...] = IDS, far: int | None = None, seed: int = 0) -> list[Upload]:
    """Small updates of everybody; that of one client is long."""
    draw, (sent, integers) = torch.Generator().manual_seed(seed), server.shared.get(server.slice)
    made = []
    for client in ids:
        update = torch.randn(len(sent), generator=draw) * (1.0 if client == far else 0.01)
        up = part_message("w", sent + update.abs(), integers)
        made.append(Upload(client, 10 + client, up, Message(w=sent)))
    return made


def defender_of(server: Server) -> Defender:
    assert isinstance(server.defence, Defender)
    return server.defence


@pytest.mark.parametrize("name", [name for name in defences.names() if name != "none"])
@pytest.mark.parametrize("pre", ["none", "nnm"])
def test_the_order_of_uploads_changes_no_bit(world: World, name: str, pre: str) -> None:
    more: dict[str, Any] = {"clean": 1, "width": 16, "epochs": 3} if name == "credit" else {}
    more |= {"weights": "method"} if "weights" in defences.get(name).model_fields else {}
    found = []
    for shuffled in (False, True):
        server = server_of(world, "sample", name=name, f=2, pre=pre, **more)
        for number in (1, 2):
            server.begin(number)
            defender_of(server).begin()
            uploads = uploads_of(server, far=7, seed=number)
            if shuffled:
                random.Random(number).shuffle(uploads)
            server.shared = server.average(uploads)
        found.append((server.shared, defender_of(server)))
    (one, first), (two, second) = found
    assert torch.equal(one.flat, two.flat)
    assert (first.weights, first.suspects) == (second.weights, second.suspects)


def test_what_it_thinks_is_told_by_client(world: World) -> None:
    server = server_of(world, name="multi-krum", f=1)
    server.average(uploads_of(server, far=7)[::-1])
    defender = defender_of(server)
    assert [k for k, suspected in defender.suspects.items() if suspected] == [7]
    assert defender.weights == {k: pytest.approx(0 if k == 7 else 1 / 7) for k in IDS}
    defender.begin()
    assert defender.weights == defender.suspects == {}


def test_too_few_uploads_are_counted_each_time_and_said_once(world: World) -> None:
    server = server_of(world, name="krum", f=4)
    for ids in (IDS[:6], IDS[:7], IDS[:2]):
        server.average(uploads_of(server, ids))
    assert defender_of(server).counted == {"idle": 1, "lowered": 2}
    assert server.said == [
        "defence=krum assumes 4 attackers among 6 uploads, where it stands 1 at most",
        "defence=krum is idle: 2 uploads are averaged plainly",
    ]


def test_what_is_averaged_plainly_is_the_plain_average(world: World) -> None:
    server = server_of(world, name="krum", f=1)
    uploads = uploads_of(server, IDS[:2])
    mean = torch.stack([upload.message["w"] for upload in uploads]).double().mean(0)
    assert np.allclose(server.average(uploads).get(server.slice)[0], mean, atol=1e-6)


def test_every_average_of_a_round_has_a_centre_of_its_own(world: World) -> None:
    """As with clusters, each of which is defended by itself."""
    server = server_of(world, name="centred-clipping")
    for group in (IDS[:4], IDS[4:]):
        server.average(uploads_of(server, group, seed=group[0]))
    assert not torch.equal(server.state["defence.centre0"], server.state["defence.centre1"])
    before = server.state["defence.centre0"].clone()
    defender_of(server).begin()
    server.average(uploads_of(server, IDS[:4], seed=9))
    assert not torch.equal(server.state["defence.centre0"], before)
    assert "defence.centre2" not in server.state


def test_the_servers_own_update_leaves_its_model_as_it_was(world: World) -> None:
    server = server_of(world, name="fltrust")
    live, shared = server.live.flat.clone(), server.shared.flat.clone()
    own = defender_of(server)._own_update()
    assert len(own) == world.resident.layout.n_weights
    assert float(own.norm()) > 0
    assert torch.equal(server.live.flat, live)
    assert torch.equal(server.shared.flat, shared)


def test_an_update_against_the_servers_own_has_no_say(world: World) -> None:
    """Clients send the server's own update, and one its opposite: the mean is that update."""
    server = server_of(world, name="fltrust")
    own, (sent, integers) = defender_of(server)._own_update(), server.shared.get(server.slice)
    server.begin(1)  # its batches begin anew
    uploads = []
    for client, factor in zip(IDS[:4], (1.0, 2.0, -3.0, 0.5), strict=True):
        up = sent.clone()
        up[: len(own)] += factor * own
        uploads.append(Upload(client, 1, part_message("w", up, integers), Message(w=sent)))
    made = server.average(uploads)
    assert torch.allclose(made.weights - server.shared.weights, own, atol=1e-6)
    assert [k for k, suspected in defender_of(server).suspects.items() if suspected] == [5]
