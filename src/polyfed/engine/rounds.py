"""The server side of a run: hello, rounds (select, send, train, gate, merge, commit, evaluate, record), finish."""

import copy
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from polyfed.config import Config, deciding
from polyfed.engine.admission import DROPOUT, Admission, Row
from polyfed.engine.attacked import Attacked
from polyfed.engine.base import Crew
from polyfed.engine.checkpoint import Checkpoints, Origin, Progress, state_of
from polyfed.engine.evaluation import Evaluation
from polyfed.engine.gate import Gate, finite
from polyfed.engine.ledger import SPENT, Ledger
from polyfed.engine.memory import MemoryStore
from polyfed.engine.oracle import check_oracle
from polyfed.engine.plane import record_plane
from polyfed.engine.roster import Roster
from polyfed.engine.run_folder import RunFolder
from polyfed.engine.start import adopt, phase_one_of
from polyfed.engine.stop import StopRequest
from polyfed.engine.threads import threads
from polyfed.engine.work import Job, Outcome, World
from polyfed.errors import Interrupted, RunFailed
from polyfed.files import Place
from polyfed.measure.metrics import class_groups
from polyfed.measure.recorder import Recorder
from polyfed.measure.seconds import Stopwatch, outside_training
from polyfed.measure.trackers import tracked
from polyfed.measure.watch import Watch
from polyfed.message import digest_of
from polyfed.methods.base import Method, Server, Upload
from polyfed.params import nothing
from polyfed.threats.defender import Defender

ATTEMPTS = 5  # how often a round below the quorum is drawn again before the run fails


def rehearse(config: Config) -> World:
    """Build what a run needs before it has a directory; whatever a user can get wrong is refused here."""
    config.engine.check(config)
    phase_one_of(config)
    with threads(config.engine.server_threads):
        return World(config)


