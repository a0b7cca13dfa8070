"""Whole runs with a client that uploads what must not be averaged: the run completes, the memory is as before."""

import math

import pytest

from own_methods import Evil
from polyfed.errors import RunFailed
from polyfed.message import Memory

REASON = {"nan": "nonfinite", "infinite": "nonfinite", "float integers": "type", "more integers": "shape"}


class Memories:
    """Looks at every memory after every round."""

    def __init__(self):
        self.seen = {}

    def of(self, run):
        self.run, run.watch = run, self
        return self

    def round(self, done, rounds, numbers):
        store = self.run.store
        self.seen[done] = {k: (v, store.digests[k], store.get(k, v)) for k, v in store.table.items()}

    def say(self, text): ...

    def times(self, round):
        layout = self.run.world.resident.layout
        return [Memory.decode(blob, layout).times for _, (_, _, blob) in sorted(self.seen[round].items())]


@pytest.fixture
def spoiling(own):
    return {"method.name": own("Spoiling"), "participation": 1.0}


@pytest.mark.parametrize(
    ("evil", "model"), [*((e, "mlp") for e in Evil.__args__), ("nan", "resnet8"), ("float integers", "resnet8")]
)
def test_rejected_by_reason_and_its_memory_is_byte_for_byte_as_before(trial, spoiling, resnet, evil, model):
    changes = spoiling | {"method.evil": evil} | (resnet if model == "resnet8" else {})
    run = trial.run(changes)
    memories = Memories().of(run)
    summary = run.go()
    reason = REASON.get(evil, evil)
    assert summary["rejected"] == {reason: 1}
    assert (summary["failed"], summary["lost"]) == ({}, [])
    assert "round 2: the upload of client 1 is rejected" in run.folder.log.read_text()
    before, after = memories.seen[1], memories.seen[2]
    assert after[1] == before[1], "version, digest and bytes"
    assert all(after[k] != before[k] for k in (0, 2, 3))
    assert memories.times(3) == [3, 2, 3, 3], "it goes on from the old memory"
    assert math.isfinite(summary["personal"]["accuracy"])


@pytest.mark.parametrize("evil", ["nan", "norm"])
def test_the_model_is_that_of_a_run_without_the_rejected_client(trial, own, spoiling, evil):
    """Round 2 with its upload rejected is round 2 in which it raised."""
    rejected = trial(spoiling | {"method.evil": evil})
    raised = trial({"method.name": own("Failing"), "method.how": "raise", "participation": 1.0})
    assert rejected.fingerprint == raised.fingerprint
    assert rejected.fingerprint != trial.kept({"method.name": own("Counting"), "participation": 1.0}).fingerprint


def test_a_client_rejected_from_the_first_round_on_has_no_memory(trial, spoiling):
    run = trial.run(spoiling | {"method.when": 0})
    summary = run.go()
    assert summary["rejected"] == {"nonfinite": 3}
    assert sorted(run.store.table) == [0, 2, 3]


def test_rejections_are_in_the_record_with_what_they_cost(trial, spoiling):
    table = trial(spoiling | {"method.evil": "norm"}).records("training")
    row = table[(table["round"] == 2) & (table["client"] == 1)].iloc[0]
    assert (row["status"], row["reason"]) == ("rejected", "norm")
    assert row["bytes_up"] == row["bytes_down"] > 0, "it did cross the wire"


def test_if_all_are_rejected_the_quorum_rule_holds_and_the_model_is_the_old_one(trial, spoiling):
    run = trial.run(spoiling | {"method.who": -1, "engine.quorum": 0.0})
    memories = Memories().of(run)
    with pytest.raises(RunFailed, match=r"round 2 fell below the quorum.*NaN"):
        run.go()
    assert run.progress.rejected == {"nonfinite": 5 * 4}
    assert run.server.shared.flat.isfinite().all()
    assert {k: v[0] for k, v in memories.seen[1].items()} == run.store.table


def test_a_rejected_memory_does_not_come_back_by_a_resume(trial, spoiling):
    run = trial.run(spoiling)
    run.go()
    files = {p.name for p in (run.folder.path / "memory").iterdir()}
    assert "1-2.safetensors" not in files
    assert "1-3.safetensors" in files


def test_gate_norm_is_a_key(trial):
    strict = trial.run({"gate.norm": 1e-9, "participation": 1.0})
    with pytest.raises(RunFailed, match=r"more than gate\.norm allows"):
        strict.go()
