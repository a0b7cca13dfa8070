"""Privacy with a budget in whole runs: what is refused, charged, told and repeated."""

import json
import math
from typing import Any

import pytest
import torch

import polyfed
from polyfed.api import config_of
from polyfed.config import deciding, make_config
from polyfed.engine.ledger import charge_site
from polyfed.engine.local import Serial
from polyfed.engine.rounds import Run
from polyfed.engine.selection import drawn, most_appearances
from polyfed.engine.work import Job, World
from polyfed.errors import DataError, Interrupted, RunFailed, UsageError
from polyfed.files import Place
from polyfed.measure.guarantee import privacy_sentence
from polyfed.message import Message
from polyfed.methods.base import methods
from polyfed.threats.accountant import epsilon_of
from polyfed.threats.privacy import SECRET
from polyfed.threats.privacy.dp_sgd import PRESENCE
from polyfed.threats.privacy.noise import secret_generator
from polyfed.threats.privacy.nominal import NOMINAL, Nominal
from trials import StopAfter

pytestmark = pytest.mark.extras
pytest.importorskip("opacus", reason="skipped: no opacus")

DP: dict[str, Any] = {"privacy.name": "dp-sgd", "privacy.noise": 1.0}
KNOWN: dict[str, Any] = {"privacy.classes_known": True}
USER: dict[str, Any] = {
    "privacy.name": "user",
    "privacy.noise": 1.0,
    "privacy.clip": 0.5,
    "sampling": "bernoulli",
    "weighting": "uniform",
}


# ---- none


def test_none_is_as_if_it_were_not_there(trial):
    config = config_of(trial.keys({}))
    assert config.privacy.name == "none"
    assert not [key for key in deciding(config.dump()) if key.startswith("privacy")]
    result = trial.kept({})
    assert "privacy" not in result.summary
    assert not (result.path / "privacy.csv").exists()


# ---- dp-sgd


def test_a_private_run_tells_what_it_spent(trial):
    result = trial.kept(DP)
    told = result.summary["privacy"]
    rows = result.records("privacy")
    held = {k["id"]: k["train"] for k in json.loads((result.path / "federation.json").read_text())["clients"]}
    for client, own in rows.groupby("client"):
        last = own.iloc[-1]
        n = held[int(client)]
        assert last.q == min(1.0, 16 / n)
        assert last.steps == len(own) * math.ceil(n / 16)
        assert last.epsilon == pytest.approx(epsilon_of([(1.0, last.q, int(last.steps))], 1e-5), abs=1e-6)
    assert told["epsilon"] == pytest.approx(rows.epsilon.max(), abs=1e-6)
    assert told["epsilon_mean"] == pytest.approx(rows.groupby("client").epsilon.max().mean(), abs=1e-6)
    assert (told["kind"], told["unit"], told["delta"], told["accountant"]) == ("dp-sgd", "one example", 1e-5, "rdp")
    assert "reports: losses and confusion counts" in told["outside"]


def test_a_hello_tells_no_class_counts(trial):
    run = trial.run(DP)
    run.prepare()
    assert all(known.counts is None and known.n > 0 for known in run.server.clients.values())
    hello = run.world.do(Job("hello", 0, 0), None)
    assert hello.counts == {}


def test_killed_and_resumed_it_has_the_same_bits_and_the_same_epsilon(trial):
    run = trial.run({**DP, "rounds": 4}, watch=StopAfter(2))
    with pytest.raises(Interrupted):
        run.go()
    resumed, whole = polyfed.resume(run.folder.path), trial({**DP, "rounds": 4})
    assert resumed.summary["fingerprint"] == whole.summary["fingerprint"]
    assert resumed.summary["privacy"] == whole.summary["privacy"]
    assert (resumed.path / "privacy.csv").read_bytes() == (whole.path / "privacy.csv").read_bytes()


def test_the_noise_follows_from_the_budget(trial):
    changes = {"privacy.name": "dp-sgd", "privacy.epsilon": 20.0, "train.batch": 64, "participation": 1.0, "rounds": 2}
    told = trial(changes).summary["privacy"]  # every batch is the whole: the noise is found at once
    assert 19.9 < told["epsilon"] <= 20.0


