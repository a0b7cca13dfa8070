"""Whole runs with one client of four that lies: it is named, the run finishes, and the others do not suffer."""

import math

import numpy as np
import pytest
import torch

import polyfed
from polyfed.errors import RunFailed
from trials import StopAfter

ALL = {"participation": 1.0, "split.val": 0.2}
FEATURES = {"method.m": 5, "method.match_steps": 5, "method.draws": 2}
METHODS = {
    "fedavg": {},
    "scaffold": {},
    "k-cluster": {},
    "creff": FEATURES | {"method.head_epochs": 5},
    "mupfl": FEATURES | {"method.tau": 2},
    "distfl": {"method.steps": 5, "method.z": 10, "method.warmup_rounds": 0},
    "fedproto": {},
    "pfedla": {},
}


def keys(method="fedavg", **more):
    return ALL | {"method.name": method} | METHODS[method] | more


def accuracy(result):
    """Of the honest clients after the last round."""
    table = result.records("clients")
    last = table[(table["measure"] == "personal_final") & (table["client"] != 1)]
    assert set(last["client"]) == {0, 2, 3}
    return (last["accuracy"] * last["samples"]).sum() / last["samples"].sum()


@pytest.fixture(scope="module")
def without(trial, crews):
    """The same runs in which the liar never trains."""
    kept = {}

    def fails(outcome, kind):
        if kind == "train":
            outcome.error = "absent on purpose"

    def get(method="fedavg"):
        if method not in kept:
            kept[method] = trial(keys(method), crews.lying(work=fails))
        return kept[method]

    return get


def same_as_without(result, reference):
    """The liar touched nothing."""
    assert result.fingerprint == reference.fingerprint
    assert abs(accuracy(result) - accuracy(reference)) < 0.02


# ---- hellos

HELLOS = {
    "n=-1000000": lambda o: o.numbers.update(n=-(10**6)),
    "n=10^15": lambda o: o.numbers.update(n=10**15),
    "n='x'": lambda o: o.numbers.update(n="x"),
    "n=True": lambda o: o.numbers.update(n=True),
    "n=nan": lambda o: o.numbers.update(n=math.nan),
    "n=3.5": lambda o: o.numbers.update(n=3.5),
    "n other than its counts": lambda o: o.numbers.update(n=o.numbers["n"] + 1),
    "no n": lambda o: o.numbers.pop("n"),
    "more words": lambda o: o.numbers.update(greeting="hi"),
    "a name without end": lambda o: o.numbers.update(name="x" * 10**5),
    "tests=-1": lambda o: o.numbers.update(tests=-1),
    "another model": lambda o: o.numbers.update(params="0" * 64),
    "a digest that is none": lambda o: o.numbers.update(layout="../../etc"),
    "counts of other classes": lambda o: o.counts.update(train=np.append(o.counts["train"], 0)),
    "counts as a table": lambda o: o.counts.update(train=o.counts["train"][None]),
    "counts as floats": lambda o: o.counts.update(train=o.counts["train"].astype(float)),
    "counts as text": lambda o: o.counts.update(train="many"),
    "negative counts": lambda o: o.counts.update(train=o.counts["train"] + np.array([9, -9] + [0] * 8)),
    "counts that overflow": lambda o: o.counts.update(train=np.full(10, 2**62)),
    "other test counts": lambda o: o.counts.update(test=o.counts["test"] + 1),
    "counts of something else": lambda o: o.counts.update(secret=o.counts["test"]),
}


@pytest.mark.parametrize("lie", HELLOS)
def test_who_lies_in_its_hello_is_excluded_and_named(trial, crews, without, lie):
    result = trial(keys(), crews.lying(hello=HELLOS[lie]))
    assert list(result.summary["excluded"]) == ["1"]
    assert result.summary["excluded"]["1"].startswith("in its hello ")
    assert len(result.summary["excluded"]["1"]) < 500
    assert (result.summary["rejected"], result.summary["failed"]) == ({}, {})
    log = (result.path / "log.txt").read_text()
    assert log.count(" is excluded: ") == log.count("client 1 (") == 1
    same_as_without(result, without())


def test_weights_are_those_of_the_hello_whatever_is_said_later(trial, crews):
    def boast(outcome, kind):
        outcome.numbers["samples"] = 10**12

    honest, boasting = trial.kept(keys()), trial(keys(), crews.lying(work=boast))
    assert boasting.fingerprint == honest.fingerprint
    assert honest.fingerprint != trial.kept(keys() | {"weighting": "uniform"}).fingerprint


