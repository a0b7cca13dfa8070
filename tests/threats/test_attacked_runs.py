"""Whole runs under attack: the same bits everywhere, who is counted as what, and what is refused."""

import csv
import itertools
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import polyfed
from polyfed.config import deciding, identity, make_config
from polyfed.engine.attacked import Attacked, separated
from polyfed.engine.checkpoint import restore_state, state_of
from polyfed.engine.flower.deploy.schema import refuse_attack
from polyfed.engine.threads import threads
from polyfed.errors import Interrupted, UsageError
from polyfed.message import State
from polyfed.methods.base import methods
from polyfed.threats.defences import defences
from polyfed.threats.defender import Defender
from trials import StopAfter

FIVE = {"split.clients": 5, "participation": 1.0, "rounds": 2}
FLIP = {"attack.name": "label-flip", "attack.clients": [1, 3]}


def rows(run, table):
    with (run.path / f"{table}.csv").open() as file:
        return list(csv.DictReader(file))


# ---- nothing changes where nothing is asked for


def test_no_attack_and_no_defence_are_no_part_of_a_run():
    tree = make_config({}).dump()
    assert tree["attack"] == tree["defence"] == {"name": "none"}
    assert not {"attack", "defence"} & set(identity(tree))
    assert not [key for key in deciding(tree) if key.startswith(("attack", "defence"))]
    asked = make_config({"attack": {"name": "noise", "count": 1}, "defence": "krum"}).dump()
    assert deciding(asked)["attack.count"] == 1
    assert deciding(asked)["defence.f"] == 0.2


@pytest.mark.parametrize(
    "attack",
    [
        {**FLIP, "attack.share": 0.0},
        {**FLIP, "attack.rounds": [9]},
        {**FLIP, "attack.rounds": "never"},
        {"attack.name": "ipm", "attack.clients": [1], "attack.rounds": {"from": 3}},
    ],
    ids=["no share", "no round", "never", "no collusion"],
)
def test_an_attack_that_does_nothing_leaves_the_bits_of_an_honest_run(trial, attack):
    assert trial(FIVE | attack).fingerprint == trial.kept(FIVE).fingerprint


def test_an_attacker_that_is_not_selected_does_nothing(trial):
    changes = {"split.clients": 6, "participation": 0.5, "rounds": 1}
    honest = trial(changes)
    there = {int(row["client"]) for row in rows(honest, "training")}
    absent = next(k for k in range(6) if k not in there)
    assert trial(changes | {"attack.name": "noise", "attack.clients": [absent]}).fingerprint == honest.fingerprint


# ---- the same bits

STATEFUL = {
    **FIVE,
    "rounds": 4,
    "attack.name": "alie",
    "attack.count": 2,
    "defence.name": "centred-clipping",
    "defence.pre": "nnm",
}


def test_the_same_bits_on_any_number_of_workers(trial):
    serial = trial.kept(STATEFUL)
    for count in (1, 2):
        parallel = trial(STATEFUL | {"engine.workers": count})
        assert parallel.fingerprint == serial.fingerprint
        assert (parallel.path / "threats.csv").read_bytes() == (serial.path / "threats.csv").read_bytes()


@pytest.mark.parametrize("defence", ["centred-clipping", "credit"])
def test_the_same_bits_when_stopped_and_resumed(trial, defence):
    changes = STATEFUL | {"defence.name": defence, "attack.name": "backdoor", "attack.rounds": {"from": 2, "to": 4}}
    changes |= {"defence.clean": 2, "defence.width": 16, "defence.epochs": 5} if defence == "credit" else {}
    run = trial.run(changes, watch=StopAfter(3))
    with pytest.raises(Interrupted):
        run.go()
    assert any(name.startswith("defence.") for name in run.server.state)
    resumed, whole = polyfed.resume(run.folder.path), trial(changes)
    assert resumed.fingerprint == whole.fingerprint
    assert resumed.summary["threats"] == whole.summary["threats"]
    for table in ("threats", "rounds"):
        assert rows(resumed, table) == rows(whole, table)


# ---- what is recorded


