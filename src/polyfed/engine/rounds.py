"""The server side of a run: hello, rounds (select, send, train, gate, merge, commit, evaluate, record), finish."""

import copy
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

from polyfed import rng
from polyfed.config import Config
from polyfed.engine.base import Crew
from polyfed.engine.checkpoint import Checkpoints, Progress, state_of
from polyfed.engine.evaluation import Evaluation
from polyfed.engine.folder import RunFolder
from polyfed.engine.gate import Gate, finite
from polyfed.engine.local import threads
from polyfed.engine.memory import MemoryStore
from polyfed.engine.reception import Reception
from polyfed.engine.start import adopt
from polyfed.engine.stop import StopRequest
from polyfed.engine.track import tracked
from polyfed.engine.work import Job, Outcome, World
from polyfed.errors import DataError, Interrupted, RunFailed
from polyfed.measure.metrics import class_groups
from polyfed.measure.recorder import Recorder
from polyfed.message import digest_of
from polyfed.methods.base import Method, Server, Upload
from polyfed.methods.sites import Known
from polyfed.params import nothing
from polyfed.parts.cluster import plane

PLANE = 10**11  # products of numbers the picture of uploaded models may cost
ATTEMPTS = 5  # how often a round below the quorum is drawn again before the run fails


class Watch(Protocol):
    """Who looks on: the command line's progress, or nobody."""

    def round(self, done: int, rounds: int, numbers: dict[str, Any]) -> None:
        """A round is committed."""

    def say(self, text: str) -> None:
        """Something a person should know."""


class Silent:
    """Nobody looks on."""

    def round(self, done: int, rounds: int, numbers: dict[str, Any]) -> None:
        """Not shown."""

    def say(self, text: str) -> None:
        """Not shown."""


