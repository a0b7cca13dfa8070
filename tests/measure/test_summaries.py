"""What runs report: numbers that have one name each, from the clients they are about, at the round they are of."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import polyfed
from polyfed.api import running
from polyfed.data.federation import Federation
from polyfed.engine import evaluation
from polyfed.engine.checkpoint import Progress
from polyfed.measure.recorder import Recorder
from polyfed.measure.seconds import PHASES, Stopwatch

RUN = {"rounds": 3, "participation": 0.5, "split.alpha": 0.5}
NUMBERS = {"accuracy", "std", "worst10", "best10", "balanced", "head", "mid", "tail"}


@pytest.fixture(scope="module")
def made(tiny, tmp_path_factory):
    """Runs by their changes, each made once."""
    base, found = tmp_path_factory.mktemp("runs"), {}

    def make(**changes):
        key = json.dumps(changes, sort_keys=True)
        if key not in found:
            found[key] = polyfed.run(tiny | RUN | changes, out=base / str(len(found)))
        return found[key]

    return make


def at(result, round, measure):
    """A row of rounds.csv without its place."""
    rows = result.rounds
    row = rows[(rows["round"] == round) & (rows["measure"] == measure)]
    assert len(row) == 1
    return {k: None if np.isnan(v) else v for k, v in row.iloc[0].items() if k in NUMBERS}


@pytest.mark.parametrize("method", ["fedavg", "fedper", "fedavg-ft", "local"])
def test_the_summary_has_its_fields_and_is_strict_json(made, method):
    result = made(method=method)
    text = (result.path / "summary.json").read_text()
    summary = json.loads(text, parse_constant=pytest.fail)
    for part in ("personal", "personal_before", "personal_selected", "personal_classes"):
        assert summary[part].keys() >= NUMBERS, part
        assert 0 <= summary[part]["worst10"] <= summary[part]["accuracy"] <= summary[part]["best10"] <= 1
    assert summary["untested"] == 0
    assert set(summary["bytes"]) == {"up", "down", "eval"}
    assert set(summary["seconds"]) == {"total", *PHASES}
    assert (summary["rejected"], summary["failed"], summary["lost"]) == ({}, {}, [])
    assert (summary["method"], summary["clients"], summary["rounds"]) == (method, 4, 3)


def test_the_phases_of_a_run_add_up_to_its_seconds(made):
    """The last evaluation too: `fedavg-ft` measures everything once more after its finish."""
    seconds = made(method="fedavg-ft").summary["seconds"]
    assert sum(seconds[phase] for phase in PHASES) == pytest.approx(seconds["total"], rel=0.02)
    assert all(seconds[phase] > 0 for phase in PHASES)


def test_the_last_evaluation_is_counted(made, monkeypatch):
    """A clock that moves only while PA_cls is measured stands still in every other phase."""
    now = [0.0]
    monkeypatch.setattr(Stopwatch.__init__, "__defaults__", (lambda: now[0],))
    asked = evaluation.asked_classes
    monkeypatch.setattr(evaluation, "asked_classes", lambda run: (now.__setitem__(0, now[0] + 5), asked(run))[1])
    seconds = made(method="fedper", rounds=2).summary["seconds"]
    assert seconds == dict.fromkeys(PHASES, 0) | {"total": 5, "eval": 5}


def test_reading_the_data_is_part_of_the_set_up(made, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(Stopwatch.__init__, "__defaults__", (lambda: now[0],))
    rehearse = running.rehearse
    monkeypatch.setattr(running, "rehearse", lambda config: (now.__setitem__(0, now[0] + 7), rehearse(config))[1])
    seconds = made(method="fedavg", rounds=2).summary["seconds"]
    assert seconds == dict.fromkeys(PHASES, 0) | {"total": 7, "setup": 7}


def test_a_method_with_a_personal_part_has_no_global_model(made):
    for method, has in (("fedavg", True), ("fedavg-ft", True), ("fedper", False), ("local", False)):
        summary = made(method=method).summary
        assert (summary["global"] is not None) is has, method
        assert (summary["global_local"] is not None) is has, method


def test_fedavg_answers_with_its_global_model_everywhere(made):
    summary = made(method="fedavg").summary
    assert summary["global_local"] == summary["personal"] == summary["personal_before"]


def test_fedavg_ft_before_and_after_finish(made):
    tuned, plain = made(method="fedavg-ft").summary, made(method="fedavg").summary
    assert tuned["personal_before"] == tuned["global_local"] == plain["personal"]
    assert tuned["global"] == plain["global"]
    assert tuned["personal"] != tuned["personal_before"]
    assert tuned["personal"]["accuracy"] > tuned["personal_before"]["accuracy"], "ten epochs on its own data help"


@pytest.mark.parametrize("method", ["fedavg", "fedper", "fedavg-ft", "local"])
def test_masked_pa_cls_is_never_below_the_plain_one(made, method):
    classes = made(method=method)["personal_classes"]
    assert classes["masked"]["accuracy"] >= classes["accuracy"]
    assert classes["masked"]["worst10"] >= classes["worst10"]
    counts = made(method=method).counts()
    diagonal, masked = (np.diagonal(counts[f"final_{k}"], axis1=1, axis2=2) for k in ("classes", "classes_masked"))
    federation = polyfed.federation(made(method=method).config)
    for k, client in enumerate(federation.clients):
        own = client.counts.nonzero().flatten().numpy()
        assert (masked[k][own] >= diagonal[k][own]).all(), "class by class"


@pytest.mark.parametrize(("name", "number"), [("classes", "accuracy"), ("classes_masked", "masked.accuracy")])
def test_pa_cls_by_hand(made, name, number):
    result = made(method="fedper")
    tables = result.counts()[f"final_{name}"]
    federation = polyfed.federation(result.config)
    each = []
    for k, client in enumerate(federation.clients):
        own = client.counts.nonzero().flatten().tolist()
        each.append(np.mean([tables[k][c, c] / tables[k][c].sum() for c in own]))
    assert result[f"personal_classes.{number}"] == pytest.approx(np.mean(each))
    assert result["personal_classes.accuracy"] < result["personal_classes.masked.accuracy"], "or it would not show"


ALL = {"split.clients": 6, "split.heldout": 2, "split.val": 0.2}
EACH_ROUND = {"personal", "personal_selected"}


@pytest.mark.parametrize(
    ("method", "shared"), [("fedavg-ft", {"global_local"}), ("fedavg", {"global_local"}), ("fedper", set())]
)
def test_every_measure_is_recorded_under_its_name(made, method, shared):
    """The global model on the clients' tests is global_local: `global` is its result on the global test set alone."""
    result = made(method=method, **ALL)
    everywhere = {"global"} if shared else set()

    def names(table, round):
        rows = result.records(table)
        return set(rows[rows["round"] == round]["measure"])

    for round in (1, 2, 3):
        assert names("rounds", round) == EACH_ROUND | shared | everywhere
        assert names("clients", round) == EACH_ROUND | shared | {"val"}
        assert names("classes", round) == EACH_ROUND | shared | {"val"} | everywhere
    for table in ("rounds", "clients", "classes"):
        assert names(table, 4) == {"personal_final", "heldout"}


