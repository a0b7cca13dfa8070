"""PA_cls and GA by default: on the whole global test set where that is cheap beside training, else on a sample."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import polyfed
from polyfed.data.samples import Pool, Samples
from polyfed.engine import asked as sizes
from polyfed.measure.shared import SharedFeatures
from polyfed.report.kinds.curves import against_rounds
from polyfed.report.runs import select

RUN = {"rounds": 2, "eval.every": 2, "engine.workers": 0}
WHOLE = 359  # samples in the global test set of digits


@pytest.fixture
def few(monkeypatch):
    """A sample may be small."""
    monkeypatch.setattr(sizes, "LEAST", 5)


def made(tiny, tmp_path, method, name="run", **changes):
    return polyfed.run(tiny | RUN | {"method": method} | changes, out=tmp_path / name)


def asked(result):
    """How many samples each client was asked about."""
    return set(result.counts()["final_classes"].sum((1, 2)).tolist())


def test_where_the_whole_is_dear_a_sample_is_taken_and_told(tiny, tmp_path, few):
    result = made(tiny, tmp_path, "local")
    assert asked(result) == {50}
    assert result.summary["tested"] == {"global": WHOLE, "global_between": 0, "personal_classes": 50}
    assert (result.counts()["final_classes"].sum(2) == 5).all(), "equally many of each class"
    assert "PA_cls is measured on 50 of the 359 samples" in (result.path / "log.txt").read_text()
    assert "PA_cls on 50 of the 359 samples of the global test set, equally many of each class: Local" in result.table()


def test_a_shared_body_makes_the_whole_cheap(tiny, tmp_path, few):
    assert asked(made(tiny, tmp_path, "fedper", rounds=6)) == {WHOLE}
    assert asked(made(tiny, tmp_path, "local", "local", rounds=6)) != {WHOLE}


def test_fedcrcs_personal_heads_share_a_body_too(tiny, tmp_path, few):
    assert asked(made(tiny, tmp_path, "fedcrc", rounds=6)) == {WHOLE}
    for own in ({"method.per_body": "local"}, {"buffers": "local", "model.name": "resnet8"}):
        assert asked(made(tiny, tmp_path, "fedcrc", "-".join(own), rounds=6, **own)) != {WHOLE}


def test_with_enough_training_everybody_is_asked_about_the_whole(tiny, tmp_path, few, monkeypatch):
    monkeypatch.setattr(sizes, "STEP", 1000)
    result = made(tiny, tmp_path, "local")
    assert asked(result) == {WHOLE}
    assert result.summary["tested"] == {"global": WHOLE, "global_between": 0, "personal_classes": WHOLE}
    assert "PA_cls" not in (result.path / "log.txt").read_text() + result.table()


def test_a_sample_that_would_be_the_whole_is_the_whole(tiny, tmp_path):
    """Digits have fewer test samples of each class than a sample has at least."""
    assert asked(made(tiny, tmp_path, "local")) == {WHOLE}


def test_who_asks_for_all_gets_all_and_who_asks_for_none_gets_none(tiny, tmp_path, few):
    assert asked(made(tiny, tmp_path, "local", **{"eval.classes": True})) == {WHOLE}
    none = made(tiny, tmp_path, "local", "none", **{"eval.classes": False})
    assert none.summary["personal_classes"] is None
    assert none.summary["tested"]["personal_classes"] == 0
    assert "final_classes" not in none.counts()


def test_the_sample_and_its_numbers_do_not_depend_on_the_workers(tiny, tmp_path, few):
    one, two = (made(tiny, tmp_path, "fedper", f"{n}", **{"engine.workers": n, "split.clients": 6}) for n in (0, 2))
    assert asked(one) != {WHOLE}, "or nothing is shown"
    assert one.summary["personal_classes"] == two.summary["personal_classes"]
    for name, table in one.counts().items():
        assert np.array_equal(table, two.counts()[name]), name


# the server measures the global model of FedCRC and ECL with a body of its own; all experts of ECL share one trunk
SHARING = {"fedper": 1, "fedrep": 1, "fedcrc": 2, "creff": 1, "ecl": 2, "local": 4}


@pytest.mark.parametrize(("method", "bodies"), SHARING.items())
def test_a_body_that_all_share_is_asked_once(tiny, tmp_path, monkeypatch, method, bodies):
    """Found by its values alone."""
    kept = []
    keep = SharedFeatures._keep
    monkeypatch.setattr(SharedFeatures, "_keep", lambda self, table, x: kept.append(x) or keep(self, table, x))
    result = made(tiny, tmp_path, method, **{"eval.classes": True, "eval.batch": 50})
    assert result.summary["clients"] == 4
    assert len(kept) == bodies * math.ceil(WHOLE / 50)


def test_nothing_of_an_evaluation_is_left_in_the_next_round(tiny, tmp_path, monkeypatch):
    held = []
    begin = SharedFeatures.begin

    def watched(self, what):
        begin(self, what)
        if what[0] == "train":
            held.append(self._held)

    monkeypatch.setattr(SharedFeatures, "begin", watched)
    made(tiny, tmp_path, "fedavg", **{"eval.every": 1})
    assert held
    assert set(held) == {0}


# ---- GA after every round but the last


@pytest.fixture
def sampled(monkeypatch):
    """A sample of GA may be small, and training counts for next to nothing."""
    monkeypatch.setattr(sizes, "FEWEST", 40)
    monkeypatch.setattr(sizes, "LEAST", 5)
    monkeypatch.setattr(sizes, "BETWEEN", 1e-6)


def global_rows(result):
    found = result.records("rounds")
    return found[found["measure"] == "global"]


def test_ga_is_sampled_between_rounds_and_whole_in_the_end_and_says_so(tiny, tmp_path, sampled):
    keys = {"rounds": 3, "eval.every": 1, "eval.classes": False}
    result = made(tiny, tmp_path, "fedavg", **keys)
    whole = made(tiny, tmp_path, "fedavg", "whole", **keys, **{"eval.ga": "all"})
    assert global_rows(result)["samples"].tolist() == [50, 50, WHOLE]
    assert global_rows(whole)["samples"].tolist() == [WHOLE] * 3
    assert result.summary["tested"]["global_between"] == 50
    assert result.summary["global"] == whole.summary["global"], "what a run ends with is measured on the whole"
    assert result.summary["fingerprint"] == whole.summary["fingerprint"]
    told = "GA before the last round on 50 of the 359 samples of the global test set, in the end on all: FedAvg"
    assert told in result.table()
    assert "GA before" not in whole.table()
    log = (result.path / "log.txt").read_text()
    assert log.count("GA is measured on 50 of the 359 samples") == 1


def test_the_curve_says_what_it_was_measured_on(tiny, tmp_path, sampled):
    keys = {"rounds": 3, "eval.every": 1, "eval.classes": False}
    result = made(tiny, tmp_path, "fedavg", **keys)
    whole = made(tiny, tmp_path, "fedavg", "whole", **keys, **{"eval.ga": "all"})
    for run, told in ((result, True), (whole, False)):
        chart = against_rounds(select([run.path]))
        notes = [panel.note for panel in chart.panels]
        assert any("on 50 of 359 test samples" in note for note in notes) == told


@pytest.mark.parametrize("count", [37, 100, 1000])
def test_who_asks_for_so_many_samples_gets_them(tiny, tmp_path, count):
    result = made(tiny, tmp_path, "fedavg", **{"eval.every": 1, "eval.ga": count, "eval.classes": False})
    assert global_rows(result)["samples"].tolist() == [min(count, WHOLE), WHOLE]


@pytest.mark.parametrize("changes", [{"split.val": 0.2}, {"attack.name": "noise", "attack.count": 1}, {}])
def test_where_the_whole_is_a_result_or_asked_anyway_it_is_taken(tiny, tmp_path, sampled, changes):
    result = made(tiny, tmp_path, "fedavg", **{"eval.every": 1, "eval.classes": False}, **changes)
    assert (global_rows(result)["samples"] == WHOLE).all() == bool(changes)


def test_few_test_samples_are_always_asked_about_all(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(sizes, "BETWEEN", 1e-6)
    result = made(tiny, tmp_path, "fedavg", **{"eval.every": 1, "eval.classes": False})
    assert (global_rows(result)["samples"] == WHOLE).all()


def test_a_test_sample_has_the_same_share_of_every_class():
    y = np.repeat([0, 1, 2], [100, 50, 3])
    split = SimpleNamespace(global_test=np.arange(len(y)))
    pool = Pool(torch.zeros(len(y), 1), torch.from_numpy(y))
    data: Any = SimpleNamespace(split=split, dataset=SimpleNamespace(labels=y), classes=3)
    data.view = lambda rows: Samples(pool, torch.from_numpy(rows))
    drawn = sizes.test_sample(data, 17, seed=0).y.numpy()
    assert np.bincount(drawn, minlength=3).tolist() == [11, 5, 1]
    assert np.array_equal(drawn, sizes.test_sample(data, 17, seed=0).y.numpy())
    rows = [sizes.test_sample(data, 17, seed).rows.tolist() for seed in (0, 1)]
    assert rows[0] != rows[1]
