"""PA_cls by default: on the whole global test set where that is cheap beside training, else on a sample of it."""

import math

import numpy as np
import pytest

import polyfed
from polyfed.engine import evaluation
from polyfed.measure.shared import SharedFeatures

RUN = {"rounds": 2, "eval.every": 2, "engine.workers": 0}
WHOLE = 359  # samples in the global test set of digits


@pytest.fixture
def few(monkeypatch):
    """A sample may be small."""
    monkeypatch.setattr(evaluation, "LEAST", 5)


def made(tiny, tmp_path, method, name="run", **changes):
    return polyfed.run(tiny | RUN | {"method": method} | changes, out=tmp_path / name)


def asked(result):
    """How many samples each client was asked about."""
    return set(result.counts()["final_classes"].sum((1, 2)).tolist())


def test_where_the_whole_is_dear_a_sample_is_taken_and_told(tiny, tmp_path, few):
    result = made(tiny, tmp_path, "local")
    assert asked(result) == {50}
    assert result.summary["tested"] == {"global": WHOLE, "personal_classes": 50}
    assert (result.counts()["final_classes"].sum(2) == 5).all(), "equally many of each class"
    assert "PA_cls is measured on 50 of the 359 samples" in (result.path / "log.txt").read_text()
    assert "PA_cls on 50 of the 359 samples of the global test set, equally many of each class: Local" in result.table()


def test_a_shared_body_makes_the_whole_cheap(tiny, tmp_path, few):
    assert asked(made(tiny, tmp_path, "fedper", rounds=6)) == {WHOLE}
    assert asked(made(tiny, tmp_path, "local", "local", rounds=6)) != {WHOLE}


def test_with_enough_training_everybody_is_asked_about_the_whole(tiny, tmp_path, few, monkeypatch):
    monkeypatch.setattr(evaluation, "STEP", 1000)
    result = made(tiny, tmp_path, "local")
    assert asked(result) == {WHOLE} == set(result.summary["tested"].values())
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


@pytest.mark.parametrize(("method", "bodies"), [("fedper", 1), ("local", 4)])
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
