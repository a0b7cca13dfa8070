"""Oracle numbers: the mean of what is personal, measured where all memories are on one machine, and only there."""

from typing import Any

import numpy as np
import pytest
import torch

import polyfed
from polyfed.engine.oracle import check_oracle
from polyfed.engine.work import World, federation_of
from polyfed.errors import UsageError
from polyfed.measure.counts import confusion
from polyfed.measure.metrics import accuracy
from polyfed.message import Memory, State
from polyfed.params import head

KEYS: dict[str, Any] = {"eval.oracle": True, "split.heldout": 2, "split.clients": 6, "rounds": 6, "weighting": "sample"}


@pytest.fixture(scope="module")
def run(tiny: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> polyfed.Result:
    return polyfed.run(tiny, KEYS, method="fedper", out=tmp_path_factory.mktemp("oracle") / "run")


def test_it_is_the_body_under_the_weighted_mean_of_the_heads(run: polyfed.Result) -> None:
    config = polyfed.api.config_of(run.config)
    world = World(config)
    newest = sorted((run.path / "checkpoints").glob("at-*/server.safetensors"))[-1]
    params = State.decode(newest.read_bytes(), world.resident.layout).params
    data = federation_of(config)
    sizes = np.array([len(data.clients[k].train) for k in data.participants], dtype=np.float64)
    heads = []
    for k in data.participants:
        blob = sorted((run.path / "memory").glob(f"{k}-*.safetensors"), key=lambda p: int(p.stem.split("-")[1]))[-1]
        heads.append(Memory.decode(blob.read_bytes(), world.resident.layout).personal_slice[0])
    mean = sum(torch.tensor(n / sizes.sum()) * h for n, h in zip(sizes, heads, strict=True))
    params.put(head, mean.float())
    model = world.resident.frozen(params, augmented=False).model
    found = [accuracy(confusion(model, data.clients[k].test, 10, 128).numpy()) for k in data.heldout]
    assert run["oracle"]["heldout"]["accuracy"] == pytest.approx(float(np.mean(found)))
    whole = accuracy(confusion(model, data.global_test, 10, 128).numpy())
    assert run["oracle"]["global"]["accuracy"] == pytest.approx(whole)
    assert run["oracle.heldout.accuracy"] != run["heldout.accuracy"]


def test_nothing_else_changes(run: polyfed.Result, tiny: dict[str, Any]) -> None:
    plain = polyfed.run(tiny, KEYS | {"eval.oracle": False}, method="fedper")
    assert plain["oracle"] is None
    assert plain.fingerprint == run.fingerprint
    assert plain["bytes"] == run["bytes"]
    assert plain["personal"] == run["personal"]


@pytest.mark.parametrize("method", ["fedavg", "ditto", "fedavg-ft"])
def test_a_method_without_a_personal_slice_has_no_such_number(method: str, tiny: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"eval.oracle averages .* and method '{method}' keeps no slice"):
        polyfed.run(tiny, KEYS, method=method)


def test_only_the_local_engine_has_it() -> None:
    config = polyfed.api.config_of(KEYS, engine="flower", method="fedper")
    with pytest.raises(UsageError, match="set engine=local, not flower"):
        check_oracle(config)


def test_validation_is_measured_after_finish_too(tiny: dict[str, Any]) -> None:
    keys = tiny | {"split.val": 0.2, "rounds": 2}
    tuned = polyfed.run(keys, method="fedavg-ft")
    plain = polyfed.run(keys, method="fedavg")
    assert 0 < tuned["validation.accuracy"] <= 1
    assert tuned["validation.accuracy"] != plain["validation.accuracy"]
    assert polyfed.run(tiny | {"rounds": 2}, method="fedavg")["validation"] is None
