"""BatchNorm under averaging, and nothing of one client in another."""

import pytest
import torch

from polyfed.engine.threads import threads
from polyfed.engine.work import Job, World
from polyfed.methods.base import Upload


@pytest.fixture(autouse=True)
def one_thread():
    """As in every process that works."""
    with threads(1):
        yield


@pytest.fixture
def run(trial, resnet):
    """A run of two clients before its first round."""
    made = trial.run(resnet | {"split.clients": 2, "participation": 1.0})
    made.prepare()
    made.restore()
    made.server.round = 1
    return made


def outcomes(run):
    world = World(run.config)
    return [world.do(job, None) for job in run.jobs("train", 1, [0, 1])]


def test_fedavg_of_two_clients_is_the_state_computed_by_hand(run):
    found = outcomes(run)
    sizes = [run.server.clients[k].n for k in (0, 1)]
    assert sizes[0] != sizes[1], "or the weights would not show"
    states = []
    for outcome in found:
        params = run.server.shared.copy()
        params.put(run.method.shared, outcome.up.w, outcome.up["w.integers"])
        states.append(
            {e.name: e.view(params.integers if e.kind == "integer" else params.flat) for e in params.layout.entries}
        )
    run.method.merge(run.server, [Upload(o.client, n, o.up) for o, n in zip(found, sizes, strict=True)])
    merged = run.server.shared
    kinds = {"weight": 0, "buffer": 0, "integer": 0}
    for entry in merged.layout.entries:
        kinds[entry.kind] += 1
        value = entry.view(merged.integers if entry.kind == "integer" else merged.flat)
        one, two = (state[entry.name] for state in states)
        if entry.kind == "integer":
            assert value.dtype == torch.int64
            assert torch.equal(value, one), "of the first contributor, never averaged"
            continue
        expected = (sizes[0] * one.double() + sizes[1] * two.double()) / sum(sizes)
        torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-6, msg=entry.name)
        if entry.kind == "buffer":
            assert not torch.equal(one, two), "two clients have different statistics"
    assert all(kinds.values())


def test_integer_buffers_count_the_first_contributors_steps(run):
    found = outcomes(run)
    steps = [int(o.numbers["steps"]) for o in found]
    assert steps[0] != steps[1], "or the test could not tell"
    assert (found[0].up["w.integers"] == steps[0]).all()
    run.method.merge(run.server, [Upload(o.client, 1, o.up) for o in found])
    assert (run.server.shared.integers == steps[0]).all()


@pytest.mark.parametrize("method", ["fedavg", "fedper", "Counting"])
def test_a_client_is_not_affected_by_whom_its_process_served_before(trial, resnet, own, method):
    changes = resnet | {"method.name": own(method) if method == "Counting" else method, "participation": 1.0}
    run = trial.run(changes)
    run.prepare()
    run.restore()
    jobs = run.jobs("train", 1, range(4), ("selected",))
    alone, company = World(run.config), World(run.config)
    expected = alone.do(jobs[3], None)
    for job in (jobs[0], jobs[1], Job("evaluate", 2, 1, jobs[2].down, None, ("personal",)), jobs[2]):
        company.do(job, None)
    found = company.do(jobs[3], None)
    assert found.error == expected.error == ""
    assert found.up.encode() == expected.up.encode()
    assert (found.memory, found.digest) == (expected.memory, expected.digest)
    assert (found.counts["selected"] == expected.counts["selected"]).all()


def test_work_depends_on_its_memory_and_message_alone(trial, own):
    """Pure: the same job twice gives the same bytes, another memory or message others."""
    run = trial.run({"method.name": own("Counting"), "participation": 1.0})
    run.prepare()
    run.restore()
    world = World(run.config)
    job = run.jobs("train", 2, [1])[0]
    first = world.do(job, None)
    again = world.do(job, None)
    assert first.memory == again.memory
    remembers = world.do(job, first.memory)
    assert remembers.up.encode() == first.up.encode(), "Counting trains from the message alone"
    assert remembers.digest != first.digest
    run.server.shared.flat.mul_(0.5)
    run.server.shared = run.server.shared
    assert world.do(run.jobs("train", 2, [1])[0], None).up.encode() != first.up.encode()
    assert torch.equal(run.world.resident.params.flat, run.world.resident.initial.flat), "the server's model is its own"