def test_who_attacks_is_recorded_and_counted_apart(trial):
    run = trial.kept(FIVE | FLIP | {"attack.rounds": "last", "defence.name": "multi-krum", "defence.f": 1})
    training = rows(run, "training")
    assert [(r["round"], r["client"]) for r in training if r["attacker"] == "1"] == [("2", "1"), ("2", "3")]
    assert sum(float(r["weight"]) for r in training if r["round"] == "1") == pytest.approx(1, abs=1e-4)
    assert [r["suspect"] for r in training].count("1") == 2
    first, last = rows(run, "threats")
    assert (first["attackers"], last["attackers"]) == ("0", "2")
    found = run.summary["threats"]
    tp, fp, fn = (sum(int(r[what]) for r in (first, last)) for what in ("tp", "fp", "fn"))
    assert (tp + fp, fn) == (2, 2 - tp)
    assert found["precision"] == (tp / (tp + fp))
    assert found["recall"] == (tp / (tp + fn))
    assert found["acc"] == pytest.approx(float(last["acc"]))
    assert found["asr"] == pytest.approx(float(last["asr"]))
    assert found["acc"] == run.summary["global"]["accuracy"]
    assert found["attackers"] == [1, 3]
    measured = {(r["measure"], r["client"]) for r in rows(run, "clients")}
    assert {c for m, c in measured if m == "personal"} == {"0", "2", "4"}
    assert {c for m, c in measured if m == "personal_attackers"} == {"1", "3"}


def test_who_never_attacks_is_measured_all_the_same(trial):
    """The base rate: who would attack is left out of the honest ones, and no upload is counted as an attack."""
    run = trial.kept(FIVE | FLIP | {"attack.rounds": "never"})
    assert [row["attackers"] for row in rows(run, "threats")] == ["0", "0"]
    assert run.summary["threats"]["attackers"] == [1, 3]
    assert run.summary["threats"]["asr"] == pytest.approx(float(rows(run, "threats")[-1]["asr"]))


def test_a_personal_method_is_asked_on_every_honest_client(trial, crews):
    spy = crews.spy()
    changes = FIVE | {"method.name": "fedper", "rounds": 1, "attack.name": "backdoor", "attack.clients": [0]}
    run = trial(changes, spy)
    asked = [job.client for job in spy.jobs if "threat" in job.measures]
    assert asked == [1, 2, 3, 4]
    assert 0 <= run.summary["threats"]["asr"] <= 1


def test_a_cluster_that_several_share_is_asked_once(trial, crews):
    spy = crews.spy()
    trial(FIVE | FLIP | {"method.name": "distfl", "method.no_bn": "noise", "method.steps": 1, "rounds": 1}, spy)
    assert len([job for job in spy.jobs if "threat" in job.measures]) < 3


def test_separated_honest_clients():
    pairs = np.array([[0, 0], [1, 0], [2, 1], [5, 1], [6, 2]])
    assert separated(pairs, {1}) == 0.75  # client 0 shares a cluster with the attacker
    assert separated(np.array([0, 0, 1, 1]), {1}) == pytest.approx(2 / 3)
    assert separated(np.array([[1, 0]]), {1}) == ""


def test_a_free_rider_sends_what_it_was_sent(trial, crews):
    spy = crews.spy()
    trial(FIVE | {"rounds": 1, "attack.name": "free-rider", "attack.clients": [2]}, spy)
    up = {outcome.client: outcome for kind, _, outcome in spy.outcomes if kind == "train"}
    sent = next(job.down for job in spy.jobs if job.kind == "train" and job.client == 2)
    assert up[2].up["w"].equal(sent["w"])
    assert up[2].numbers["steps"] == 0
    assert not up[1].up["w"].equal(sent["w"])


def test_an_attacker_with_a_model_of_its_own_attacks_what_is_shared(trial, crews):
    """FLDA shares one network, and clients 1 and 2 have another of their own beside it."""
    own = {"1": {"name": "mlp", "width": 0.05}, "2": {"name": "mlp", "width": 0.2}}
    changes = FIVE | {"rounds": 1, "method.name": "flda", "model.per_client": own}
    spies = [crews.spy(), crews.spy()]
    trial(changes, spies[0])
    run = trial(changes | {"attack.name": "sign-flip", "attack.clients": [1]}, spies[1])
    honest, attacked = ({o.client: o.up["w"] for kind, _, o in spy.outcomes if kind == "train"} for spy in spies)
    sent = next(job.down["w"] for job in spies[1].jobs if job.kind == "train" and job.client == 1)
    assert not honest[1].equal(sent)
    assert (attacked[1] - sent).allclose(sent - honest[1], atol=1e-6)
    assert all(attacked[k].equal(honest[k]) for k in (0, 2, 3, 4))
    flipped = trial(changes | FLIP | {"defence.name": "multi-krum", "defence.f": 1})
    for each in (run, flipped):
        assert each.summary["failed"] == each.summary["rejected"] == {}
        assert 0 <= each.summary["threats"]["acc"] <= 1


