"""A little of `make fuzz` in every test run, the same pieces each time: no traceback, no fault, no hang."""

import json
import time
from itertools import count
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, Phase, given, settings

import fuzz
from fuzz import Fuzzer, Store, Verdict, judge
from hostile import TARGETS, Ground, Said, Target

FEW = {"config": 8, "run": 12, "folder": 8, "site": 6}  # those that train; the others cost little


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    return Ground(tmp_path_factory.mktemp("fuzz"))


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_hostile_is_answered_badly(ground, name):
    @settings(
        max_examples=FEW.get(name, 25),
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(TARGETS[name].pieces)
    def trial(piece):
        verdict = judge(ground, name, piece)
        assert verdict.kind != "bad", f"{verdict.answer}\n{json.dumps(piece)}"

    trial()


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (Said(0, "fine"), "clean"),
        (Said(3, "polyfed: it is corrupt"), "clean"),
        (Said(4, "polyfed: the shared model is not finite"), "failed"),
        (Said(4, "polyfed: a fault in polyfed or a method: KeyError"), "bad"),
        (Said(2, "Traceback (most recent call last)"), "bad"),
        (Said(139, ""), "bad"),
    ],
)
def test_an_answer_is_judged_by_its_code_and_text(ground, monkeypatch, said, kind):
    monkeypatch.setitem(TARGETS, "one", Target(None, lambda *given: said))
    assert judge(ground, "one", {}).kind == kind


def test_what_raises_or_hangs_is_bad(ground, monkeypatch):
    def raises(*given):
        raise KeyError("x")

    def hangs(*given):
        while True:
            pass

    monkeypatch.setitem(TARGETS, "raises", Target(None, raises))
    monkeypatch.setitem(TARGETS, "hangs", Target(None, hangs))
    monkeypatch.setattr(fuzz, "SECONDS", 0.05)
    assert judge(ground, "raises", {}).answer.startswith("KeyError: 'x' (test_fuzz.py:")
    verdict = judge(ground, "hangs", {})
    assert verdict.kind == "bad"
    assert verdict.answer.startswith("Hang: more than 0.")


def test_counts_and_pieces_are_kept_and_the_smallest_of_a_fault(tmp_path, capsys):
    store = Store(tmp_path)
    for number, piece in ((17, "a longer piece"), (4, "short"), (5, "the longest piece of all")):
        store.count("run", Verdict("bad", f"code 4: fault {number}"), {"x": piece})
    store.count("run", Verdict("clean", "fine"), {"x": 1})
    store.save()
    again = Store(tmp_path)
    assert again.total() == {"tried": 4, "clean": 1, "failed": 0, "bad": 3}
    assert sorted(map(json.dumps, again.kept())) == ['["run", {"x": "short"}]', '["run", {"x": 1}]']
    assert capsys.readouterr().out.count("again with: ") == 1


def test_a_sitting_ends_in_time_is_counted_and_another_one_goes_on(tmp_path, ground, monkeypatch):
    """On a clock on which every try takes a second."""
    monkeypatch.setattr(fuzz, "time", SimpleNamespace(monotonic=count().__next__, process_time=time.process_time))
    seen = []
    for minutes in (0.5, 1.5):
        fuzzer = Fuzzer(tmp_path, minutes, ground, "message")
        fuzzer.go()
        fuzzer.store.save()
        seen.append(Store(tmp_path).counts)
    assert [one["targets"]["message"]["tried"] for one in seen] == [30, 90]
    assert [one["seconds"] for one in seen] == [30, 90]
    assert seen[0]["seed"] < seen[1]["seed"], "the second went on with other pieces"
    assert len(Store(tmp_path).kept()) > 1
