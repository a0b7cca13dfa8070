"""One piece of work: its draws, what it loads, what it leaves, what it measures."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from polyfed.engine.work import Job, World, sentence, side_of
from polyfed.message import Memory, Message, digest_of


@pytest.fixture
def world(trial):
    return lambda changes: World(trial.run(changes | {"split.val": 0.2}).config)


def job_of(world, kind="train", client=0, round=1, **more):
    message = Message(w=world.resident.initial.get(world.method.shared)[0] + 1)
    return Job(kind, client, round, message, **more)


def test_every_client_and_round_has_draws_of_its_own(world, monkeypatch):
    here = world({})
    monkeypatch.setattr(type(here.method), "train", lambda self, client: Message(w=torch.rand(3)))
    drawn = [here.do(job_of(here, client=k, round=r), None).up.w for k, r in ((0, 1), (1, 1), (0, 2), (0, 1))]
    assert len({tuple(w.tolist()) for w in drawn[:3]}) == 3
    assert torch.equal(drawn[0], drawn[3])


def test_samples_are_changed_where_it_trains_and_for_each_client_and_round_in_another_way(world):
    here = world({})
    here.augment = SimpleNamespace(both=lambda x, y, generator: (x + torch.rand(1, generator=generator), y))
    assert here.client(job_of(here, "evaluate"), None)._augment is None
    changed = [
        here.client(job_of(here, kind, client, round), None)._augment(torch.zeros(1), torch.zeros(1))[0].item()
        for kind, client, round in (("train", 0, 1), ("train", 1, 1), ("finish", 0, 2), ("train", 0, 1))
    ]
    assert len(set(changed[:3])) == 3
    assert changed[0] == changed[3]


@pytest.mark.parametrize("kind", ["train", "evaluate", "finish"])
def test_whatever_it_does_it_adapts_first(world, monkeypatch, kind):
    here, adapted = world({}), []
    monkeypatch.setattr(type(here.method), "adapt", lambda self, client: adapted.append(client.id))
    assert here.do(job_of(here, kind, client=2), None).error == ""
    assert adapted == [2]


def test_it_begins_with_what_was_sent_and_what_it_kept(world):
    here = world({"method.name": "fedper"})
    kept = here.method.kept
    first = here.do(job_of(here), None)
    assert first.digest == digest_of(first.memory)
    client = here.client(job_of(here, round=2), first.memory)
    own = Memory.decode(first.memory, here.resident.layout).personal_slice
    assert torch.equal(client.live.get(kept)[0], own[0])
    assert not torch.equal(own[0], here.resident.initial.get(kept)[0]), "it was trained"
    assert torch.equal(client.live.get(here.method.shared)[0], job_of(here).down.w)


def test_a_whole_model_is_what_was_sent_and_leaves_no_memory(world):
    here = world({})
    assert torch.equal(here.client(job_of(here), None).live.flat, here.resident.initial.flat + 1)
    outcome = here.do(job_of(here), None)
    assert (outcome.memory, outcome.digest) == (None, "")


def test_each_measure_looks_at_its_own_samples(world):
    here = world({"split.alpha": 0.2})
    data = here.federation.clients[0]
    job = replace(job_of(here, "evaluate"), measures=("personal", "val", "classes"))
    job.down.w -= 1  # the model as it was initialised, which does not answer everything alike
    counts = here.do(job, None).counts
    assert len(data.val) != len(data.test)
    assert {name: int(table.sum()) for name, table in counts.items()} == {
        "personal": len(data.test),
        "val": len(data.val),
        "classes": len(here.federation.global_test),
        "classes_masked": len(here.federation.global_test),
    }
    absent = (data.counts == 0).numpy()
    assert counts["classes"][:, absent].sum() > 0
    assert counts["classes_masked"][:, absent].sum() == 0


@pytest.mark.parametrize(("shape", "side"), [((1, 20, 40), 32), ((1, 32, 40), None), ((100,), None)])
def test_images_too_small_in_one_direction_are_resized(shape, side):
    small, large = (SimpleNamespace(name=str(n), smallest=lambda shape, n=n: n) for n in (8, 32))
    config = SimpleNamespace(data=SimpleNamespace(size="auto"), model=SimpleNamespace(architectures=[large, small]))
    assert side_of(config, SimpleNamespace(shape=shape, images=True)) == side


def test_what_went_wrong_is_one_line(world, monkeypatch):
    here = world({})

    def fails(self, client):
        raise ValueError("one\ntwo")

    monkeypatch.setattr(type(here.method), "train", fails)
    outcome = here.do(job_of(here), None)
    assert outcome.error == "ValueError: one"
    assert "two" in outcome.trace
    assert sentence(ValueError()) == "ValueError: no message"