def test_a_budget_that_runs_out_ends_a_clients_part(trial, monkeypatch):
    """The noise is made for one round of each; from the second on nobody who has taken part is asked."""
    monkeypatch.setattr("polyfed.engine.work.most_appearances", lambda config, everybody: 1)
    changes = {"privacy.name": "dp-sgd", "privacy.epsilon": 20.0, "train.batch": 64, "participation": 0.5, "rounds": 4}
    run = trial.run({**changes, "engine.quorum": 0.1})
    with pytest.raises(RunFailed, match="budget spent"):
        run.go()
    rows = run.recorder.folder.path / "training.csv"
    text = rows.read_text()
    assert run.progress.failed["budget spent"] >= 1
    assert "budget spent" in text
    accepted = [line.split(",")[2] for line in text.splitlines()[1:] if ",accepted," in line]
    assert len(accepted) == len(set(accepted))
    assert all(epsilon_of(history, 1e-5) <= 20 for history in run.progress.privacy.values())


def test_a_round_that_is_drawn_again_is_charged_once(trial):
    """Its noise is the same, so that whoever sees it again learns nothing new."""
    changes = {**DP, "faults.dropout": 0.6, "engine.quorum": 1.0, "participation": 1.0, "rounds": 1}
    run = trial.run(changes)
    with pytest.raises(RunFailed, match="below the quorum"):
        run.go()
    per_round = {k: run.ledger._costs[int(k)][2] for k in run.progress.privacy}
    assert {k: history for k, history in run.progress.privacy.items() if history[0][2] > per_round[k]} == {}
    assert len(run.progress.privacy) > 1


def test_private_runs_differ_by_seed_and_not_by_sitting(trial):
    assert trial(DP).summary["fingerprint"] == trial.kept(DP).summary["fingerprint"]
    assert trial({**DP, "seed": 1}).summary["fingerprint"] != trial.kept(DP).summary["fingerprint"]


SEVERAL_FITS = ["fedrep", "ditto-rs", "map", "fedcrc", "sca-map", "fedrod"]


def keeps_to_its_steps(result):
    """Every upload counts, and nobody took more private steps than were paid for."""
    training = result.records("training")
    assert (training.status == "accepted").all(), training.reason.tolist()
    charged = result.records("privacy").merge(training, on=["round", "client"])
    charged["before"] = charged.groupby("client").steps_x.shift(1, fill_value=0)
    assert len(charged) == len(training)
    assert (charged.steps_y > 0).all()
    assert (charged.steps_y <= charged.steps_x - charged.before).all()


@pytest.mark.parametrize("name", SEVERAL_FITS)
def test_methods_keep_to_the_steps_that_they_pay_for(trial, name):
    keeps_to_its_steps(trial({**DP, **KNOWN, "method.name": name, "rounds": 2, "train.epochs": 2}))


@pytest.mark.slow
def test_every_private_method_keeps_to_its_steps(trial):
    for name in (spec.name for spec in methods if spec.__module__.startswith("polyfed.")):
        if name != "local" and name not in SEVERAL_FITS and not any(name.startswith(start) for start in REFUSED):
            adapters = {"model.lora.rank": 2} if name == "fedlora" else {}
            keeps_to_its_steps(trial({**DP, **KNOWN, **adapters, "method.name": name, "rounds": 2, "split.public": 20}))


REFUSED = {
    "creff": "cannot bound 'z' of method 'creff': it is computed from samples",
    "k-cluster": "cannot bound 'choice' of method 'k-cluster'",
    "fedproto": "cannot bound 'prototypes' of method 'fedproto'",
    "distfl": "cannot bound 'statistics' of method 'distfl",
    "mupfl": "cannot bound",
    "fedmmd": "compares samples with each other",
    "per-fedavg": r"its step \(maml\) is not sgd",
    "pfedme": r"its step \(moreau\) is not sgd",
}


def test_every_method_is_private_or_refused_in_a_sentence(trial):
    for name in (spec.name for spec in methods if spec.__module__.startswith("polyfed.")):
        config = config_of(trial.keys({**DP, **KNOWN, "method.name": name}))
        why = next((why for start, why in REFUSED.items() if name.startswith(start)), None)
        if why is not None:
            with pytest.raises(UsageError, match=why):
                World(config)
        else:
            setting = World(config).setting
            assert setting.method.private_steps(20) >= 1, name
            if setting.method.presumes:
                with pytest.raises(UsageError, match="classes_known=true accepts that class presence is not protected"):
                    World(config_of(trial.keys({**DP, "method.name": name})))


