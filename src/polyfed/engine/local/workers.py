"""The crew of worker processes: each job goes to the next free worker, and a dead worker is replaced."""

import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import wait

from polyfed.config import Config
from polyfed.engine.local.placement import Start, devices_of, placed, way_here
from polyfed.engine.local.serial import hellos
from polyfed.engine.local.shelf import Shelf, objects_of
from polyfed.engine.local.worker import Begin, Worker
from polyfed.engine.memory import MemoryStore
from polyfed.engine.work import Job, Outcome, World

AHEAD = 1  # jobs a worker is given beyond the one it does
TRIES = 2  # a job whose worker died is done again once, from the same inputs
PATIENCE = 0.2  # seconds between two checks of the clock and for a request to stop


class Workers:
    """Worker processes that live as long as the crew; each builds its own world from the config."""

    def __init__(self, count: int | None, start: Start = "auto", per_gpu: int | None = None):
        self.workers: list[Worker] = []
        self.count, self.start, self.per_gpu = count, start, per_gpu
        self.shelf: Shelf | None = None  # where spawned workers find the samples

    def begin(self, config: Config, world: World, store: MemoryStore) -> None:
        self.world, self.store = world, store
        most = len(world.federation.clients)  # a round has no more jobs than this
        self._hire(placed(devices_of(config.device), self.count, self.per_gpu)[:most])
        self.order = Begin(config.dump())
        if self.shelf is not None:
            samples = self.shelf.put(world.federation.as_trained)
            self.order = replace(self.order, samples=samples, objects=objects_of(config))
        for worker in self.workers:
            worker.begin(self.order)

    def _hire(self, devices: list[str]) -> None:
        """Start the workers that are missing."""
        if [worker.device for worker in self.workers] == devices:
            return
        self.close()
        self.shelf = Shelf() if way_here(self.start, devices) == "spawn" else None
        for device in devices:
            self.workers.append(Worker(device, self.workers, self.shelf))

    def hello(self) -> Iterator[Outcome]:
        """Asked in this process: the workers' worlds are the same."""
        return hellos(self.world)

    def run(
        self, jobs: Sequence[Job], deadline: float | None, meanwhile: Callable[[], None] | None
    ) -> Iterator[Outcome]:
        """Run the jobs, the longest first, each on the next free worker."""
        waiting = deque(sorted(jobs, key=lambda job: (-job.size, job.client)))
        deaths: Counter[int] = Counter()
        if deadline is not None:
            self._until_ready()  # what a worker needs to start is not its client's time
        end = None if deadline is None else time.monotonic() + deadline
        ahead = AHEAD if deadline is None else 0  # a job that waits behind another one would miss its deadline
        try:
            self._hand_out(waiting, ahead)
            if meanwhile:
                meanwhile()
            while busy := [w for w in self.workers if w.jobs]:
                ready = wait([w.pipe for w in busy], timeout=PATIENCE)
                for worker in [w for w in busy if w.pipe in ready]:
                    outcome = self._answer(worker, waiting, deaths)
                    self._hand_out(waiting, ahead)
                    if outcome is not None:
                        yield outcome
                if end is not None and time.monotonic() > end:
                    yield from self._fail_late_jobs(waiting)
                if not ready:
                    yield Outcome(-1)  # no outcome yet: the caller checks whether it was asked to stop
        finally:
            self._replace_busy_workers()

    def close(self) -> None:
        """End every process."""
        for worker in self.workers:
            worker.end()
        self.workers = []
        if self.shelf is not None:
            self.shelf.close()
            self.shelf = None

    def _until_ready(self) -> None:
        """Wait for every worker to be ready; one that dies meanwhile is found dead when it has a job."""
        for worker in self.workers:
            with contextlib.suppress(EOFError, OSError):
                while worker.settling:
                    worker.answer()

    def _hand_out(self, waiting: deque[Job], ahead: int) -> None:
        """A job for every idle worker; and, while there are enough, the next ones, so that nobody waits for us."""
        for held in range(ahead + 1):
            for worker in self.workers:
                if len(worker.jobs) == held and len(waiting) > held * len(self.workers):
                    job = waiting.popleft()
                    worker.do(job, self.store.get(job.client, job.version))

    def _answer(self, worker: Worker, waiting: deque[Job], deaths: Counter[int]) -> Outcome | None:
        """A worker's outcome; if it died, it is replaced and its jobs wait again, or the first of them has failed."""
        try:
            return worker.answer()
        except (EOFError, OSError):  # OSError: it died in the middle of its answer
            self._replace(worker)
        job, *others = worker.jobs
        deaths[job.client] += 1
        failed = deaths[job.client] >= TRIES
        waiting.extendleft(reversed(others if failed else worker.jobs))
        return Outcome(job.client, error="worker died") if failed else None

    def _replace(self, worker: Worker) -> None:
        at = self.workers.index(worker)
        worker.end()
        self.workers[at] = Worker(worker.device, [w for w in self.workers if w is not worker], self.shelf)
        self.workers[at].begin(self.order)

    def _fail_late_jobs(self, waiting: deque[Job]) -> Iterator[Outcome]:
        """Fail the jobs that are not done by the deadline."""
        late = [job for w in self.workers for job in w.jobs] + list(waiting)
        waiting.clear()
        self._replace_busy_workers()
        yield from (Outcome(job.client, error="deadline") for job in late)

    def _replace_busy_workers(self) -> None:
        """A worker with an unfinished job would answer the next question with the last one's: replace it."""
        for worker in [w for w in self.workers if w.jobs]:
            self._replace(worker)