class Run:
    """One experiment from its first round, or its checkpoint, to its summary."""

    def __init__(self, config: Config, folder: RunFolder, crew: Crew, watch: Watch):
        self.config, self.folder, self.crew, self.watch = config, folder, crew, watch
        self.progress = Progress()
        self._stop = StopRequest()
        self._saved: tuple[Progress, dict[str, int]] | None = None

    def go(self) -> dict[str, Any]:
        """Everything; the summary."""
        with self.folder.locked(), self._stop.awaited(), threads(self.config.engine.server_threads):
            done = self.folder.result()
            if done is not None:  # another process was faster
                return done
            started = time.perf_counter()
            self.prepare()
            self.recorder.federation(self.server.clients.values(), self.world.federation)
            resumed = self._resume()
            self._earlier = self.progress.seconds["total"] - started
            self._mark()
            self._saved = self._whole if resumed else None
            try:
                with tracked(self):
                    self._rounds()
                    summary = self._conclude()
            except Interrupted:
                self._checkpoint()
                raise
            return summary

    # ---- before the first round

    def prepare(self) -> None:
        """Data, model, workers, server: everything before the first round."""
        config = self.config
        self.world, self.store = self.make_world(), self.make_store()
        self.method: Method = self.world.method
        self.checkpoints = Checkpoints(self.folder.path / "checkpoints", config.checkpoint.keep)
        self.crew.begin(config, self.world, self.store)
        self.server = Server(self.world.resident, self.world.task, self._hello(), self._weighting(), self.method.shared)
        layout = self.world.resident.layout
        dims = {"C": self.world.task.classes, "d": self.world.model_width}
        dims |= {"h": self.world.model_width + self.world.head_bias}
        dims |= {"P": layout.n_weights, "F": layout.size, "I": layout.n_integers}
        self.gate = Gate(self.world.wire, layout, dims, config.gate.norm)
        groups = class_groups(self.server.class_counts)
        self.recorder = Recorder(self.folder.path, groups, {k.id: k.name for k in self.server.clients.values()})
        self.reception = Reception(self)
        self.evaluation = Evaluation(self, groups)

    def make_world(self) -> World:
        """What the server knows; where data are elsewhere, less than everything."""
        return World(self.config)

    def make_store(self) -> MemoryStore:
        """Where client memories are; where clients are elsewhere, only what counts."""
        return MemoryStore(self.folder.path / "memory")

    def _weighting(self) -> str:
        return self.config.weighting or self.method.weighting

    def _hello(self) -> list[Known]:
        """Everybody tells name, size, classes and the digest of where it starts; all must start alike."""
        known = []
        for outcome in self.crew.hello():
            if outcome.error:
                raise RunFailed(f"client {outcome.client} could not say hello: {outcome.error}")
            said = outcome.numbers
            if {key: said[key] for key in self.world.origin} != self.world.origin:
                raise DataError(f"client {said['name']} starts from another model than the server")
            counts = outcome.counts.get("train")
            told = None if counts is None else tuple(counts.tolist())
            known.append(Known(outcome.client, said["name"], said["n"], told))
        return known

    def _resume(self) -> bool:
        """Go on from the newest whole checkpoint, or start; whether there was one."""
        lengths = self.restore()
        self.recorder.cut(lengths or {})
        elsewhere = self.folder.other_environment()
        if elsewhere:
            self.say(f"resumed in another environment ({elsewhere}): bits may differ from an uninterrupted run")
        if lengths is None:
            self.say(f"begins: method {self.method.name}, seed {self.config.seed}")
            for name, note in self.world.federation.notes.items():
                self.say(f"split: {name}: {note}")
            return False
        self.say(f"resumed after round {self.progress.round}")
        return True

    def restore(self) -> dict[str, int] | None:
        """Server and memories as the newest whole checkpoint has them; None, and the start, if there is none."""
        found = self.checkpoints.load(self.server, self.store, self.say)
        if found is None:
            adopted = adopt(self.config, self.server, self.store, self.say)
            if adopted is None:
                self.method.start(self.server)
                return None
            found = adopted, {}
        self.progress, lengths = found
        self.server.round = self.progress.round
        return lengths

    # ---- rounds

    def _rounds(self) -> None:
        rounds = self.config.rounds
        for number in range(self.progress.round + 1, rounds + 1):
            self.server.round = number
            self._round(number)
            self.progress.round = number
            if self.evaluates(number):
                self._timed("eval", partial(self.evaluation.after_round, number))
            self.recorder.arrays(number, self.server.records)
            self.recorder.spent(number, self.spent(), self.progress.bytes)
            self._mark()
            if number % self.config.checkpoint.every == 0 or number == rounds:
                self._checkpoint()
            self.watch.round(number, rounds, self.progress.last)
            self._breathe()

    def evaluates(self, round: int) -> bool:
        """Whether a round is measured."""
        return round % self.config.eval.every == 0 or round == self.config.rounds

    def _round(self, number: int) -> None:
        """One round; below the quorum it is drawn again with the next attempt's key."""
        for attempt in range(ATTEMPTS):
            selected = self._select(number, attempt)
            accepted = self._train(number, attempt, selected)
            if accepted and len(accepted) >= self.config.engine.quorum * len(selected):
                self._timed("server", partial(self._merge, number, accepted))
                return
            for outcome in accepted:
                self.store.drop(outcome.client, number)
            self.say(f"round {number}: {len(accepted)} of {len(selected)} uploads, below the quorum; drawn again")
        raise RunFailed(
            f"round {number} fell below the quorum ({self.config.engine.quorum:g} of the selected clients) "
            f"{ATTEMPTS} times; the last failure: {self.reception.last_failure or 'none'} (see {self.folder.log})"
        )

    def _select(self, number: int, attempt: int) -> list[int]:
        """S_t: a function of seed, round and attempt alone."""
        everybody = list(self.world.federation.participants)
        if self.method.everyone:
            return everybody
        draw = rng.generator(self.config.seed, "select", number, attempt)
        if self.config.sampling == "bernoulli":
            chosen = [k for k in everybody if draw.random() < self.config.participation]
            return chosen or [everybody[int(draw.integers(len(everybody)))]]
        count = max(1, round(self.config.participation * len(everybody)))
        return sorted(int(k) for k in draw.choice(everybody, size=count, replace=False))

    def _train(self, number: int, attempt: int, selected: Sequence[int]) -> list[Outcome]:
        """Send, train and gate; the outcomes that may count."""
        present = [k for k in selected if not self._drops_out(number, attempt, k)]
        measures = ("selected",) if self.evaluates(number) else ()
        jobs = self.jobs("train", number, present, measures)
        downs = {job.client: job.down for job in jobs}
        rows = [self.reception.dropped(number, attempt, k) for k in selected if k not in downs]
        accepted = []
        for outcome in self._timed_each("train", self.run(jobs)):
            row = self.reception.received(number, attempt, outcome, downs[outcome.client])
            rows.append(row)
            if row["status"] == "accepted":
                self._hold(number, outcome)
                accepted.append(outcome)
        self.recorder.append("training", sorted(rows, key=lambda r: r["client"]))
        return sorted(accepted, key=lambda outcome: outcome.client)

    def _hold(self, number: int, outcome: Outcome) -> None:
        """A new memory goes into the store, which may spill it; the outcome keeps its digest only."""
        if outcome.memory is not None:
            self.store.put(outcome.client, number, outcome.memory)
            outcome.memory = None

    def _commit(self, number: int, outcomes: Sequence[Outcome]) -> None:
        """From now on the memories these outcomes left count."""
        for outcome in outcomes:
            if outcome.digest:
                self.store.commit(outcome.client, number, outcome.digest)

    def _merge(self, number: int, accepted: Sequence[Outcome]) -> None:
        """The uploads become the new model; only then do the new memories count."""
        uploads = [Upload(o.client, self.server.clients[o.client].n, o.up) for o in accepted]
        self.method.merge(self.server, uploads)
        if number == self.config.rounds and "clusters" in self.server.records:
            self._keep_plane(uploads)
        while self.server.said:
            self.say(f"round {number}: {self.server.said.pop(0)}")
        if not finite(self.server.params.flat):
            raise RunFailed(f"the shared model is not finite after round {number}: lower train.lr or set train.clip")
        self._commit(number, accepted)
        self.evaluation.selected = {o.client: o.counts["selected"] for o in accepted if "selected" in o.counts}

    def _drops_out(self, number: int, attempt: int, client: int) -> bool:
        chance = self.config.faults.dropout
        return chance > 0 and rng.generator(self.config.seed, "dropout", number, attempt, client).random() < chance

    # ---- the end

    def _conclude(self) -> dict[str, Any]:
        """Finish jobs on every client, held-out ones too: a round of its own; then the last evaluation."""
        if not self.progress.finished:
            self._finish()
            self.progress.finished = True
            self.recorder.spent(self.config.rounds + 1, self.spent(), self.progress.bytes)
            self._mark()
            self._checkpoint()
        return self._timed("eval", self.evaluation.conclude)

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
        for outcome in self._timed_each("train", self.run(jobs)):
            self.progress.bytes["down"] += downs[outcome.client]
            if outcome.error:
                self.reception.failed(number, outcome)
            else:
                self._hold(number, outcome)
                finished.append(outcome)
        self._commit(number, finished)  # all at once: a stop in between leaves the finish round undone

    def fingerprint(self) -> str:
        """A hash of the server's params and state and, by client id, of each memory."""
        value = hashlib.sha256(digest_of(state_of(self.server).encode()).encode())
        for client in sorted(self.store.digests):
            value.update(f"{client}:{self.store.digests[client]}".encode())
        return value.hexdigest()

    # ---- jobs

    def jobs(self, kind: Any, number: int, clients: Sequence[int] | range, measures: tuple[str, ...] = ()) -> list[Job]:
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
            )
            for k in clients
        ]

    def _size(self, kind: str, client: int) -> int:
        data = self.world.federation.clients[client]
        return len(data.test) if kind == "evaluate" else self.server.clients[client].n

    def run(self, jobs: Sequence[Job], meanwhile: Callable[[], None] | None = None) -> Iterator[Outcome]:
        """Outcomes as they come; between them a stop request is heard."""
        for outcome in self.crew.run(jobs, self.config.engine.deadline, meanwhile):
            self._breathe()
            if outcome.client >= 0:
                yield outcome

    # ---- keeping

    def _mark(self) -> None:
        """What was done so far is whole: who is stopped in the middle of what follows goes back to here."""
        self.spent()
        self._whole = copy.deepcopy(self.progress), self.recorder.lengths()

    def _checkpoint(self) -> None:
        """Save the last whole point, once."""
        if self._saved is not self._whole:
            progress, lengths = self._whole
            self.recorder.sync()
            self.checkpoints.save(progress, self.server, self.store, lengths)
            self._saved = self._whole

    def spent(self) -> dict[str, float]:
        """Seconds by phase, over all sittings of the run."""
        self.progress.seconds["total"] = self._earlier + time.perf_counter()
        return self.progress.seconds

    def _keep_plane(self, uploads: Sequence[Upload]) -> None:
        """Where the last round's uploaded models lie, seen from their two principal directions."""
        rows = [u.message["w"] for u in uploads if "w" in u.message]
        if len(rows) == len(uploads) > 2 and len(rows) ** 2 * rows[0].numel() <= PLANE:
            places, shares = plane([row.reshape(-1) for row in rows])
            self.server.record("plane", [[u.client, *place] for u, place in zip(uploads, places.tolist(), strict=True)])
            self.server.record("plane_shares", shares)

    def say(self, text: str) -> None:
        """A line for the log, and for whoever looks on."""
        self.folder.say(text)
        self.watch.say(text.splitlines()[0])

    def _timed(self, phase: str, do: Callable[[], Any]) -> Any:
        started = time.perf_counter()
        try:
            return do()
        finally:
            self.progress.seconds[phase] += time.perf_counter() - started

    def _timed_each(self, phase: str, outcomes: Iterator[Outcome]) -> Iterator[Outcome]:
        started = time.perf_counter()
        for outcome in outcomes:
            self.progress.seconds[phase] += time.perf_counter() - started
            yield outcome
            started = time.perf_counter()
        self.progress.seconds[phase] += time.perf_counter() - started

    # ---- being stopped

    def _breathe(self) -> None:
        """Hear a stop request, but not between a merge and its measuring: those numbers are kept nowhere else."""
        if self._stop.made and self.progress.round == self._whole[0].round:
            raise Interrupted(
                f"interrupted after round {self.progress.round}; go on with: polyfed resume {self.folder.path}"
            )