class Run:
    """One experiment from its first round, or its checkpoint, to its summary."""

    def __init__(
        self,
        config: Config,
        folder: RunFolder,
        crew: Crew,
        watch: Watch,
        world: World | None = None,
        clock: Stopwatch | None = None,  # where its set-up has begun already
    ):
        self.config, self.folder, self.crew, self.watch = config, folder, crew, watch
        self._built = world
        self.progress, self.clock = Progress(), clock or Stopwatch()
        self.roster = Roster(self)
        self._stop = StopRequest()
        self._saved: tuple[Progress, dict[str, int]] | None = None
        self._taken: tuple[Place, dict[str, int]] | None = None  # another run's records with which this one begins

    def go(self) -> dict[str, Any]:
        """Run the whole experiment and return its summary."""
        with self.folder.locked(), self._stop.awaited(), threads(self.config.engine.server_threads):
            done = self.folder.result()
            if done is not None:  # another process was faster
                return done
            self.folder.refuse_another()
            self.folder.sweep()
            self.prepare()
            self.recorder.federation(self.server.clients.values(), self.world.federation)
            resumed = self._resume()
            self.ledger.resumes()
            self.roster.exclude_liars()
            self.clock.add(self.progress.seconds)
            self.clock.enter("server")
            self._set_restart_point()
            self._saved = self._restart_point if resumed else None
            try:
                with self._tracked() as self.watch:
                    self._rounds()
                    summary = self._conclude()
            except Interrupted:
                self._checkpoint()
                raise
            return summary

    def _tracked(self) -> AbstractContextManager[Watch]:
        """The watches that are told of this run; its tracker is one of them."""
        place, after = self.folder.place, self.progress.round
        return tracked(self.watch, self.config, place, after, self.say, self.folder.result)

    # ---- before the first round

    def prepare(self) -> None:
        """Prepare everything that the first round needs: data, model, workers and server."""
        config = self.config
        check_oracle(config)
        self.world, self.store = self.make_world(), self.make_store()
        self.method: Method = self.world.method
        self.crew.begin(config, self.world, self.store)
        world, known, weighting = self.world, self.roster.hello(), config.weighting or self.method.weighting
        public = world.federation.public
        self.server = Server(world.resident, world.task, known, weighting, self.method.shared, public)
        self.server.averaged = world.privacy.averaged(world.setting)
        self.server.defence = self.defender = self._defender()
        origin = Origin(deciding(config.dump()), self._federation())
        self.checkpoints = Checkpoints(self.folder.place / "checkpoints", config.checkpoint.keep, origin)
        layout, sizes = self.world.resident.layout, self.world.sizes(self.world.resident)
        self.gate = Gate(self.world.wire, layout, sizes, config.gate.norm)
        groups = class_groups(self.server.class_counts)
        names = {k.id: k.name for k in self.server.clients.values()}
        self.recorder = Recorder(self.folder.place, groups, names, world.federation.masks)
        self.admission = Admission(self)
        self.ledger = Ledger(self)
        self.attacked = Attacked(self)
        self.evaluation = Evaluation(self, groups)

    def _defender(self) -> Defender | None:
        """What takes the place of the average of models; None where the run has no defence."""
        rule, method = self.config.defence, self.method
        return None if rule.name == "none" else Defender(rule, self.server, self.world.wire, method)

    def make_world(self) -> World:
        """Build the world as the server sees it; a server of remote sites sees less."""
        return self._built or World(self.config)

    def make_store(self) -> MemoryStore:
        """Make the store of client memories; a server of remote sites stores only which versions count."""
        return MemoryStore(self.folder.place / "memory")

    def _federation(self) -> str:
        """A digest of who takes part and of what each client stated that it holds."""
        clients = [[k.id, k.name, k.n, k.counts] for k in self.server.clients.values()]
        told = [self.world.federation.class_names, self.world.task.shape, clients]
        return digest_of(json.dumps(told).encode())

    def _resume(self) -> bool:
        """Resume from the newest whole checkpoint, or start; return whether there was a checkpoint."""
        lengths = self.restore()
        if self._taken is not None:
            self.recorder.take(*self._taken)
        else:
            self.recorder.cut(lengths or {})
        elsewhere = self.folder.other_environment()
        if elsewhere:
            self.say(f"resumed in another environment ({elsewhere}): bits may differ from an uninterrupted run")
        if lengths is None or self._taken is not None:
            self.say(f"begins: method {self.method.name}, seed {self.config.seed}")
            for name, note in self.world.federation.notes.items():
                self.say(f"split: {name}: {note}")
            for remark in [*self.remarks(), *self._spare_workers()]:
                self.say(remark)
            return False
        self.say(f"resumed after round {self.progress.round}")
        return True

    def remarks(self) -> list[str]:
        """What this run does otherwise than its config lets people expect; in the log, and in the summary."""
        part, layout = self.method.personal, self.world.resident.layout
        if part == nothing or layout.length(part) or layout.length(part, integers=True):
            return []
        model, method = self.config.model.name, self.method.name
        return [f"model '{model}' has no {part}, which is all that {method} keeps personal: it learns as FedAvg"]

    def _spare_workers(self) -> list[str]:
        asked, clients = getattr(self.config.engine, "workers", None) or 0, len(self.server.clients)
        return [f"engine.workers={asked} is more than the {clients} clients: {clients} work"] if asked > clients else []

    def restore(self) -> dict[str, int] | None:
        """Restore server and memories from the newest whole checkpoint; start, and return None, if there is none."""
        found = self.checkpoints.load(self.server, self.store, self.say)
        if found is None:
            found = adopt(self.config, self.server, self.store, self.checkpoints.origin.federation, self.say)
            if found is None:
                self.method.start(self.server)
                return None
            self._taken = RunFolder(Path(str(self.config.init))).place, found[1]
        self.progress, lengths = found
        self.server.begin(self.progress.round)
        return lengths

    # ---- rounds

    def _rounds(self) -> None:
        rounds = self.config.rounds
        for number in range(self.progress.round + 1, rounds + 1):
            self.server.begin(number)
            self._round(number)
            self.progress.round = number
            if self.evaluates(number):
                with self.clock.phase("eval"):
                    self.evaluation.after_round(number)
            with self.clock.phase("report"):
                self.attacked.record(number)
                self.recorder.arrays(number, self.server.records)
                self.recorder.spent(number, self.spent(), self.progress.bytes)
            self._set_restart_point()
            if number % self.config.checkpoint.every == 0 or number == rounds:
                self._checkpoint()
            with self.clock.phase("report"):
                self.watch.round(number, rounds, self.progress.last)
            self._stop_if_asked()

    def evaluates(self, round: int) -> bool:
        """Whether a round is measured."""
        return round % self.config.eval.every == 0 or round == self.config.rounds

    def _round(self, number: int) -> None:
        """Do one round; if it stays below the quorum, clients are selected again with the next attempt's key."""
        self.ledger.begins(number)
        for attempt in range(ATTEMPTS):
            selected = self.roster.select(number, attempt)
            spent = [k for k in selected if not self.ledger.affords(k)]
            accepted, rows = self._train(number, attempt, selected, spent)
            try:
                if self.roster.enough(len(accepted), len(selected) - len(spent)):
                    self._merge(number, accepted)
                    self.admission.merged()
                    self.attacked.judged(rows)
                    self.ledger.record(number)
                    return
            finally:
                with self.clock.phase("report"):
                    self.recorder.append("training", rows)
            for outcome in accepted:
                self.store.drop(outcome.client, number)
            self.say(f"round {number}: {len(accepted)} of {len(selected)} uploads, below the quorum; drawn again")
        raise RunFailed(
            f"round {number} fell below the quorum ({self.config.engine.quorum:g} of the selected clients) "
            f"{ATTEMPTS} times; the last failure: {self.admission.last_failure or 'none'} (see {self.folder.log})"
        )

    def _train(
        self, number: int, attempt: int, selected: Sequence[int], spent: Sequence[int] = ()
    ) -> tuple[list[Outcome], list[Row]]:
        """Send, train and gate; return the accepted outcomes, and a row of the record for every client selected.

        Clients whose budget is spent are not asked.
        """
        present = [k for k in selected if k not in spent and not self.roster.drops_out(number, attempt, k)]
        measures = ("selected",) if self.evaluates(number) else ()
        jobs = self.jobs("train", number, present, measures)
        self._downs = downs = {job.client: job.down for job in jobs}
        self.admission.begins()
        absent = [k for k in selected if k not in downs]
        rows = [self.admission.dropped(number, attempt, k, SPENT if k in spent else DROPOUT) for k in absent]
        self.ledger.charge(downs)
        held = []
        for outcome in self.attacked.together(number, self._timed("train", self.run(jobs)), downs):
            row = self.admission.received(number, attempt, outcome, downs[outcome.client])
            rows.append(row)
            if row["status"] == "accepted":
                self._store_memory(number, outcome)
                held.append(outcome)
        rows.sort(key=lambda row: row["client"])
        self.admission.all_came(number, rows)
        accepted = {row["client"] for row in rows if row["status"] == "accepted"}
        for client in {outcome.client for outcome in held} - accepted:
            self.store.drop(client, number)
        return sorted((o for o in held if o.client in accepted), key=lambda outcome: outcome.client), rows

    def _store_memory(self, number: int, outcome: Outcome) -> None:
        """Put a new memory into the store, which may spill it to disk; the outcome keeps only its digest."""
        if outcome.memory is not None:
            self.store.put(outcome.client, number, outcome.memory)
            outcome.memory = None

    def _commit(self, number: int, outcomes: Sequence[Outcome]) -> None:
        """Commit the memories that these outcomes left."""
        for outcome in outcomes:
            if outcome.digest:
                self.store.commit(outcome.client, number, outcome.digest)

    def _merge(self, number: int, accepted: Sequence[Outcome]) -> None:
        """Merge the uploads into the new model; only then do the new memories count."""
        sizes = {o.client: self.server.clients[o.client].n for o in accepted}
        uploads = [Upload(o.client, sizes[o.client], o.up, self._downs[o.client]) for o in accepted]
        self.world.resident.reset(self.server.shared)  # no client that worked in this process leaves anything behind
        if self.defender is not None:
            self.defender.begin()
        self.method.merge(self.server, uploads)
        if self.defender is not None:
            self.defender.tell_what_is_open()
        if number == self.config.rounds and "clusters" in self.server.records:
            record_plane(self.server, uploads)
        while self.server.said:
            self.say(f"round {number}: {self.server.said.pop(0)}")
        if not finite(self.server.shared.flat):
            raise RunFailed(f"the shared model is not finite after round {number}: lower train.lr or set train.clip")
        self._commit(number, accepted)
        measured = {o.client: o.counts["selected"] for o in accepted if "selected" in o.counts}
        self.evaluation.selected = {k: measured[k] for k in self.attacked.honest(list(measured))}

    # ---- the end

    def _conclude(self) -> dict[str, Any]:
        """Run finish jobs on every client, held-out ones too, as a round of their own; then evaluate once more."""
        if not self.progress.finished:
            self._checkpoint()  # rounds that are another run's are not saved yet
            self._finish()
            self.progress.finished = True
            self.recorder.spent(self.config.rounds + 1, self.spent(), self.progress.bytes)
            self._set_restart_point()
            self._checkpoint()
        else:  # stopped after its last checkpoint, perhaps before the older ones were deleted
            self.checkpoints.tidy(self.store)
        with self.clock.phase("eval"):
            summary = self.evaluation.conclude()
        if elsewhere := outside_training(summary["seconds"]):
            self.say(elsewhere)
        return summary

    def finishes(self) -> bool:
        """Whether there is anything to do after the last round."""
        return type(self.method).finish is not Method.finish or self.method.personal != nothing

    def _finish(self) -> None:
        if not self.finishes():
            return
        number = self.config.rounds + 1
        everybody = range(len(self.server.clients))
        overridden = type(self.method).finish is not Method.finish
        # by default only a client without memory has anything to do: the others need not be sent the model for it
        clients = [k for k in everybody if overridden or k not in self.store.table]
        jobs = self.jobs("finish", number, clients)
        downs, finished = {job.client: job.down.nbytes for job in jobs}, []
        for outcome in self._timed("finish", self.run(jobs)):
            self.progress.bytes["down"] += downs[outcome.client]
            if outcome.error:
                self.admission.failed(number, outcome)
            else:
                self._store_memory(number, outcome)
                finished.append(outcome)
        if jobs and not self.roster.enough(len(finished), len(jobs)):
            raise RunFailed(
                f"finish fell below the quorum: {len(finished)} of {len(jobs)} clients finished; the last failure: "
                f"{self.admission.last_failure} (see {self.folder.log}); polyfed resume {self.folder.path} tries again"
            )
        self.progress.unfinished = sorted(set(downs) - {outcome.client for outcome in finished})
        self._commit(number, finished)  # all at once: a stop in between leaves the finish round undone

    def fingerprint(self) -> str:
        """A hash of the server's params and state and, by client id, of each memory."""
        value = hashlib.sha256(digest_of(state_of(self.server).encode()).encode())
        for client in sorted(self.store.digests):
            value.update(f"{client}:{self.store.digests[client]}".encode())
        return value.hexdigest()

    # ---- jobs

    def jobs(
        self,
        kind: Any,
        number: int,
        clients: Sequence[int] | range,
        measures: tuple[str, ...] = (),
        per_class: int = 0,
    ) -> list[Job]:
        """One job per client, from the memory version that counts."""
        return [
            Job(
                kind,
                k,
                number,
                self.method.send(self.server, k),
                self.store.table.get(k),
                measures,
                self._size(kind, k),
                per_class,
            )
            for k in clients
            if str(k) not in self.progress.excluded
        ]

    def _size(self, kind: str, client: int) -> int:
        data = self.world.federation.clients[client]
        return len(data.test) if kind == "evaluate" else self.server.clients[client].n

    def run(self, jobs: Sequence[Job], meanwhile: Callable[[], None] | None = None) -> Iterator[Outcome]:
        """Yield outcomes as they arrive; a request to stop is honoured between them."""
        asked = {job.client: job for job in jobs}
        for outcome in self.crew.run(jobs, self.config.engine.deadline, meanwhile):
            self._stop_if_asked()
            if outcome.client >= 0:
                yield self.roster.verified(asked[outcome.client], outcome)

    # ---- keeping

    def _set_restart_point(self) -> None:
        """Remember the present state as complete: a run that is stopped later resumes from here."""
        self.spent()
        self._restart_point = copy.deepcopy(self.progress), self.recorder.lengths()

    def _checkpoint(self) -> None:
        """Write the last restart point as a checkpoint, unless it is already written."""
        if self._saved is not self._restart_point:
            progress, lengths = self._restart_point
            with self.clock.phase("checkpoint"):
                self.recorder.sync()
                self.checkpoints.save(progress, self.server, self.store, lengths)
            self._saved = self._restart_point

    def spent(self) -> dict[str, float]:
        """Seconds by phase, including those before the run was interrupted and resumed."""
        self.progress.seconds = self.clock.read()
        return self.progress.seconds

    def say(self, text: str) -> None:
        """Write a line to the log, and show it to whoever watches the run."""
        self.folder.say(text)
        self.watch.say(text.splitlines()[0])

    def _timed(self, phase: str, outcomes: Iterator[Outcome]) -> Iterator[Outcome]:
        """Yield outcomes as they arrive, and count the time spent waiting for them to a phase."""
        while True:
            with self.clock.phase(phase):
                outcome = next(outcomes, None)
            if outcome is None:
                return
            yield outcome

    # ---- being stopped

    def _stop_if_asked(self) -> None:
        """Stop if somebody asked for it, but not between a merge and its evaluation, whose numbers would be lost."""
        if self._stop.made and self.progress.round == self._restart_point[0].round:
            raise Interrupted(
                f"interrupted after round {self.progress.round}; go on with: polyfed resume {self.folder.path}"
            )
