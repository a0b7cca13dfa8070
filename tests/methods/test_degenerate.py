"""Degenerate clients under every method: one sample, one class, no test data, a lone last sample, with BatchNorm."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small import SMALL

import polyfed
from polyfed.data.sources.arrays import Arrays
from polyfed.methods.base import methods

NAMES = [name for name in methods.names() if ":" not in name]
CLASSES, BATCH = 4, 8
CLIENTS = {  # who: labels
    "alone": [2],  # one sample: trains on it, is tested on nothing
    "one-class": [1] * 10,
    "lone-last": list(range(CLASSES)) * 5 + [0] * 2,  # 22 samples, 5 of them for testing: batches of 8, 8 and 1
    "two": [0, 3],  # one to train on, one to be tested on
    "whole": list(range(CLASSES)) * 7,
}


def federation() -> tuple[Arrays, dict[str, Any]]:
    draw = np.random.default_rng(3)
    y = np.concatenate([np.array(labels) for labels in CLIENTS.values()])
    users = np.repeat(list(CLIENTS), [len(labels) for labels in CLIENTS.values()])
    y_test = np.arange(40) % CLASSES
    x, x_test = (draw.normal(size=(len(labels), 6)).astype(np.float32) for labels in (y, y_test))
    x[np.arange(len(y)), y] += 2
    x_test[np.arange(len(y_test)), y_test] += 2
    return Arrays.hold(x, y, x_test, y_test, users=users), {"partition": "users", "clients": len(CLIENTS)}


def run(name: str, out: Path, model: str = "mlp-bn", **keys: Any) -> polyfed.Result:
    data, split = federation()
    own = {k: v for k, v in SMALL.get(name, {}).items() if k.startswith(("method.", "split.", "model.lora."))}
    base = {
        "method": {"name": name},
        "data": data,
        "split": split,
        "model": {"name": model, "width": 0.02},
        "train": {"batch": BATCH},
        "rounds": 2,
        "engine": {"workers": 0},
        "checkpoint": {"every": 100},
    }
    return polyfed.run(base, own, keys, out=out)


@pytest.mark.parametrize("name", NAMES)
def test_degenerate_clients_run_and_are_on_record(name: str, tmp_path: Path) -> None:
    result = run(name, tmp_path / "run")
    assert result["failed"] == {}
    assert result["rejected"] == {}
    assert result["untested"] == 1
    assert result["notes"]["without_test"] == 1
    assert result["personal"]["accuracy"] is not None
    clients = result.clients
    final = clients[clients["measure"] == "personal_final"].set_index("name")
    assert int(final.loc["alone", "samples"]) == 0
    assert np.isnan(final.loc["alone", "accuracy"])
    assert final.drop("alone")["accuracy"].between(0, 1).all()
    training = result.records("training")
    assert (training["status"] == "accepted").all()
    names = {int(row.client): row.name for row in clients[["client", "name"]].itertuples(index=False)}
    by_name = training.groupby(training["client"].map(names))
    steps = by_name["steps"].sum()
    assert (steps > 0).all(), "everybody trained"
    in_eval_mode, skipped = by_name["eval_mode_steps"].sum(), by_name["skipped_batches"].sum()
    assert in_eval_mode["alone"] > 0  # its only batch is one sample: BN in eval mode
    assert in_eval_mode["two"] > 0
    assert skipped["lone-last"] > 0  # others can teach the norms: the lone sample is skipped, and counted
    assert in_eval_mode[["one-class", "whole"]].sum() == skipped[["one-class", "whole"]].sum() == 0


@pytest.mark.parametrize("name", NAMES)
def test_without_batch_norm_nothing_is_skipped(name: str, tmp_path: Path) -> None:
    result = run(name, tmp_path / "run", model="mlp", rounds=1)
    assert result["failed"] == {}
    training = result.records("training")
    assert training[["skipped_batches", "eval_mode_steps"]].to_numpy().sum() == 0


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "map", "fedcrc", "ecl", "per-fedavg", "flda"])
def test_batches_of_one_train_everybody(name: str, tmp_path: Path) -> None:
    """train.batch=1 with BatchNorm: no batch can teach a norm, so all steps are in eval mode and none is skipped."""
    result = run(name, tmp_path / "run", rounds=1, **{"train.batch": 1})
    assert result["failed"] == {}
    training = result.records("training")
    assert (training["eval_mode_steps"] > 0).all()
    assert training["skipped_batches"].sum() == 0


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "ditto", "fedrs", "fedper", "per-fedavg", "fedproto", "pfedla"])
def test_a_fraction_of_an_epoch_that_is_no_step_is_no_failure(name: str, tmp_path: Path) -> None:
    result = run(name, tmp_path / "run", **{"train.epochs": 0.1})
    assert result["failed"] == result["rejected"] == {}