def test_a_boosted_update_is_stopped_by_the_gate_unless_it_may_pass(trial):
    boosted = FIVE | {"rounds": 1, "attack.name": "label-flip", "attack.count": 1, "attack.boost": 500}
    assert trial(boosted).summary["rejected"] == {"median": 1}
    assert trial(boosted | {"gate.median": 1e6}).summary["rejected"] == {}


def test_what_colluders_send_passes_the_gate_like_any_other_upload(trial):
    loud = {"attack.name": "ipm", "attack.clients": [1, 3], "attack.eps": 1e9}
    run = trial(FIVE | loud | {"rounds": 1})
    assert run.summary["rejected"] == {"norm": 2}
    assert {r["client"] for r in rows(run, "training") if r["status"] == "rejected"} == {"1", "3"}


def test_attackers_whom_the_gate_stopped_are_told_apart_from_those_that_a_defence_missed(trial):
    boosted = {"attack.name": "label-flip", "attack.clients": [1], "attack.boost": 500}
    run = trial(FIVE | boosted | {"split.clients": 6, "defence.name": "multi-krum", "defence.f": 1})
    for row in rows(run, "threats"):
        assert [row[name] for name in ("attackers", "stopped", "tp", "fp", "fn")] == ["1", "1", "0", "1", "0"]
    assert {r["suspect"] for r in rows(run, "training") if r["attacker"] == "1"} == {""}
    found = run.summary["threats"]
    assert (found["stopped"], found["precision"], found["recall"]) == (2, 0, None)


@pytest.mark.parametrize("statuses", list(itertools.product(["accepted", "rejected", "failed"], repeat=2)))
def test_every_attacker_that_sent_something_is_found_missed_or_stopped(statuses):
    """Clients 1 and 2 attack; the defence names 0 and 1 of the uploads that reached it."""
    told = [{"client": k, "status": status} for k, status in enumerate(["accepted", *statuses])]
    reached = {row["client"]: row["client"] < 2 for row in told if row["status"] == "accepted"}
    run = SimpleNamespace(
        server=SimpleNamespace(round=1),
        defender=SimpleNamespace(weights={}, suspects=reached),
        progress=SimpleNamespace(threats={}),
        world=SimpleNamespace(adversary=SimpleNamespace(acts=lambda client, round: client > 0)),
    )
    Attacked(run).judged(told)
    found, sent = run.progress.threats, [status for status in statuses if status != "failed"]
    assert found["tp"] + found["fn"] + found["stopped"] == len(sent)
    assert found["stopped"] == statuses.count("rejected")
    assert (found["tp"], found["fp"]) == (int(statuses[0] == "accepted"), 1)
    assert [row["attacker"] for row in told] == [0, *(int(status != "failed") for status in statuses)]


def test_a_run_says_what_it_does_not_defend(trial):
    for method, said in (("scaffold", "'c' is not defended"), ("fedproto", "averages no model")):
        run = trial(FIVE | {"rounds": 1, "method.name": method, "defence.name": "median"})
        assert said in (run.path / "log.txt").read_text()


# ---- refusals


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"attack.name": "label-flip"}, "exactly one of attack.clients, attack.count and attack.fraction"),
        ({"attack.name": "noise", "attack.count": 5}, "every client would attack"),
        ({"attack.name": "sign-flip", "attack.count": 1, "method.name": "local"}, "method 'local' sends none"),
        (
            {"attack.name": "label-flip", "attack.count": 1, "attack.boost": 5, "method.name": "fedproto"},
            "attack.boost changes the models that clients send, and method 'fedproto' sends none",
        ),
        ({"defence.name": "fltrust"}, "set split.public=100"),
        ({"defence.name": "fltrust", "split.public": 10, "method.name": "fedper"}, "has no global model"),
        ({"defence.name": "krum", "engine.name": "flower", "engine.secagg": True}, "secure sums hide them"),
        ({"defence.name": "krum", "privacy.name": "user", "privacy.noise": 1.0}, "knows only the clipped mean"),
        ({"defence.name": "krumm"}, "did you mean 'krum'"),
        ({"defence.name": "median", "defence.f": 0.5}, "defence.f"),
        ({"defence.name": "median", "defence.weights": "method"}, "unknown key 'defence.weights'"),
    ],
)
def test_refusals(trial, changes, sentence):
    changes = trial.keys(FIVE | changes)
    if changes.get("engine.name") == "flower":
        del changes["engine.workers"]
    with pytest.raises(UsageError) as refused:
        polyfed.run(changes, out=trial.path(), progress=None)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_real_sites_do_not_attack():
    refuse_attack(make_config({}))
    with pytest.raises(UsageError, match="attack is for simulation; real sites have no attack section"):
        refuse_attack(make_config({"attack": {"name": "noise", "count": 1}}))