def test_a_federation_of_liars_fails_with_a_sentence(trial, crews):
    crew = crews.lying(hello=HELLOS["n='x'"])
    crew.who = type("Most", (), {"__eq__": lambda self, client: client != 0, "__hash__": None})()
    with pytest.raises(
        RunFailed, match=r"round 1: 3 of 4 clients are excluded.*quorum \(0\.5\).*in its hello n is 'x'"
    ):
        trial(keys(), crew)


# ---- reports


def table_of(measure, change):
    """A lie about one measure, wherever it is told."""

    def lie(outcome, kind):
        if measure in outcome.counts:
            outcome.counts[measure] = change(outcome.counts[measure])

    return lie


def words_of(**words):
    return lambda outcome, kind: outcome.numbers.update(words)


def more_counts(outcome, kind):
    outcome.counts["../../x"] = np.zeros((10, 10), np.int64)


def moved(table):
    """The same samples, some of another class."""
    made = table.copy()
    full = int(np.argmax(made.sum(1)))
    made[full, np.argmax(made[full])] -= 1
    made[(full + 1) % 10, 0] += 1
    return made


REPORTS = {
    "counts of another shape": table_of("personal", lambda t: t[:-1]),
    "counts as floats": table_of("personal", lambda t: t / 2),
    "negative counts": table_of("personal", lambda t: t - 1),
    "more samples than it has": table_of("personal", lambda t: t + 1),
    "other samples than it has": table_of("personal", moved),
    "nothing at all": table_of("personal", lambda t: t * 0),
    "a validation set that grew": table_of("val", lambda t: 2 * t),
    "flattering selected counts": table_of("selected", lambda t: np.eye(10, dtype=np.int64) * t.sum()),
    "counts nobody asked for": more_counts,
    "steps=-1": words_of(steps=-1),
    "steps='many'": words_of(steps="many"),
    "seconds=inf": words_of(seconds=math.inf),
    "a word of its own": words_of(model=[1.0, 2.0]),
}


@pytest.mark.parametrize("lie", REPORTS)
def test_who_reports_what_cannot_be_is_excluded_and_named(trial, crews, without, lie):
    result = trial(keys(), crews.lying(work=REPORTS[lie]))
    assert list(result.summary["excluded"]) == ["1"]
    assert result.summary["excluded"]["1"].startswith("in round 1 ")
    assert sum(result.summary["failed"].values()) == 1
    assert "client 1 (" in (result.path / "log.txt").read_text()
    assert abs(accuracy(result) - accuracy(without())) < 0.02


def test_errors_are_kept_as_far_as_a_log_should_hold_them(trial, crews):
    def scream(outcome, kind):
        outcome.error, outcome.numbers = "\x1b[2Jhelp\n" + "x" * 10**6, {"seconds": "never"}

    result = trial(keys(), crews.lying(work=scream))
    log = (result.path / "log.txt").read_text()
    assert "\x1b" not in log
    assert len(log) < 50_000


def test_a_liar_stays_excluded_after_a_resume_and_the_bits_are_the_same(trial, crews):
    def lie(outcome, kind):
        if kind == "evaluate":
            outcome.counts["personal"] = outcome.counts["personal"] + 1

    whole = trial(keys(rounds=4), crews.lying(work=lie))
    half = trial.run(keys(rounds=4), crews.lying(work=lie), watch=StopAfter(2))
    with pytest.raises(polyfed.errors.Interrupted):
        half.go()
    resumed = polyfed.resume(half.folder.path)  # honest from now on, but nobody believes it
    assert resumed.summary["excluded"] == whole.summary["excluded"]
    assert resumed.fingerprint == whole.fingerprint


# ---- fields


def field(name, change):
    def spoil(outcome, kind):
        if kind == "train" and name in outcome.up:
            outcome.up[name] = change(outcome.up[name])
            spoil.times += 1

    spoil.times = 0
    return spoil