def test_who_accepts_that_classes_are_known_reads_it_in_card_and_report(trial, cli):
    result = trial({**DP, **KNOWN, "method.name": "map", "rounds": 1})
    assert any(PRESENCE in outside for outside in result.summary["privacy"]["outside"])
    assert PRESENCE in privacy_sentence(result.summary["privacy"])
    cli("export", str(result.path), "--client", "0", "--out", str(result.path.parent / "shipped"))
    cards = [p.read_text() for p in (result.path.parent / "shipped").rglob("*.md")]
    assert any(PRESENCE in card for card in cards)


def test_what_finish_makes_is_outside_the_guarantee_and_the_card_says_so(trial, cli):
    """A personal head is tuned once more after the last round; FedAvg's models are not."""
    for method, outside in (("fedper", True), ("fedavg", False)):
        result = trial({**DP, "method.name": method, "rounds": 1})
        told = any("models tuned after the last round" in each for each in result.summary["privacy"]["outside"])
        shipped = result.path.parent / f"shipped-{method}"
        cli("export", str(result.path), "--client", "0", "--out", str(shipped))
        card = (shipped / "card.md").read_text()
        assert "epsilon" in card
        assert told is ("outside the guarantee: keep it there" in card) is outside


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model.name": "mlp-bn"}, "needs a model without BatchNorm, which mixes samples: set model=resnet8-gn"),
        ({"method.name": "fedphp", "method.kt": "mmd"}, "compares samples with each other"),
        ({"privacy.delta": 0.1}, r"privacy.delta=0.1 is too large for a client with \d+ samples"),
        ({"privacy.epsilon": 1.0}, "needs either privacy.epsilon"),
        ({"privacy.noise": None}, "needs either privacy.epsilon"),
    ],
)
def test_what_cannot_be_private_is_refused(trial, changes, sentence):
    with pytest.raises(UsageError, match=sentence):
        trial({**DP, **changes})


def test_every_round_has_noise_of_its_own(trial):
    """All samples are in every batch: apart from the noise, a round is like the other."""
    changes = {"train.batch": 64, "train.epochs": 1}
    for noise in ({}, DP):
        world = World(config_of(trial.keys(changes | noise)))
        down = world.method.send(server_of(world), 0)
        one, two = (world.do(Job("train", 0, number, down), None).up["w"] - down["w"] for number in (1, 2))
        assert torch.allclose(one, two, atol=1e-6) is (not noise)


def trained(trial, changes, client=0, secret=False):
    """What a client is sent and sends, and the world it does so in."""
    world = World(config_of(trial.keys(changes)), secret=secret)
    down = world.method.send(server_of(world), client)
    outcome = world.do(Job("train", client, 1, down), None)
    assert not outcome.error, outcome.trace
    return world, down["w"], outcome.up["w"]


def test_the_bound_of_gradients_is_the_one_given(trial):
    """Hardly any noise, and every gradient longer than the bound: ten times the bound is ten times the way."""
    moved = []
    for clip in (1e-5, 1e-4):
        changes = {"privacy.name": "dp-sgd", "privacy.noise": 1e-3, "privacy.clip": clip, "train.batch": 64}
        _, sent, up = trained(trial, {**changes, "train.lr": 100.0, "train.epochs": 1})
        moved.append(float((up - sent).norm()))
    assert moved[1] == pytest.approx(10 * moved[0], rel=0.02)


# ---- between real sites


def test_batches_are_as_secret_as_the_noise(trial):
    for secret, masks in ((True, secret_generator), (False, None)):
        world, down, _ = trained(trial, DP, secret=secret)
        client = world.client(Job("train", 0, 1, Message(w=down)), None)
        assert client.private is not None
        assert client.private.masks is masks


def test_real_sites_draw_secret_noise_and_keep_their_reports(trial):
    config = config_of(trial.keys(DP))
    worlds = [World(config, secret=secret) for secret in (False, False, True, True)]
    jobs = [Job("train", 0, 1, world.method.send(server_of(world), 0), measures=("selected",)) for world in worlds]
    outcomes = [world.do(job, None) for world, job in zip(worlds, jobs, strict=True)]
    assert not any(outcome.error for outcome in outcomes)
    one, two, three, four = (outcome.up["w"] for outcome in outcomes)
    assert torch.equal(one, two)
    assert not torch.equal(three, four)
    assert outcomes[0].counts
    assert outcomes[2].counts == {}
    assert math.isnan(outcomes[2].numbers["loss"])
    assert worlds[2].privacy.facts(worlds[2].setting)["noise"] == SECRET
    told = World(config_of(trial.keys({**DP, "privacy.reports": True})), secret=True)
    assert told.do(jobs[2], None).counts