def test_a_measure_is_of_the_model_and_the_samples_its_name_says(made):
    result = made(method="fedavg-ft", **ALL)
    federation = polyfed.federation(result.config)
    last = result.clients[result.clients["round"] == 3].set_index(["measure", "client"])
    for k in federation.participants:
        data = federation.clients[k]
        model = result.global_model()
        for measure, samples in (("global_local", data.test), ("personal", data.test), ("val", data.val)):
            row = last.loc[measure, k]
            assert row["samples"] == len(samples)
            raw = federation.dataset.x[samples.rows.numpy()]
            right = (model.predict(raw) == samples.y.numpy()).mean()
            assert row["accuracy"] == pytest.approx(right), measure
    final = result.clients[result.clients["round"] == 4].set_index(["measure", "client"])
    for k in range(6):
        data = federation.clients[k].test
        measure = "heldout" if k in federation.heldout else "personal_final"
        right = (result.client(k).predict(federation.dataset.x[data.rows.numpy()]) == data.y.numpy()).mean()
        assert final.loc[measure, k]["accuracy"] == pytest.approx(right)


def test_the_last_round_is_reported_not_the_best(made):
    result = made(method="fedavg", rounds=5, **{"train.lr": 0.5})
    assert result["global"].items() <= at(result, 5, "global").items()
    assert result["personal_before"] == at(result, 5, "personal")
    assert result["personal_selected"] == at(result, 5, "personal_selected")
    assert result["personal"] == at(result, 6, "personal_final")
    assert result.round_of_arrival(0.0) == 1
    assert result.round_of_arrival(2.0) is None
    curve = result.rounds[result.rounds["measure"] == "global"]
    first = curve[curve["accuracy"] >= curve["accuracy"].max()]["round"].iloc[0]
    assert result.round_of_arrival(curve["accuracy"].max()) == first


