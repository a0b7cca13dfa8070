"""What becomes of an outcome: counted, gated, and told in a row of training.csv."""

from typing import TYPE_CHECKING, Any

from polyfed.engine.work import Outcome
from polyfed.message import Message

if TYPE_CHECKING:
    from polyfed.engine.rounds import Run

LOST = ("deadline", "worker died", "vanished", "absent")  # nobody's fault in the method
TOLD = ("samples", "steps", "loss", "skipped_batches", "eval_mode_steps", "seconds")
Row = dict[str, Any]


class Reception:
    """Receives what clients return, and keeps count in the run's progress."""

    def __init__(self, run: "Run"):
        self.run = run
        self.last_failure = ""

    def received(self, number: int, attempt: int, outcome: Outcome, down: Message) -> Row:
        """An outcome through the gate."""
        progress, sent, came = self.run.progress, down.nbytes, outcome.up.nbytes
        progress.bytes["down"] += sent
        row = self._row(number, attempt, outcome.client) | {k: outcome.numbers.get(k, "") for k in TOLD}
        row |= {"bytes_down": sent, "bytes_up": came}
        if outcome.error:
            self.failed(number, outcome)
            return row | {"status": "failed", "reason": outcome.error}
        progress.bytes["up"] += came
        refusal = self.run.gate.reason(outcome.up, down)
        if refusal is None:
            return row | {"status": "accepted", "reason": ""}
        kind, sentence = refusal
        _count(progress.rejected, kind)
        self.run.say(f"round {number}: the upload of client {outcome.client} is rejected: {sentence}")
        self.last_failure = f"client {outcome.client}: {sentence}"
        return row | {"status": "rejected", "reason": kind}

    def dropped(self, number: int, attempt: int, client: int) -> Row:
        """A client that was selected and never answered, as `faults.dropout` wanted it."""
        _count(self.run.progress.failed, "dropout")
        self.last_failure = f"client {client} dropped out"
        return self._row(number, attempt, client) | {"status": "failed", "reason": "dropout"}

    def failed(self, number: int, outcome: Outcome) -> None:
        """Work that came to nothing."""
        reason = outcome.error if outcome.error in LOST else "exception"
        _count(self.run.progress.failed, reason)
        if reason != "exception":  # the rest of the run does not have the bits of one in which nobody was lost
            self.run.progress.lost.append([number, outcome.client, reason])
        self.last_failure = f"client {outcome.client}: {outcome.error}"
        self.run.say(f"round {number}: client {outcome.client} failed: {outcome.error}\n{outcome.trace}".rstrip())

    @staticmethod
    def _row(number: int, attempt: int, client: int) -> Row:
        return {"round": number, "attempt": attempt, "client": client}


def _count(table: dict[str, int], reason: str) -> None:
    table[reason] = table.get(reason, 0) + 1
