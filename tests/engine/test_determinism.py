"""Same seed, same bits: for any number of workers, any order of completion, any evaluation schedule."""

import pytest

METHODS = ["fedper", "Counting"]


@pytest.fixture(params=METHODS)
def method(request, own):
    return own(request.param) if request.param in ("Counting",) else request.param


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("model", ["resnet8", "mlp"])
def test_fingerprint_does_not_depend_on_the_number_of_workers(trial, method, model, count):
    changes = {"method.name": method, "model.name": model, "model.width": 0.5 if model == "resnet8" else 0.1}
    serial, parallel = trial.kept(changes), trial(changes | {"engine.workers": count})
    assert parallel.fingerprint == serial.fingerprint
    assert parallel["personal"] == serial["personal"]
    assert parallel["bytes"] == serial["bytes"]


SLOWER = [
    pytest.param(name, marks=pytest.mark.slow)
    for name in ("lg-fedavg", "pfedme", "per-fedavg", "fedrod", "lws", "tau-norm", "fedafa")
]


@pytest.mark.parametrize("name", ["fedproto", "flda", "pfedla", *SLOWER])
def test_personal_methods_have_the_same_bits_on_any_number_of_workers(trial, name):
    """What is built beside the model, kept on a client or mixed on the server is the same wherever a client works."""
    changes = {"method.name": name, "rounds": 2, "participation": 0.75}
    serial, *parallel = (trial(changes | {"engine.workers": count}) for count in (0, 1, 2))
    assert [run.fingerprint for run in parallel] == [serial.fingerprint] * 2
    assert [run["personal"] for run in parallel] == [serial["personal"]] * 2


def test_running_twice_gives_the_same_bits_and_another_seed_others(trial, method):
    first, again = trial.kept({"method.name": method}), trial({"method.name": method})
    other = trial({"method.name": method, "seed": 1})
    assert first.fingerprint == again.fingerprint
    assert first.fingerprint != other.fingerprint


def test_the_fingerprint_sees_one_bit_of_one_memory_and_of_the_server(trial, own):
    run = trial.run({"method.name": own("Counting")})
    before = run.go()["fingerprint"]
    assert run.fingerprint() == before
    run.server.shared.flat[0] += 1e-3
    changed = run.fingerprint()
    run.server.state.number = 1
    assert len({before, changed, run.fingerprint()}) == 3
    client = min(run.store.table)
    run.store.commit(client, run.store.table[client], "0" * 64)
    assert run.fingerprint() != changed


def test_shuffled_completion_order_gives_the_same_bits(trial, method, crews):
    changes = {"method.name": method, "participation": 1.0}
    assert trial(changes, crews.backwards()).fingerprint == trial.kept(changes).fingerprint


def test_a_method_that_shares_its_tensors_cannot_reach_across_the_wire(trial, own):
    """In one process as between two: an upload is a copy, and what a client was sent is its own."""
    changes = {"method.name": own("Sharing"), "participation": 1.0}
    assert trial(changes).fingerprint == trial(changes | {"engine.workers": 2}).fingerprint


@pytest.mark.parametrize(
    "schedule", [{"eval.every": 3}, {"eval.clients": 1}, {"eval.batch": 7}, {"checkpoint.every": 2}]
)
def test_evaluation_and_checkpoint_schedules_do_not_change_the_fingerprint(trial, method, schedule):
    assert trial({"method.name": method} | schedule).fingerprint == trial.kept({"method.name": method}).fingerprint


def test_held_out_clients_with_workers(trial, method):
    changes = {"method.name": method, "split.heldout": 2, "split.clients": 5}
    serial, parallel = trial(changes), trial(changes | {"engine.workers": 2})
    assert serial.fingerprint == parallel.fingerprint
    assert serial["heldout"] == parallel["heldout"]
    assert serial["heldout"] is not None


def test_methods_on_one_seed_see_the_same_clients(trial, own):
    """Keys hold no method name: who is selected does not depend on the method."""
    tables = [trial.kept({"method.name": name}).records("training") for name in ("fedper", own("Counting"))]
    columns = ["round", "client", "samples", "steps"]
    assert tables[0][columns].equals(tables[1][columns])


def test_dropout_is_deterministic_counted_and_leaves_memory_alone(trial, own):
    changes = {"method.name": own("Counting"), "faults.dropout": 0.4, "participation": 1.0, "engine.quorum": 0.0}
    one, two = trial(changes), trial(changes | {"engine.workers": 2})
    assert one.fingerprint == two.fingerprint
    rows = one.records("training")
    dropped = rows[rows["reason"] == "dropout"]
    assert len(dropped) == one["failed.dropout"] > 0
    assert dropped["bytes_down"].isna().all()


def test_sampling_by_bernoulli_is_keyed_too(trial):
    changes = {"sampling": "bernoulli", "rounds": 5}
    one, two = trial(changes), trial(changes | {"engine.workers": 1})
    assert one.fingerprint == two.fingerprint
    assert one.records("training").groupby("round").size().nunique() > 1
