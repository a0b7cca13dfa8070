"""Admitting uploads: every outcome is counted, passes the gate, and is recorded as a row of training.csv."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from polyfed.engine.gate import Lengths, Medians
from polyfed.engine.statements import FALSE
from polyfed.engine.work import Outcome
from polyfed.message import Message

if TYPE_CHECKING:
    from polyfed.engine.rounds import Run

DROPOUT = "dropout"  # the reason of a client that was drawn to be absent
LOST = ("deadline", "worker died", "vanished", "absent")  # reasons that are no fault of the method
TOLD = ("samples", "steps", "loss", "skipped_batches", "eval_mode_steps", "seconds")
Row = dict[str, Any]


class Admission:
    """Receives what clients return, and keeps count in the run's progress."""

    def __init__(self, run: "Run"):
        self.run = run
        self.last_failure = ""
        self._lengths: dict[int, Lengths] = {}  # of the uploads that came since the round began

    @property
    def _medians(self) -> Medians:
        return Medians(self.run.config.gate.median, self.run.progress.lengths)

    def received(self, number: int, attempt: int, outcome: Outcome, down: Message) -> Row:
        """Pass an outcome through the gate."""
        progress, sent, came = self.run.progress, down.nbytes, outcome.up.nbytes
        progress.bytes["down"] += sent
        row = self._row(number, attempt, outcome.client) | {k: outcome.numbers.get(k, "") for k in TOLD}
        row |= {"bytes_down": sent, "bytes_up": came}
        if outcome.error:
            self.failed(number, outcome)
            return row | {"status": "failed", "reason": outcome.error}
        progress.bytes["up"] += came
        lengths: Lengths = {}
        refusal = self.run.gate.reason(outcome.up, down, lengths)
        if refusal is None:
            self._lengths[outcome.client] = lengths
            return row | {"status": "accepted", "reason": ""}
        return row | self._rejected(number, outcome.client, *refusal)

    def all_came(self, number: int, rows: Sequence[Row]) -> None:
        """Compare the round's uploads with each other and with earlier ones; reject the outliers."""
        for client, refusal in self._medians.too_long(self._lengths).items():
            del self._lengths[client]
            next(row for row in rows if row["client"] == client).update(self._rejected(number, client, *refusal))

    def merged(self) -> None:
        """Note that the accepted uploads were merged: their lengths now count as usual."""
        self._medians.learn(self._lengths[client] for client in sorted(self._lengths))

    def begins(self) -> None:
        """Begin a round, or another attempt at it."""
        self._lengths = {}

    def _rejected(self, number: int, client: int, kind: str, sentence: str) -> Row:
        _count(self.run.progress.rejected, kind)
        self.run.say(f"round {number}: the upload of client {client} is rejected: {sentence}")
        self.last_failure = f"client {client}: {sentence}"
        return {"status": "rejected", "reason": kind}

    def dropped(self, number: int, attempt: int, client: int, reason: str = DROPOUT) -> Row:
        """Count and record a client that was selected and not asked: it dropped out, or its budget is spent."""
        _count(self.run.progress.failed, reason)
        self.last_failure = f"client {client} " + ("dropped out" if reason == DROPOUT else f"was not asked: {reason}")
        return self._row(number, attempt, client) | {"status": "failed", "reason": reason}

    def failed(self, number: int, outcome: Outcome) -> None:
        """Count and record work that failed."""
        reason = outcome.error if outcome.error in (*LOST, FALSE) else "exception"
        _count(self.run.progress.failed, reason)
        if reason in LOST:  # the rest of the run does not have the bits of one in which nobody was lost
            self.run.progress.lost.append([number, outcome.client, reason])
        self.last_failure = f"client {outcome.client}: {outcome.error}"
        self.run.say(f"round {number}: client {outcome.client} failed: {outcome.error}\n{outcome.trace}".rstrip())

    @staticmethod
    def _row(number: int, attempt: int, client: int) -> Row:
        return {"round": number, "attempt": attempt, "client": client}


def _count(table: dict[str, int], reason: str) -> None:
    table[reason] = table.get(reason, 0) + 1