def test_pa_sel_is_over_the_clients_of_the_last_round(made):
    result = made(method="fedper")
    training = result.records("training")
    selected = set(training[training["round"] == 3]["client"])
    rows = result.clients[(result.clients["round"] == 3) & (result.clients["measure"] == "personal_selected")]
    assert set(rows["client"]) == selected
    assert len(selected) == 2
    assert result["personal_selected.accuracy"] == pytest.approx(rows["accuracy"].mean())


def test_head_mid_and_tail_follow_the_training_counts_of_the_federation(made):
    result = made(method="fedavg", **{"split.longtail": 10})
    federation = polyfed.federation(result.config)
    counts = sum(c.counts for c in federation.clients).tolist()
    order = sorted(range(10), key=lambda c: (-counts[c], c))
    table = result.counts()["global"]
    recall = np.diagonal(table) / table.sum(1)
    for group, members in (("head", order[:4]), ("mid", order[4:7]), ("tail", order[7:])):
        assert result[f"global.{group}"] == pytest.approx(recall[members].mean())


@pytest.mark.parametrize("method", ["fedavg", "fedper", "local"])
def test_held_out_clients_never_train(made, method):
    result = made(method=method, **{"split.clients": 6, "split.heldout": 2})
    heldout = set(polyfed.federation(result.config).heldout)
    assert len(heldout) == 2
    training = result.records("training")
    assert not heldout & set(training["client"])
    clients = result.clients
    assert set(clients[clients["measure"] == "heldout"]["client"]) == heldout
    assert not heldout & set(clients[clients["measure"] != "heldout"]["client"])
    assert result["heldout"].keys() == result["personal"].keys()


def test_the_data_of_held_out_clients_do_not_matter_to_training(made, tiny, monkeypatch, tmp_path):
    """Their samples replaced by noise, the shared model is the same to the bit."""
    changes = {"method": "fedavg", "split.clients": 6, "split.heldout": 2}
    real, touched = Federation._client, []

    def noisy(self, k):
        if k not in self.heldout:
            return real(self, k)
        touched.append(k)
        self.pool = replace(self.pool, x=self.pool.x.clone())  # the original is shared by every run of this process
        data = real(self, k)
        self.pool.x[data.train.rows] = 255 - self.pool.x[data.train.rows]
        return data

    expected = made(**changes).fingerprint
    monkeypatch.setattr(Federation, "_client", noisy)
    monkeypatch.setattr("polyfed.engine.work._recent", {})
    found = polyfed.run(tiny | RUN | changes, out=tmp_path / "run").fingerprint
    monkeypatch.setattr("polyfed.engine.work._recent", {})
    assert len(touched) == 2
    assert found == expected


