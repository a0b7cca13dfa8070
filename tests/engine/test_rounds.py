"""The steps of a round, one by one: who is selected, what is held, merged and counted."""

import pytest

from polyfed.engine.statements import FALSE
from polyfed.engine.work import Outcome
from polyfed.errors import DataError, RunFailed
from polyfed.parts.losses import cross_entropy

MANY = {"split.clients": 20}


@pytest.fixture
def begun(trial):
    """A run at the beginning of its first round."""

    def begin(changes, crew=None):
        run = trial.run(changes, crew)
        run.prepare()
        run.restore()
        run.server.begin(1)
        return run

    return begin


@pytest.mark.parametrize(("quorum", "least"), [(0.0, 1), (0.5, 2), (0.51, 3), (1.0, 4)])
def test_a_quorum_is_reached_exactly_and_never_by_nobody(trial, quorum, least):
    run = trial.run({"engine.quorum": quorum})
    assert [run.roster.enough(done, 4) for done in range(5)] == [done >= least for done in range(5)]


def test_the_last_round_is_measured_too(trial):
    run = trial.run({"rounds": 5, "eval.every": 3})
    assert [round for round in range(1, 6) if run.evaluates(round)] == [3, 5]


# ---- who takes part


def test_every_round_and_every_attempt_selects_anew(begun):
    run = begun(MANY | {"participation": 0.3})
    drawn = [run.roster.select(round, attempt) for round, attempt in ((1, 0), (2, 0), (1, 1))]
    assert all(len(set(some)) == 6 and some == sorted(some) for some in drawn)
    assert len({tuple(some) for some in drawn}) == 3
    assert run.roster.select(1, 0) == drawn[0]


def test_at_least_one_is_selected_and_by_bernoulli_about_as_many_as_asked_for(begun):
    run = begun(MANY | {"participation": 0.01})
    assert len(run.roster.select(1, 0)) == 1
    run = begun(MANY | {"participation": 0.9, "sampling": "bernoulli"})
    assert 150 < sum(len(run.roster.select(round, 0)) for round in range(10)) < 200


def test_who_is_excluded_takes_part_in_nothing(begun):
    run = begun(MANY | {"participation": 1.0})
    run.roster.exclude(3, "it lied")
    others = [k for k in range(20) if k != 3]
    assert run.roster.select(1, 0) == others
    assert [job.client for job in run.jobs("evaluate", 1, range(20))] == others


def test_each_client_drops_out_for_itself(begun):
    run = begun(MANY | {"faults.dropout": 0.5})
    assert {run.roster.drops_out(1, 0, k) for k in range(20)} == {True, False}


def test_who_reports_what_cannot_be_is_excluded(begun):
    run = begun({})
    job = run.jobs("train", 1, [2])[0]
    assert run.roster.verified(job, Outcome(2, numbers={"steps": -1})).error == FALSE
    assert list(run.progress.excluded) == ["2"]
    assert run.progress.excluded["2"].startswith("in round 1 steps is -1")


# ---- what the server has of its own


def test_the_server_may_learn_from_public_samples_that_nobody_is_tested_on(begun):
    assert len(begun({}).server.public) == 0
    run = begun({"split.public": 20})
    server, before = run.server, run.server.live.copy()
    assert not set(server.public.rows.tolist()) & set(run.world.federation.global_test.rows.tolist())
    assert server.fit(cross_entropy, server.public, epochs=1, batch=10) == 2
    assert server.live.digest() != before.digest()


# ---- what is merged and what counts


@pytest.fixture
def trained(begun, own, crews):
    """A round whose uploads came in the opposite order, and one of which turned out to be an outlier."""
    run = begun({"method.name": own("Counting"), "participation": 1.0}, crews.backwards())

    def all_came(number, rows):
        next(row for row in rows if row["client"] == 2)["status"] = "rejected"

    run.admission.all_came = all_came
    return run, *run._train(1, 0, [0, 1, 2, 3])


def test_uploads_and_records_are_in_the_order_of_clients(trained):
    _, accepted, rows = trained
    assert [outcome.client for outcome in accepted] == [0, 1, 3]
    assert [row["client"] for row in rows] == [0, 1, 2, 3]


def test_weights_are_those_of_the_hello_and_memories_count_once_merged(trained, monkeypatch):
    run, accepted, _ = trained
    merged = []
    monkeypatch.setattr(type(run.method), "merge", lambda self, server, uploads: merged.extend(uploads))
    for outcome in accepted:
        outcome.numbers["samples"] = 10**6
    assert run.store.table == {}
    run._merge(1, accepted)
    assert [(u.client, u.n) for u in merged] == [(k, len(run.world.federation.clients[k].train)) for k in (0, 1, 3)]
    assert run.store.table == {0: 1, 1: 1, 3: 1}


def test_the_memory_of_an_outlier_is_gone(trained):
    run, _, _ = trained
    assert run.store.get(1, 1)
    with pytest.raises(DataError, match="client 2, version 1, is missing"):
        run.store.get(2, 1)


def test_below_the_quorum_no_memory_of_the_attempt_is_left(begun, own):
    failing = {"method.name": own("Failing"), "method.when": 0, "participation": 1.0, "engine.quorum": 1.0}
    run = begun(failing)
    with pytest.raises(RunFailed, match="round 1 fell below the quorum"):
        run._round(1)
    for client in range(4):
        with pytest.raises(DataError, match="is missing"):
            run.store.get(client, 1)


def test_the_fingerprint_does_not_tell_who_committed_first(begun):
    run = begun({})
    found = []
    for order in ((0, 1), (1, 0)):
        run.store.digests = {client: str(client) * 64 for client in order}
        found.append(run.fingerprint())
    assert found[0] == found[1]


def test_clients_are_known_by_number_whatever_the_order_of_their_hellos(trial, crews):
    class Reversed(crews.spy):
        def hello(self):
            return iter(reversed(list(super().hello())))

    runs = [trial.run({}), trial.run({}, crew=Reversed())]
    for run in runs:
        run.prepare()
    assert [list(run.server.clients) for run in runs] == [[0, 1, 2, 3]] * 2
    assert runs[0].checkpoints.origin == runs[1].checkpoints.origin