def server_of(world: World) -> Any:
    from polyfed.methods.base import Server

    return Server(world.resident, world.task, [], "sample", world.method.shared)


def test_a_site_counts_for_itself_and_refuses_when_its_budget_is_spent(trial, tmp_path):
    changes = {"privacy.name": "dp-sgd", "privacy.epsilon": 20.0, "train.batch": 64, "participation": 1.0, "rounds": 2}
    world = World(config_of(trial.keys(changes)), secret=True)
    account, n = Place.of(tmp_path) / "run.privacy.json", len(world.federation.clients[1].train)
    for _ in range(2):
        charge_site(world.privacy, world.setting, n, 1, account)
    kept = account.read_text()
    with pytest.raises(UsageError, match="budget spent: one more round would exceed epsilon=20"):
        charge_site(world.privacy, world.setting, n, 1, account)
    assert account.read_text() == kept
    (tmp_path / "run.privacy.json").write_text('{"1": "much"}')
    with pytest.raises(DataError, match="cannot be read"):
        charge_site(world.privacy, world.setting, n, 1, account)


def test_between_real_sites_a_repeated_round_is_charged_again(trial, monkeypatch):
    def prepared():
        run = trial.run(DP) if not runs else Run(runs[0].config, runs[0].folder, Serial(), runs[0].watch)
        monkeypatch.setattr(run, "make_world", lambda: World(run.config, secret=True))
        run.prepare()
        runs.append(run)
        return run

    runs: list[Run] = []
    first = prepared()
    first.ledger.begins(1)
    first.ledger.charge([0, 1])
    first.ledger.charge([0])  # another attempt
    second = prepared()  # killed before its first checkpoint
    second.ledger.resumes()
    second.ledger.begins(1)
    second.ledger.charge([0, 1])
    per_round = {k: second.ledger._costs[k][2] for k in (0, 1)}
    assert {k: h[0][2] for k, h in second.progress.privacy.items()} == {"0": 3 * per_round[0], "1": 2 * per_round[1]}


# ---- user


def test_user_level_noise_is_on_the_sum_and_missing_clients_are_zero(trial):
    run = trial.run({**USER, "privacy.noise": 2.0})
    run.prepare()
    server, task = run.server, run.world.task
    before = server.shared.copy()
    mean = server.averaged
    assert mean is not None
    noise_alone = mean(server, []).flat - before.flat
    assert float(noise_alone.std()) == pytest.approx(2.0 * 0.5 / (0.5 * task.clients), rel=0.1)
    up = torch.zeros_like(before.flat)
    up[0] = 0.4
    with_one = server.average([run_upload(0, before.flat + up), run_upload(1, before.flat - up)])
    assert torch.allclose(with_one.flat - before.flat, noise_alone, atol=1e-6)
    long = server.average([run_upload(0, before.flat + 100 * up)])
    moved = long.flat - before.flat - noise_alone
    assert float(moved.norm()) == pytest.approx(0.5 / (0.5 * task.clients), rel=1e-3)
    assert any("clipped again" in said for said in server.said)
    server.begin(2)
    later = mean(server, []).flat - before.flat
    assert not torch.isclose(later, noise_alone, rtol=1e-3).all()


def run_upload(client, flat):
    from polyfed.methods.base import Upload

    return Upload(client, 10, Message(w=flat))


def test_a_clients_update_is_clipped_before_it_is_sent(trial):
    changes = {**USER, "privacy.clip": 0.05, "train.lr": 1.0}
    _, sent, up = trained(trial, changes)
    assert float((up - sent).norm()) == pytest.approx(0.05, rel=1e-3)
    _, sent, whole = trained(trial, {**changes, "privacy.clip": 1e6})
    assert float((whole - sent).norm()) > 0.1
    assert torch.nn.functional.cosine_similarity(up - sent, whole - sent, dim=0) == pytest.approx(1, abs=1e-4)


def test_a_user_level_run_counts_rounds(trial):
    result = trial({**USER, "rounds": 4, "participation": 0.3, "method.name": "fedper"})
    told, rows = result.summary["privacy"], result.records("privacy")
    assert told["delta"] == pytest.approx(4**-1.1)
    assert told["epsilon"] == pytest.approx(epsilon_of([(1.0, 0.3, 4)], 4**-1.1))
    assert rows.client.tolist() == [-1] * 4
    assert rows.steps.tolist() == [1, 2, 3, 4]