def test_clients_without_test_samples_are_left_out_and_counted(tiny, tmp_path):
    """n = 1 is training only: nothing to be tested on."""
    draw = np.random.default_rng(0)
    folder = tmp_path / "data"
    for name, n in (("one", 1), ("two", 40), ("three", 30), ("four", 1)):
        folder.mkdir(exist_ok=True)
        y = draw.integers(0, 3, n)
        y[:1] = 0
        np.savez(_made(folder / name) / "data.npz", x=draw.normal(size=(n, 5)).astype(np.float32), y=y)
    changes = {"data.name": "folder", "data.root": str(folder), "split.partition": "users", "data.limit": None}
    keys = {k: v for k, v in (tiny | RUN | changes).items() if k not in ("split.clients", "split.alpha")}
    result = polyfed.run(keys, out=tmp_path / "run")
    assert result["untested"] == 2
    final = result.clients[result.clients["measure"] == "personal_final"]
    assert sorted(final["samples"] == 0) == [False, False, True, True]
    assert result["personal.accuracy"] == pytest.approx(final["accuracy"].dropna().mean())
    assert final["accuracy"].isna().sum() == 2


def _made(path):
    path.mkdir()
    return path


def test_the_validated_round_is_the_best_on_validation_data(made):
    result = made(method="fedavg", rounds=6, **{"split.val": 0.2, "train.lr": 0.6, "split.clients": 3, "seed": 2})
    rows = result.clients[result.clients["measure"] == "val"]
    by_round = rows.groupby("round")["accuracy"].mean()
    chosen = result["validated"]
    assert chosen["round"] == by_round.idxmax(), "the first of the best"
    assert chosen["val"] == pytest.approx(by_round.max())
    assert chosen["personal"] == at(result, chosen["round"], "personal")
    assert chosen["global"].items() <= at(result, chosen["round"], "global").items()
    assert result["personal_before"] == at(result, 6, "personal"), "the last round stays the last"


def test_the_best_test_round_is_not_chosen(tmp_path):
    """Validation is best in rounds 2 and 3, test in rounds 1 and 4: round 2 it is, with its own test accuracy."""
    curves = {"val": {1: 2, 2: 7, 3: 7, 4: 5}, "personal": {1: 9, 2: 3, 3: 4, 4: 10}}

    class Made(evaluation.Evaluation):
        def _clients(self, kind, round, *rest):
            return {m: {0: np.array([[at[round], 10 - at[round]], [0, 0]])} for m, at in curves.items()}

        def _measured_clients(self, round): ...

        def _measures(self): ...

    groups = {"head": [0], "mid": [1], "tail": []}
    recorder = Recorder(tmp_path, groups, {0: "zero"})
    nobody = SimpleNamespace(measure=lambda *given: None)
    world = SimpleNamespace(adversary=None)
    run = SimpleNamespace(progress=Progress(), recorder=recorder, clock=Stopwatch(), attacked=nobody, world=world)
    made = Made(run, groups)
    for round in (1, 2, 3, 4):
        made.after_round(round)
    best = run.progress.best
    assert (best["round"], best["val"], best["personal"]["accuracy"]) == (2, 0.7, 0.3)
    assert run.progress.last["personal"]["accuracy"] == 1.0


def test_without_validation_data_no_round_is_chosen(made):
    assert made(method="fedavg")["validated"] is None


def test_evaluating_some_clients_takes_the_same_ones_every_time(made):
    result = made(method="fedavg", **{"eval.clients": 2})
    rows = result.clients[result.clients["measure"] == "personal"]
    each = rows.groupby("round")["client"].agg(tuple)
    assert each.nunique() == 1
    assert len(each[1]) == 2
    final = result.clients[result.clients["measure"] == "personal_final"]
    assert len(final) == 4, "in the end everybody"


def test_evaluating_every_third_round_and_the_last(made):
    result = made(method="fedavg", rounds=5, **{"eval.every": 3})
    assert sorted(set(result.rounds["round"])) == [3, 5, 6]
    assert result["global"].items() <= at(result, 5, "global").items()


def test_steps_and_samples_in_the_record_are_what_was_done(made):
    result = made(method="fedavg")
    federation = polyfed.federation(result.config)
    for row in result.records("training").itertuples():
        n = len(federation.clients[row.client].train)
        assert (row.samples, row.steps) == (n, -(-n // 16))
