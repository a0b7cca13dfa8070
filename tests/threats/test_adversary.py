"""The attack of a run at work: what it knows, what it changes, and what stays as it was."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from polyfed.api import config_of
from polyfed.engine.work import Job, World
from polyfed.message import Message
from polyfed.methods.base import Server
from polyfed.threats.adversary import Adversary
from polyfed.threats.attacks import attacks


def world_of(trial: Any, **changes: Any) -> World:
    return World(config_of(trial.keys({key.replace("__", "."): value for key, value in changes.items()})))


def adversary_of(
    world: World, sizes: Mapping[int, int], weighting: str = "uniform", selected: int = 3, **keys: Any
) -> Adversary:
    spec = attacks.build(keys, "attack")
    return Adversary(spec, world.task, "fedavg", world.wire, world.resident.layout, sizes, selected, weighting)


@pytest.fixture(scope="module")
def world(trial: Any) -> World:
    return world_of(trial)


FOUR = {0: 10, 1: 30, 2: 20, 3: 20}


def test_the_factor_that_replaces_the_average(world: World) -> None:
    """By samples, it is the sum of all samples over one's own; else the number of uploads."""
    keys: dict[str, Any] = {"name": "label-flip", "clients": [0], "boost": "auto"}
    by_samples = adversary_of(world, FOUR, "sample", 4, **keys)
    assert [by_samples.replaces(k) for k in (0, 1)] == [8, pytest.approx(80 / 30)]
    assert adversary_of(world, FOUR, "uniform", 4, **keys).replaces(0) == 4
    assert adversary_of(world, {**FOUR, 0: 0}, "sample", 4, **keys).replaces(0) == 4  # nobody weighs anything


# ---- together


def messages(world: World, values: Mapping[int, float]) -> dict[int, Message]:
    size = world.resident.layout.size
    return {k: Message(w=torch.full((size,), value)) for k, value in values.items()}


def after(adversary: Adversary, world: World, values: Mapping[int, float]) -> tuple[dict[int, float], list[str]]:
    """The first number of each upload once attackers have acted; everybody was sent ones."""
    said: list[str] = []
    ups, downs = messages(world, values), messages(world, dict.fromkeys(values, 1.0))
    adversary.together(ups, downs, 1, said.append)
    return {k: float(up["w"][0]) for k, up in ups.items()}, said


IPM: dict[str, Any] = {"name": "ipm", "clients": [0, 1], "eps": 1.0}


def test_colluders_send_what_they_were_sent_and_a_common_update(world: World) -> None:
    """The honest updates are 2 and 4, the attackers' own 9 and 19."""
    values = {0: 10.0, 1: 20.0, 2: 3.0, 3: 5.0}
    assert after(adversary_of(world, FOUR, **IPM), world, values) == ({0: -2, 1: -2, 2: 3, 3: 5}, [])
    own = adversary_of(world, FOUR, **IPM, knows="own")
    assert after(own, world, values) == ({0: -13, 1: -13, 2: 3, 3: 5}, [])


def test_uploads_that_are_not_finite_are_not_known(world: World) -> None:
    found, _ = after(adversary_of(world, FOUR, **IPM), world, {0: 10.0, 1: 20.0, 2: float("nan"), 3: 5.0})
    assert (found[0], found[1], found[3]) == (-3, -3, 5)


@pytest.mark.parametrize(
    ("knows", "values", "whose"),
    [("all", {0: 10.0, 1: 20.0}, "honest updates"), ("own", {1: 20.0, 2: 3.0, 3: 5.0}, "other attackers' updates")],
)
def test_colluders_who_know_too_little_leave_their_uploads(
    world: World, knows: str, values: dict[int, float], whose: str
) -> None:
    found, said = after(adversary_of(world, FOUR, **IPM, knows=knows), world, values)
    assert found == values
    assert len(said) == 1
    assert f"too few {whose}" in said[0]


def test_each_copies_an_honest_client_of_its_own(world: World) -> None:
    mimic: dict[str, Any] = {"name": "mimic", "clients": [0, 3]}
    values = {0: 10.0, 1: 2.0, 2: 3.0, 3: 20.0}
    assert after(adversary_of(world, FOUR, **mimic), world, values)[0] == {0: 2, 1: 2, 2: 3, 3: 2}
    assert after(adversary_of(world, FOUR, **mimic, target="spread"), world, values)[0] == {0: 2, 1: 2, 2: 3, 3: 3}


def test_in_other_rounds_nobody_acts(world: World) -> None:
    values = {0: 10.0, 1: 20.0, 2: 3.0, 3: 5.0}
    assert after(adversary_of(world, FOUR, **IPM, rounds=[2]), world, values) == (values, [])


# ---- in a run


def trained(world: World, client: int = 1) -> tuple[Tensor, Tensor]:
    """What a client is sent, and what it sends."""
    server = Server(world.resident, world.task, [], "sample", world.method.shared)
    down = world.method.send(server, client)
    outcome = world.do(Job("train", client, 1, down), None)
    assert not outcome.error, outcome.trace
    return down["w"], outcome.up["w"]


ONE: dict[str, Any] = {"attack__clients": [1]}


def test_float_buffers_stay_as_they_were_trained(trial: Any) -> None:
    bn: dict[str, Any] = {"model__name": "mlp-bn"}
    sent, honest = trained(world_of(trial, **bn))
    attacked = world_of(trial, **bn, **ONE, attack__name="sign-flip")
    count = attacked.resident.layout.n_weights
    _, found = trained(attacked)
    assert len(found) > count
    assert torch.equal(found[count:], honest[count:])
    assert torch.allclose(found[:count] - sent[:count], sent[:count] - honest[:count], atol=1e-6)
    assert not torch.equal(found[:count], honest[:count])


def test_privacy_comes_after_the_attack(trial: Any) -> None:
    """An attacker sends noise of any size; what leaves the client is clipped all the same."""
    loud: dict[str, Any] = {**ONE, "attack__name": "noise", "attack__s": 100.0}
    sent, found = trained(world_of(trial, **loud))
    assert float((found - sent).norm()) > 1000
    quiet = world_of(trial, **loud, privacy__name="nominal", privacy__epsilon=1e9)
    sent, found = trained(quiet)
    assert float((found - sent).norm()) == pytest.approx(0.1, rel=1e-2)


def test_an_attackers_hello_and_its_local_test_stay_clean(trial: Any) -> None:
    """Only what it trains on is changed, and its counts with it."""
    flip: dict[str, Any] = {**ONE, "attack__name": "label-flip", "attack__mapping": "next"}
    honest, attacked = world_of(trial), world_of(trial, **flip)
    told = [each.do(Job("hello", 1, 0), None) for each in (honest, attacked)]
    assert told[0].numbers.keys() == told[1].numbers.keys()
    for split, counts in told[0].counts.items():
        assert np.array_equal(counts, told[1].counts[split])
    server = Server(honest.resident, honest.task, [], "sample", honest.method.shared)
    down = honest.method.send(server, 1)
    tested = [each.do(Job("evaluate", 1, 1, down, measures=("personal",)), None) for each in (honest, attacked)]
    assert np.array_equal(tested[0].counts["personal"], tested[1].counts["personal"])
    held = [each.client(Job("train", 1, 1, down), None).counts.tolist() for each in (honest, attacked)]
    assert held[1] == [held[0][-1], *held[0][:-1]] != held[0]
    assert attacked.client(Job("train", 0, 1, down), None).counts.tolist() == (
        honest.client(Job("train", 0, 1, down), None).counts.tolist()
    )