def test_an_empty_round_adds_noise(trial):
    changes = {**USER, "participation": 0.05, "rounds": 3}
    config = config_of(trial.keys(changes))
    empty = [t for t in (1, 2, 3) if not drawn(config, range(4), t, 0)]
    assert empty
    run = trial.run(changes)
    start = []
    merge = run._merge
    run._merge = lambda number, accepted: (start.append(run.server.shared.digest()), merge(number, accepted))
    run.go()
    assert len({*start, run.server.shared.digest()}) == 4  # every round moved the model
    assert run.progress.privacy == {"-1": [[1.0, 0.05, 3]]}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"sampling": "fixed"}, "set sampling=bernoulli"),
        ({"weighting": "sample"}, "set weighting=uniform"),
        ({"method.name": "scaffold"}, "sends 2 fields, which need a joint bound"),
        ({"method.name": "pfedla"}, "needs more of 'w' than a sum"),
        ({"method.name": "local"}, "asks everybody"),
        ({"model.name": "mlp-bn"}, "without BatchNorm"),
    ],
)
def test_what_the_sum_cannot_protect_is_refused(trial, changes, sentence):
    with pytest.raises(UsageError, match=sentence):
        World(config_of(trial.keys({**USER, **changes})))


def test_personal_norms_are_no_obstacle(trial):
    World(config_of(trial.keys({**USER, "model.name": "mlp-bn", "method.name": "fedbn", "buffers": "local"})))


# ---- nominal


def test_the_nominal_formula():
    level = Nominal(epsilon=0.1)
    assert level.deviation(40) == pytest.approx(0.121120, abs=1e-6)
    assert level.deviation(40) * 0.1 * 40 / 0.1 == pytest.approx(4.844805, abs=1e-6)
    assert Nominal(epsilon=0.1, scale_by_n=False).deviation(40) == pytest.approx(40 * 0.121120, abs=1e-4)


def test_nominal_noise_is_on_clipped_weights_and_promises_nothing(trial):
    changes = {"privacy.name": "nominal", "privacy.epsilon": 1e9, "model.name": "mlp-bn"}
    world = World(config_of(trial.keys(changes)))
    down = world.method.send(server_of(world), 0)
    outcome = world.do(Job("train", 0, 1, down), None)
    plain = World(config_of(trial.keys({"model.name": "mlp-bn"}))).do(Job("train", 0, 1, down), None)
    count = world.resident.layout.n_weights
    update = outcome.up["w"] - down["w"]
    assert float(update[:count].norm()) == pytest.approx(0.1, rel=1e-4)
    assert float((plain.up["w"] - down["w"])[:count].norm()) > 0.2
    assert torch.equal(outcome.up["w"][count:], plain.up["w"][count:])
    assert len(outcome.up["w"]) > count
    told = trial({"privacy.name": "nominal", "privacy.epsilon": 0.5}).summary["privacy"]
    assert told["nominal"] == 0.5
    assert "epsilon" not in told
    assert NOMINAL in told["outside"]


def test_nominal_noise_has_the_size_of_the_formula_and_is_keyed(trial):
    changes = {"privacy.name": "nominal", "privacy.epsilon": 0.1, "train.lr": 1e-9}
    noise = {}
    for client in (0, 1):
        world, sent, up = trained(trial, changes, client)
        noise[client] = up - sent
        level = Nominal(epsilon=0.1).deviation(len(world.federation.clients[client].train))
        assert float(noise[client].std()) == pytest.approx(level, rel=0.05)
    assert not torch.isclose(noise[0] / noise[0].std(), noise[1] / noise[1].std(), rtol=1e-3).all()
    later = world.do(Job("train", 1, 2, Message(w=sent)), None).up["w"]
    assert not torch.isclose(later - sent, noise[1], rtol=1e-3).all()


def test_nominal_clipping_after_every_step(trial):
    changes = {"privacy.name": "nominal", "privacy.epsilon": 1e9, "privacy.per_step": True, "train.epochs": 3}
    world = World(config_of(trial.keys(changes)))
    down = world.method.send(server_of(world), 0)
    client = world.client(Job("train", 0, 1, down), None)
    world.method.train(client)
    assert float((client.live.weights - client.received.w.weights).norm()) <= 0.1 + 1e-5


# ---- selection


def test_most_appearances_counts_attempts_nobody_repeats():
    config = make_config({"rounds": 10, "participation": 0.5})
    counts = [sum(k in drawn(config, range(6), t, 0) for t in range(1, 11)) for k in range(6)]
    assert most_appearances(config, range(6)) == max(counts) < 10
    assert most_appearances(make_config({"rounds": 10}), range(6)) == 10
