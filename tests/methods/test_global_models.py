"""Methods with one global model: the same bits with workers, and exports that answer as the run does."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small import SMALL

import polyfed
from polyfed.use.export import read

NAMES = ["fednova", "fedopt", "feddyn", "moon", "fedmmd", "feddf", "fedaws", "fedlc"]
TINY: dict[str, Any] = {
    "data.limit": 20,
    "split.clients": 4,
    "split.alpha": 1.0,
    "rounds": 2,
    "participation": 0.75,
    "train.momentum": 0.9,
    "model.name": "mlp-bn",
    "model.width": 0.1,
    "eval.every": 2,
    "eval.classes": False,
    "engine.workers": 0,
}


def keys_of(name: str) -> dict[str, Any]:
    return TINY | SMALL.get(name, {}) | {"method.name": name}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_workers_give_the_same_bits(name: str, tmp_path: Path) -> None:
    alone = polyfed.run(keys_of(name), out=tmp_path / "0")
    for workers in (1, 2):
        several = polyfed.run(keys_of(name) | {"engine.workers": workers}, out=tmp_path / str(workers))
        assert several.fingerprint == alone.fingerprint
        assert several["personal"] == alone["personal"]


@pytest.mark.parametrize("name", NAMES)
def test_an_export_answers_as_the_run_does(name: str, tmp_path: Path) -> None:
    run = polyfed.run(keys_of(name), rounds=1, out=tmp_path / "run")
    x = np.arange(640, dtype=np.uint8).reshape(10, 8, 8) % 17
    ours = run.client(1).logits(x)
    assert torch.equal(ours, run.global_model().logits(x))
    theirs = read(run.export("safetensors", 1, tmp_path / "out")).logits(x)
    torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-5)
