"""Personal stays personal: what crosses the wire, by name, by size, by value, and by the byte."""

from math import prod

import numpy as np
import pytest
import torch

from polyfed.engine.memory import MemoryStore
from polyfed.message import Memory
from polyfed.params import body, head

MODELS = {"mlp": {"model.name": "mlp", "model.width": 0.1}, "resnet8": {"model.name": "resnet8", "model.width": 0.5}}


@pytest.fixture(scope="module", params=MODELS)
def changes(request):
    return MODELS[request.param] | {"method.name": "fedper", "participation": 1.0, "split.val": 0.2, "split.heldout": 1}


@pytest.fixture(scope="module")
def looked_at(trial, changes, crews):
    """A finished FedPer run, everything that crossed, and every head its clients kept."""
    spy, heads = crews.spy(), []
    run = trial.run(changes, spy)
    put = MemoryStore.put

    def remember(store, client, version, blob):
        heads.append(Memory.decode(blob).personal)
        put(store, client, version, blob)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryStore, "put", remember)
        run.go()
    return run, spy, heads


def test_no_head_is_in_any_message(looked_at):
    run, spy, heads = looked_at
    layout = run.world.resident.layout
    size, whole = layout.length(head), layout.size
    assert len(heads) == 3 * 3 + 1, "three participants three times, and the finish of the one that never trained"
    assert all(h.numel() == size for h in heads)
    messages = [job.down for job in spy.jobs] + [outcome.up for _, _, outcome in spy.outcomes]
    assert len(messages) > 20
    secrets = torch.cat(heads).unique()
    for message in messages:
        assert set(message) <= {"w", "w.integers"}
        for name, tensor in message.tensors().items():
            assert tensor.numel() not in (size, whole), name
        if "w" in message:
            assert message.w.numel() == layout.length(body)
            seen = torch.isin(message.w, secrets).float().mean()
            assert seen < 0.01, "values of a head"


def test_reports_hold_counts_and_plain_numbers_only(looked_at):
    run, spy, _ = looked_at
    names = {"seconds", "loss", "steps", "samples", "skipped_batches", "eval_mode_steps"}
    for kind, _, outcome in spy.outcomes:
        assert set(outcome.numbers) <= names
        assert all(type(value) in (int, float) for value in outcome.numbers.values())
        classes = run.world.task.classes
        assert all(t.shape == (classes, classes) and t.dtype == np.int64 for t in outcome.counts.values())
        if kind != "train":
            assert len(outcome.up) == 0


def by_hand(run):
    """Bytes of the shared part from the model itself: 4 per float, 8 per integer of trunk and last."""
    shared = {n: t for n, t in run.world.resident.model.state_dict().items() if not n.startswith("head.")}
    return sum(prod(t.shape) * (4 if t.is_floating_point() else 8) for t in shared.values())


def test_bytes_are_those_of_the_body_per_client_and_round(looked_at):
    run, _, _ = looked_at
    each = by_hand(run)
    rounds, participants, everybody = 3, 3, 4
    table = np.genfromtxt(run.folder.path / "training.csv", delimiter=",", names=True, dtype=None, encoding="utf-8")
    assert (table["bytes_down"] == each).all()
    assert (table["bytes_up"] == each).all()
    assert run.progress.bytes["up"] == rounds * participants * each
    assert run.progress.bytes["down"] == (rounds * participants + 1) * each, "finish: to the one held out"
    assert run.progress.bytes["eval"] == (rounds * participants + everybody) * each


def test_bytes_of_the_mlp_by_arithmetic(trial):
    wide = round(0.1 * 512)
    floats = 64 * wide + wide + wide * wide + wide  # two layers with bias; the head, 10 * wide, stays
    summary = trial.kept({"method.name": "fedper"}).summary
    assert summary["bytes"]["up"] == 3 * 2 * 4 * floats
    assert trial.kept({}).summary["bytes"]["up"] == 3 * 2 * 4 * (floats + 10 * wide), "FedAvg sends the head too"


def test_local_sends_nothing(trial, crews, resnet):
    spy = crews.spy()
    summary = trial({"method.name": "local"} | resnet, spy).summary
    assert summary["bytes"] == {"up": 0, "down": 0, "eval": 0}
    assert all(len(job.down) == 0 for job in spy.jobs)
    assert all(len(outcome.up) == 0 for _, _, outcome in spy.outcomes)
    assert {job.client for job in spy.jobs if job.kind == "train"} == {0, 1, 2, 3}, "whoever is selected"


@pytest.mark.parametrize("method", ["fedper", "local", "fedavg-ft", "Counting"])
def test_evaluation_never_writes_memory(trial, own, crews, method):
    spy = crews.spy()
    run = trial.run({"method.name": own(method) if method == "Counting" else method}, spy)
    run.go()
    kept = {k: (v, run.store.digests[k], run.store.get(k, v)) for k, v in run.store.table.items()}
    assert kept
    run.evaluation.after_round(3)
    run.evaluation.conclude()
    assert kept == {k: (v, run.store.digests[k], run.store.get(k, v)) for k, v in run.store.table.items()}
    assert all(o.memory is None and not o.digest for kind, _, o in spy.outcomes if kind == "evaluate")


def test_local_buffers_stay_on_the_client(trial, crews, resnet):
    spy = crews.spy()
    run = trial.run(resnet | {"buffers": "local", "participation": 1.0}, spy)
    run.go()
    layout = run.world.resident.layout
    assert layout.n_integers > 0
    assert layout.n_weights < layout.size
    messages = [job.down for job in spy.jobs] + [o.up for kind, _, o in spy.outcomes if kind == "train"]
    for message in messages:
        assert set(message) == {"w"}, "no integers"
        assert message.w.numel() == layout.n_weights
    blob = run.store.get(0, run.store.table[0])
    memory = Memory.decode(blob)
    assert memory.personal.numel() == layout.size - layout.n_weights
    assert memory["personal.integers"].numel() == layout.n_integers
    assert memory["personal.integers"].min() > 0, "they were counted on"
    assert torch.equal(run.server.shared.buffers, run.world.resident.initial.buffers), "the server never sees any"
