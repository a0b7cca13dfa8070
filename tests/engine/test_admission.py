"""What is counted and told of every outcome, with a gate that refuses whoever uploads a negative number."""

from types import SimpleNamespace

import pytest
import torch

from polyfed.engine.admission import Admission
from polyfed.engine.checkpoint import Progress
from polyfed.engine.gate import Length
from polyfed.engine.statements import FALSE
from polyfed.engine.work import Outcome
from polyfed.message import Message

DOWN = Message(w=torch.ones(5))  # 20 bytes


class Refusing:
    def reason(self, up, down, lengths):
        length = float(up.w.abs().max())
        lengths["w"] = Length(length)
        return ("range", "it is negative") if up.w.min() < 0 else None


@pytest.fixture
def run():
    config = SimpleNamespace(gate=SimpleNamespace(median=10.0))
    lines = []
    return SimpleNamespace(config=config, progress=Progress(), gate=Refusing(), say=lines.append, lines=lines)


def upload(client, value):
    return Outcome(client, Message(w=torch.full((3,), value)), numbers={"samples": 8, "steps": 2})  # 12 bytes


def test_bytes_add_up_and_those_of_failures_went_one_way_only(run):
    admission = Admission(run)
    rows = [admission.received(2, 1, upload(k, value), DOWN) for k, value in ((4, 1.0), (5, -1.0))]
    rows.append(admission.received(2, 1, Outcome(6, error="ValueError: no"), DOWN))
    assert run.progress.bytes == {"down": 60, "up": 24, "eval": 0}
    assert [(r["client"], r["status"], r["reason"]) for r in rows] == [
        (4, "accepted", ""),
        (5, "rejected", "range"),
        (6, "failed", "ValueError: no"),
    ]
    assert rows[0] | {"seconds": 0} == {
        "round": 2,
        "attempt": 1,
        "client": 4,
        "samples": 8,
        "steps": 2,
        "loss": "",
        "skipped_batches": "",
        "eval_mode_steps": "",
        "seconds": 0,
        "bytes_down": 20,
        "bytes_up": 12,
        "status": "accepted",
        "reason": "",
    }
    assert run.lines[0] == "round 2: the upload of client 5 is rejected: it is negative"


def test_failures_are_counted_by_kind_and_only_the_lost_cost_the_promise_of_bits(run):
    admission = Admission(run)
    for client, error in enumerate(["deadline", "deadline", FALSE, "ValueError: 1", "KeyError: 2"]):
        admission.failed(3, Outcome(client, error=error))
    admission.dropped(3, 0, 9)
    assert run.progress.failed == {"deadline": 2, FALSE: 1, "exception": 2, "dropout": 1}
    assert run.progress.lost == [[3, 0, "deadline"], [3, 1, "deadline"]]
    assert admission.last_failure == "client 9 dropped out"


def test_an_outlier_is_rejected_after_all_and_does_not_teach_what_is_usual(run):
    admission = Admission(run)
    values = {8: 1.0, 2: 3.0, 5: 100.0, 0: 2.0, 3: 4.0}
    rows = [admission.received(1, 0, upload(client, value), DOWN) for client, value in values.items()]
    admission.all_came(1, rows)
    assert {row["client"]: row["status"] for row in rows} == dict.fromkeys(values, "accepted") | {5: "rejected"}
    assert run.progress.rejected == {"median": 1}
    admission.merged()
    assert run.progress.lengths == {"w": [2.0, 3.0, 4.0, 1.0]}, "by client id, in whatever order they came"


def test_a_new_attempt_forgets_the_uploads_of_the_one_before(run):
    admission = Admission(run)
    admission.received(1, 0, upload(0, 1.0), DOWN)
    admission.begins()
    admission.received(1, 1, upload(1, 2.0), DOWN)
    admission.merged()
    assert run.progress.lengths == {"w": [2.0]}