FIELDS = {
    "fedavg: w * -10": ("fedavg", field("w", lambda w: w * -10), "median", "'w' moves by"),
    "scaffold: c = -1": ("scaffold", field("c", lambda c: torch.full_like(c, -1.0)), "median", "'c' moves by"),
    "scaffold: c = 1e30": ("scaffold", field("c", lambda c: torch.full_like(c, 1e30)), "norm", "'c' is"),
    "scaffold: w * -10": ("scaffold", field("w", lambda w: w * -10), "median", "'w' moves by"),
    "k-cluster: no such cluster": ("k-cluster", field("choice", lambda c: 7), "range", "'choice' must be"),
    "k-cluster: half a cluster": ("k-cluster", field("choice", lambda c: 0.5), "range", "'choice' must be"),
    "k-cluster: w * -10": ("k-cluster", field("w", lambda w: w * -10), "median", "'w' moves by"),
    "creff: z = 1e30": ("creff", field("z", lambda z: torch.full_like(z, 1e30)), "norm", "'z' is"),
    "creff: classes beyond": ("creff", field("classes", lambda c: c + 100), "range", "'classes' must be"),
    "creff: negative classes": ("creff", field("classes", lambda c: c - 100), "range", "'classes' must be"),
    "creff: a class twice": ("creff", field("classes", lambda c: c * 0), "range", "'classes' names something twice"),
    "mupfl: start_head = 1e30": ("mupfl", field("start_head", lambda h: h * 0 + 1e30), "norm", "'start_head' is"),
    "mupfl: map = 5": ("mupfl", field("map", lambda m: m * 0 + 5), "bound", "'map' holds values beyond 1"),
    "mupfl: w * -10": ("mupfl", field("w", lambda w: w * -10), "median", "'w' moves by"),
    "distfl: statistics = 1e30": ("distfl", field("statistics", lambda s: s * 0 + 1e30), "bound", "'statistics' holds"),
    "distfl: w * -10": ("distfl", field("w", lambda w: w * -10), "median", "'w' moves by"),
    "fedproto: rows = 1e30": ("fedproto", field("prototypes", lambda p: p * 0 + 1e30), "bound", "'prototypes' holds"),
    "fedproto: a class twice": ("fedproto", field("classes", lambda c: c * 0), "range", "'classes' names"),
    "fedproto: negative counts": ("fedproto", field("counts", lambda n: -n), "range", "'counts' must be"),
    "pfedla: w * -10": ("pfedla", field("w", lambda w: w * -10), "median", "'w' moves by"),
}


@pytest.mark.parametrize("attack", FIELDS)
def test_a_hostile_field_is_rejected_and_named_and_nobody_else_is_blamed(trial, crews, without, attack):
    method, spoil, kind, told = FIELDS[attack]
    spoil.times = 0
    result = trial(keys(method), crews.lying(work=spoil))
    assert spoil.times > 0
    assert result.summary["rejected"] == {kind: spoil.times}, "in every round in which it sends that"
    lines = [line for line in (result.path / "log.txt").read_text().splitlines() if "rejected" in line]
    assert all("the upload of client 1 is rejected" in line and told in line for line in lines)
    assert (result.summary["failed"], result.summary["excluded"]) == ({}, {})
    if spoil.times == 3:
        same_as_without(result, without(method))
    assert abs(accuracy(result) - accuracy(without(method))) < 0.02


def test_what_is_usual_is_checkpointed_and_the_same_for_any_order(trial, crews):
    """One client a round: what is usual is known from the rounds before alone."""
    changes = {"participation": 0.25, "rounds": 8, "gate.median": 30.0}

    def late(outcome, kind):
        if kind == "train" and late.round > 5:
            outcome.up.w = outcome.up.w * -10

    class Rounds:
        def round(self, done, rounds, numbers):
            late.round = done + 1

        def say(self, text): ...

    crew = crews.lying(work=late)
    crew.who = type("Everybody", (), {"__eq__": lambda self, client: True, "__hash__": None})()
    late.round = 1
    with pytest.raises(RunFailed, match=r"round 6 fell below the quorum.*gate\.median allows 30 times"):
        trial(changes, crew, Rounds())
    half = trial.run(changes, watch=StopAfter(5))
    with pytest.raises(polyfed.errors.Interrupted):
        half.go()
    assert len(half.progress.lengths["w"]) == 5
    late.round = 6
    with pytest.raises(RunFailed, match=r"gate\.median allows 30 times"):
        polyfed.resume(half.folder.path, crew=crew)
    assert polyfed.resume(half.folder.path).fingerprint == trial.kept(changes).fingerprint


def test_the_order_in_which_uploads_come_decides_nothing(trial, crews):
    attack = FIELDS["fedavg: w * -10"][1]
    one = trial(keys(), crews.lying(work=attack))
    other = trial(keys(), crews.backwards(crews.lying(work=attack)))
    assert one.fingerprint == other.fingerprint
    assert (one.path / "training.csv").read_text().count("median") == 3
