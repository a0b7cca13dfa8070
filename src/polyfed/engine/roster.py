"""Who takes part in a run: what clients state in their hellos, who is selected, and who is excluded."""

from typing import TYPE_CHECKING

from polyfed import rng
from polyfed.engine import statements
from polyfed.engine.selection import drawn
from polyfed.engine.work import Job, Outcome
from polyfed.errors import RunFailed
from polyfed.methods.sites import Known
from polyfed.threats.privacy.noise import secret_generator

if TYPE_CHECKING:
    from polyfed.engine.rounds import Run


class Roster:
    """The clients of a run; those that are excluded are kept in the run's progress."""

    def __init__(self, run: "Run"):
        self.run = run
        self.tested: dict[int, statements.StatedSamples] = {}  # what clients stated of the samples they are measured on
        self.refused: dict[int, str] = {}  # clients whose hello could not be true, and why

    def hello(self) -> list[Known]:
        """Ask every client for name, size, classes and initial model; one whose answer cannot be true is excluded."""
        known, classes = [], self.run.world.federation.classes
        for outcome in self.run.crew.hello():
            client = outcome.client
            if outcome.error:
                raise RunFailed(f"client {client} could not say hello: {statements.bounded(outcome.error)}")
            fault = statements.fault_of_hello(outcome, classes, self.run.world.origin_of(client), self._pixels)
            if fault:
                self.refused[client] = f"in its hello {fault}"
                known.append(Known(client, self.run.world.federation.clients[client].name, 0, (0,) * classes))
            else:
                self.tested[client] = statements.stated_samples(outcome)
                known.append(statements.known_of(outcome))
        return sorted(known, key=lambda each: each.id)  # hellos come in any order

    @property
    def _pixels(self) -> int:
        federation = self.run.world.federation
        return federation.pool.y[0].numel() if federation.masks else 0

    @property
    def participants(self) -> list[int]:
        """The clients that train; excluded ones are left out."""
        return [k for k in self.run.world.federation.participants if str(k) not in self.run.progress.excluded]

    def exclude_liars(self) -> None:
        """Exclude the clients whose hello could not be true."""
        for client, why in self.refused.items():
            self.exclude(client, why)

    def exclude(self, client: int, why: str) -> None:
        """Exclude a client from everything that follows."""
        if str(client) not in self.run.progress.excluded:
            self.run.progress.excluded[str(client)] = why
            self.run.say(f"client {client} ({self.run.server.clients[client].name}) is excluded: {why}")

    def select(self, number: int, attempt: int) -> list[int]:
        """S_t, of all who are not excluded: by seed, round and attempt; a secret where privacy counts on one."""
        everybody, all_of_them = self.participants, len(self.run.world.federation.participants)
        if not self.enough(len(everybody), all_of_them):
            client, why = list(self.run.progress.excluded.items())[-1]
            raise RunFailed(
                f"round {number}: {all_of_them - len(everybody)} of {all_of_them} clients are excluded, so that fewer "
                f"are left than the quorum ({self.run.config.engine.quorum:g}); the last one: client {client}: {why}"
            )
        if self.run.method.everyone:
            return everybody
        # sites know the seed, and privacy that is amplified by chance needs a chance that they cannot know
        hidden = self.run.config.privacy.empty_rounds and self.run.world.setting.secret
        return drawn(self.run.config, everybody, number, attempt, secret_generator() if hidden else None)

    def enough(self, done: int, asked: int) -> bool:
        """Whether so many of the clients that were asked make a quorum; where privacy counts missing ones, any do."""
        if self.run.config.privacy.empty_rounds:
            return True
        return done > 0 and done >= self.run.config.engine.quorum * asked

    def drops_out(self, number: int, attempt: int, client: int) -> bool:
        """Whether a client that was selected drops out, as `faults.dropout` asks for."""
        chance = self.run.config.faults.dropout
        return chance > 0 and rng.generator(self.run.config.seed, "dropout", number, attempt, client).random() < chance

    def verified(self, job: Job, outcome: Outcome) -> Outcome:
        """Check a report; a client whose report cannot be true is excluded, and its work counts as failed."""
        outcome.error, outcome.trace = statements.bounded(outcome.error), statements.bounded(outcome.trace)
        own, everybody = self.tested[job.client], self.run.world.class_counts(job.per_class)
        fault = statements.fault_of_report(
            outcome, job, self.run.world.federation.classes, own, everybody, self._pixels
        )
        if not fault:
            return outcome
        self.exclude(job.client, f"in round {job.round} {fault}")
        return Outcome(job.client, error=statements.FALSE)
