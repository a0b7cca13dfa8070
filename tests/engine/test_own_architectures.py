"""Clients with architectures of their own: trained, kept, resumed and exported like any other."""

import json
import re

import pytest
import torch

import polyfed
from polyfed.config import make_config
from polyfed.engine.work import Job, World
from polyfed.errors import Interrupted, UsageError
from polyfed.use.export import read

THREE = {
    "model.name": "mlp",
    "model.width": 21 / 512,  # 21 features, as the others have
    "model.per_client": {0: {"name": "lenet", "width": 0.25}, "client-3": {"name": "cnn5-bn", "width": 0.25}},
    "data.limit": 10,
    "rounds": 2,
}
METHODS = ("local", "fedproto", "flda")


class StopAfterOne:
    def round(self, done, rounds, numbers):
        if done == 1:
            raise Interrupted("enough for this test")

    def say(self, text): ...


@pytest.fixture(scope="module")
def world(trial):
    return World(make_config(trial.run(THREE | {"method.name": "fedproto"}).config.dump()))


def test_a_process_holds_one_network_of_each_architecture(world):
    lenet, mlp, again, cnn = world.residents
    assert mlp is again is world.resident
    assert len({id(one) for one in (lenet, mlp, cnn)}) == 3
    assert [world.sizes(one)["d"] for one in world.residents] == [21] * 4
    assert world.federation.shape == (1, 16, 16)  # as large as the most demanding of them needs


def test_every_client_says_where_its_own_model_starts(world):
    hellos = [world.do(Job("hello", k, 0), None).numbers for k in range(4)]
    starts = [(one["params"], one["layout"]) for one in hellos]
    assert starts == [tuple(world.origin_of(k).values()) for k in range(4)]
    assert starts[1] == starts[2]
    assert len(set(starts)) == 3


def test_an_architecture_starts_as_it_would_where_everybody_has_it(trial, world):
    alike = World(trial.run(THREE | {"model.name": "lenet", "model.width": 0.25, "model.per_client": {}}).config)
    assert torch.equal(alike.resident.initial.flat, world.residents[0].initial.flat)


@pytest.mark.parametrize("method", METHODS)
def test_the_bits_are_the_same_on_any_number_of_workers_and_after_a_stop(trial, method):
    changes = THREE | {"method.name": method, "eval.classes": True, "split.heldout": 1}
    serial, *parallel = (trial(changes | {"engine.workers": count}) for count in (0, 1, 2))
    assert serial["failed"] == serial["rejected"] == serial["excluded"] == {}
    assert [run.fingerprint for run in parallel] == [serial.fingerprint] * 2
    assert [run["personal_classes"] for run in parallel] == [serial["personal_classes"]] * 2
    stopped = trial.run(changes, watch=StopAfterOne())
    with pytest.raises(Interrupted):
        stopped.go()
    assert polyfed.resume(stopped.folder.path).fingerprint == serial.fingerprint
    assert serial["heldout"] is not None


def test_alone_a_client_learns_what_it_would_among_others_of_its_kind(trial):
    """Local: nobody sees the others, so client 0 has the memory that it has where all have its model."""
    mixed = trial.run(THREE | {"method.name": "local"})
    alike = trial.run(
        THREE | {"method.name": "local", "model.name": "lenet", "model.width": 0.25, "model.per_client": {}}
    )
    for run in (mixed, alike):
        run.go()
    assert mixed.store.digests[0] == alike.store.digests[0]
    assert mixed.store.digests[1] != alike.store.digests[1]


@pytest.mark.parametrize("method", METHODS)
def test_a_clients_own_model_is_exported_and_answers_as_in_the_run(trial, tmp_path, method):
    run = trial.kept(THREE | {"method.name": method})
    raw = polyfed.federation(trial.keys(THREE | {"method.name": method})).dataset.x[:20]
    for client, name in ((0, "lenet"), (1, "mlp"), (3, "cnn5-bn")):
        out = run.export("safetensors", client=client, out=tmp_path / str(client))
        assert json.loads((out / "model.json").read_text())["plan"]["model"]["name"] == name
        assert f"model `{name}`" in (out / "card.md").read_text()
        assert torch.allclose(read(out).logits(raw), run.client(client).logits(raw), atol=1e-5)


def test_a_resumed_run_must_have_the_same_models(trial):
    stopped = trial.run(THREE | {"method.name": "local"}, watch=StopAfterOne())
    with pytest.raises(Interrupted):
        stopped.go()
    text = stopped.folder.config.read_bytes().decode()
    stopped.folder.config.path.write_text(text.replace("name: lenet", "name: lenet-bn"))
    with pytest.raises(UsageError, match=r"differs in model.per_client.0.name \(lenet, now lenet-bn\)"):
        polyfed.resume(stopped.folder.path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method.name": "fedavg"}, "method 'fedavg' cannot average: leave it out, or take .* (fedproto, flda, local)"),
        ({"method": {"name": "ecl", "base": "fedprox"}}, "method 'ecl' cannot average"),
        ({"method.name": "fedproto", "model.width": 0.1}, "exchanges features, .* 'mlp' has 51 where 'lenet' has 21"),
        ({"method.name": "local", "model.per_client": {"nobody": "mlp"}}, "'nobody' is no client's name or id"),
        ({"method.name": "local", "eval.oracle": True}, "eval.oracle averages what clients keep"),
        ({"method.name": "flda", "privacy": {"name": "dp-sgd", "noise": 1.0}}, "privacy=dp-sgd bounds what one model"),
        ({"method.name": "local", "init": "model.safetensors"}, "init names one model for all to start from"),
    ],
)
def test_what_needs_models_that_are_alike_is_refused(trial, changes, words):
    with pytest.raises(UsageError) as refused:
        trial.run(THREE | changes).prepare()
    pattern = words.replace("(", r"\(").replace(")", r"\)")
    assert re.search(pattern, str(refused.value)), str(refused.value)


def test_fldas_private_network_is_the_clients_and_the_shared_one_is_everybodys(trial):
    run = trial.run(THREE | {"method.name": "flda", "rounds": 1, "participation": 1.0})
    summary = run.go()
    assert summary["rejected"] == summary["failed"] == {}
    shared = run.world.resident.layout.length(run.method.shared)
    assert [one.layout.length(run.method.shared) for one in run.world.residents] == [shared] * 4
    for k, name in ((0, "lenet"), (3, "cnn5-bn")):
        section = {"name": name, "width": 0.25}
        private = make_config({"model": section}).model.build(run.world.federation.shape, 10)
        client = run.world.client(run.jobs("evaluate", 2, [k])[0], run.store.get(k, run.store.table[k]))
        assert [tuple(p.shape) for p in client.model.own.parameters()] == [tuple(p.shape) for p in private.parameters()]
        assert torch.equal(client.live.get(run.method.shared)[0], run.server.part(run.method.shared)[0])


ON_TOP = ("fedavg-ft", "ecl", "lws", "tau-norm", "fedafa")


@pytest.mark.parametrize(("method", "base"), [*((name, "local") for name in ON_TOP), ("fedavg-ft", "flda")])
def test_methods_on_top_take_what_their_base_takes(trial, method, base):
    done = trial(THREE | {"method": {"name": method, "base": base}, "rounds": 1})
    assert done["failed"] == {}
    assert done["unfinished"] == []