def test_they_are_axes_of_a_comparison(tiny, tmp_path):
    flip = {"name": "label-flip", "count": 1}
    attack = ["none", flip, {**flip, "rounds": "never"}]
    tree = {**tiny, "split.clients": 5, "seeds": [0], "attack": attack, "defence": ["none", "median"]}
    found = polyfed.compare(methods=["fedavg"], out=tmp_path / "c", progress=None, **tree)
    told = {(r["threats"]["attack"], r["threats"]["defence"]) for r in found.summaries if "threats" in r}
    assert told == {("none", "median"), ("label-flip", "none"), ("label-flip", "median")}
    lines = csv.DictReader(found.table("csv", columns=["asr"]).splitlines())
    rates = {(line["attack"], line["defence"]): (line["asr mean"], line["asr base mean"]) for line in lines}
    for defence in ("none", "median"):
        assert rates["label-flip count=1", defence][1] == rates["label-flip count=1 rounds=never", defence][0] != ""
        assert rates["none", defence][1] == rates["label-flip count=1 rounds=never", defence][1] == ""


# ---- every method, every attack, every defence

ATTACKS: dict[str, dict[str, Any]] = {
    "label flip": {"attack.name": "label-flip", "attack.count": 1},
    "model replacement": {"attack.name": "label-flip", "attack.count": 1, "attack.boost": "auto"},
}
RULES = [name for name in defences.names() if ":" not in name]
PAIRS = list(itertools.product([name for name in methods.names() if ":" not in name], ATTACKS))
FEW = random.Random(7).sample(PAIRS, 4)
# what servers may do for long
SMALL = {
    "steps": 1,
    "z": 5,
    "head_epochs": 1,
    "head_steps": 1,
    "server_epochs": 1,
    "match_steps": 1,
    "m": 5,
    "draws": 1,
}


def walk(trial, method, attack):
    """One round of a method under attack, merged with every defence; counts those that ran and those refused."""
    base = {**FIVE, "rounds": 1, "split.public": 20, "data.limit": 10, "method.name": method, "gate.median": 1e9}
    base |= {f"method.{key}": value for key, value in SMALL.items() if key in methods.get(method).model_fields}
    base |= {"model.lora.rank": 2} if method == "fedlora" else {}
    try:
        run = trial.run(base | ATTACKS[attack])
        run.prepare()
    except UsageError as refused:
        return 0, _said(refused) * len(RULES)
    run.restore()
    run.server.begin(1)
    accepted, _ = run._train(1, 0, run.roster.select(1, 0))
    assert len(accepted) == 5
    before, ran, refused = state_of(run.server).encode(), 0, 0
    for name in RULES:
        restore_state(run.server, State.decode(before, run.world.resident.layout))
        try:
            rule = defences.build({"name": name} if name == "none" else {"name": name, "f": 1}, "defence")
            run.server.defence = run.defender = (
                None if name == "none" else Defender(rule, run.server, run.world.wire, run.method)
            )
        except UsageError as refusal:
            refused += _said(refusal)
            continue
        run._merge(1, accepted)
        ran += 1
    return ran, refused


def _said(refusal):
    """Counts a refusal that is one sentence."""
    return int(bool(str(refusal)) and "\n" not in str(refusal))


@pytest.mark.parametrize(("method", "attack"), FEW)
def test_some_methods_attacks_and_defences_run_or_are_refused(trial, method, attack):
    with threads(1):
        ran, refused = walk(trial, method, attack)
    assert ran + refused == len(RULES)
    assert ran >= len(RULES) - 1 or refused == len(RULES)


@pytest.mark.slow
def test_all_methods_attacks_and_defences_run_or_are_refused(trial):
    with threads(1):  # two would wait for each other on a busy machine
        found = {pair: walk(trial, *pair) for pair in PAIRS}
    assert all(ran + refused == len(RULES) for ran, refused in found.values())
    assert all(ran >= len(RULES) - 1 for (_, attack), (ran, _) in found.items() if attack == "label flip")
    without = {method for (method, _), (ran, _) in found.items() if ran == 0}
    assert without == {"fedproto", "local"}  # they send no model that could be replaced
