"""Every method, stopped after every round and resumed by a fresh server: the bits of a run nobody stopped."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small import SMALL

import polyfed
from polyfed.errors import Interrupted
from polyfed.methods.base import methods

OWN = Path(__file__).parents[1] / "own_methods.py"
NAMES = [name for name in methods.names() if ":" not in name]
TINY: dict[str, Any] = {
    "data.limit": 20,
    "split.clients": 4,
    "split.alpha": 1.0,
    "rounds": 4,
    "participation": 0.75,
    "train.momentum": 0.9,
    "model.name": "mlp",
    "model.width": 0.1,
    "eval.every": 4,
    "eval.classes": False,
    "engine.workers": 0,
}


class StopAfterEachRound:
    """Looks on, and stops the run as soon as a round is committed."""

    def round(self, done: int, rounds: int, numbers: dict[str, Any]) -> None:
        if done < rounds:
            raise Interrupted("enough for this sitting")

    def say(self, text: str) -> None:
        """Not shown."""


@pytest.mark.parametrize("name", [*NAMES, f"{OWN}:ServerFits"], ids=lambda name: name.rpartition(":")[2])
def test_stopped_after_every_round_it_has_the_same_bits(name: str, tmp_path: Path) -> None:
    keys = TINY | SMALL.get(name, {}) | {"method.name": name}
    whole = polyfed.run(keys, out=tmp_path / "whole")
    with pytest.raises(Interrupted):
        polyfed.run(keys, out=tmp_path / "stopped", progress=StopAfterEachRound())
    for _ in range(keys["rounds"] - 2):
        with pytest.raises(Interrupted):
            polyfed.resume(tmp_path / "stopped", progress=StopAfterEachRound())
    resumed = polyfed.resume(tmp_path / "stopped")
    assert resumed.fingerprint == whole.fingerprint
    assert resumed["failed"] == resumed["rejected"] == {}
    for table in ("rounds", "clients"):
        assert resumed.records(table).equals(whole.records(table)), table


def test_the_servers_tally_is_of_one_round(tmp_path: Path) -> None:
    polyfed.run(TINY | {"method.name": f"{OWN}:ServerFits"}, out=tmp_path / "run")
    for round in (1, 4):
        steps = np.load(tmp_path / "run" / "arrays" / f"steps-{round:06d}.npy")
        assert steps.tolist() == [5, 5], "steps taken and losses kept"
