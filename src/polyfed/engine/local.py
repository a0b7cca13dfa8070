"""The local engine: persistent worker processes forked from this one, or no process at all (workers=0), same bits."""

import contextlib
import multiprocessing
import os
import signal
import threading
import time
import traceback
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from threadpoolctl import threadpool_limits

from polyfed.config import Config, Tree, make_config
from polyfed.engine.base import Crew, Engine, engine
from polyfed.engine.channel import Channel, channels
from polyfed.engine.heap import keep_freed_memory
from polyfed.engine.memory import MemoryStore
from polyfed.engine.work import Job, Outcome, World, sentence
from polyfed.message import Message
from polyfed.registry import param

AHEAD = 1  # jobs a worker is given beyond the one it does
TRIES = 2  # a job whose worker died is done again once, from the same inputs
PATIENCE = 0.2  # seconds between looks at the clock and at stop requests


@engine("local")
class Local(Engine):
    """This machine."""

    workers: int | None = param(
        None, "worker processes; 0 works in this process; by default one per core", ge=0, le=1024
    )

    def open(self) -> Crew:
        """Serial on a GPU or when asked; otherwise a worker per core."""
        count = self.workers if self.workers is not None else cores()
        return Workers(count) if count else Serial()


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Compute with this many threads inside; the caller's number is back afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with threadpool_limits(count):
            yield
    finally:
        torch.set_num_threads(before)


class Serial:
    """Does every job in this process: the debugger."""

    def begin(self, config: Config, world: World, store: MemoryStore) -> None:
        # a world of its own: client work must not share a resident model with the server between its steps
        self.world, self.store = World(config), store

    def hello(self) -> Iterator[Outcome]:
        """Asked in this process: the worlds are the same."""
        return greet(self.world)

    def run(
        self, jobs: Sequence[Job], deadline: float | None, meanwhile: Callable[[], None] | None
    ) -> Iterator[Outcome]:
        """One after the other."""
        end = None if deadline is None else time.monotonic() + deadline
        for job in jobs:
            if end is not None and time.monotonic() > end:
                yield Outcome(job.client, error="deadline")
                continue
            sent = replace(job, down=crossed(job.down))
            with threads(1):
                outcome = self.world.do(sent, self.store.get(job.client, job.version))
            if end is not None and time.monotonic() > end:
                outcome = Outcome(job.client, error="deadline")
            yield returned(outcome)
        if meanwhile:
            meanwhile()

    def close(self) -> None:
        """There is nothing to end."""


def crossed(message: Message) -> Message:
    """The message as another process would get it: nothing of the sender's can be changed through it."""
    return Message.decode(message.encode())


def returned(outcome: Outcome) -> Outcome:
    """The outcome as another process would have sent it."""
    try:
        return replace(outcome, up=crossed(outcome.up))
    except Exception as error:
        return unsendable(outcome, error)


def unsendable(outcome: Outcome, error: Exception) -> Outcome:
    """What is said instead of an outcome that cannot be encoded."""
    return Outcome(outcome.client, error=sentence(error), trace=traceback.format_exc())


def greet(world: World) -> Iterator[Outcome]:
    """Every client's hello, from a world that holds them all."""
    for client in range(len(world.federation.clients)):
        yield world.do(Job("hello", client, 0), None)


class Worker:
    """One process and the channel to it."""

    def __init__(self, others: Sequence["Worker"]):
        context = multiprocessing.get_context("fork")
        self.channel, theirs = channels(context)
        inherited = [w.channel for w in others]
        self.process = context.Process(target=serve, args=(theirs, self.pipe, inherited, os.getpid()), daemon=True)
        with warnings.catch_warnings():  # forking beside our own progress thread is safe: workers never print
            warnings.simplefilter("ignore", DeprecationWarning)
            self.process.start()
        theirs.pipe.close()
        self.jobs: deque[Job] = deque()  # in the order it does them

    @property
    def pipe(self) -> Connection:
        """Where its answers are awaited."""
        return self.channel.pipe

    def begin(self, tree: Tree) -> None:
        """A run begins; a dead worker is found when its answer is awaited."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.channel.send(tree)

    def do(self, job: Job, blob: bytes | None) -> None:
        """Hand over a job and the memory it starts from."""
        self.jobs.append(job)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.channel.send(replace(job, down=Message()), job.down, blob)

    def answer(self) -> Outcome:
        """What it made of its first job."""
        outcome, up, memory = self.channel.receive()
        self.jobs.popleft()
        return replace(outcome, up=up, memory=memory)

    def end(self) -> None:
        """Kill it."""
        self.channel.close()
        self.process.kill()
        self.process.join()


class Workers:
    """Worker processes that live as long as the crew; each builds its own world from the config."""

    def __init__(self, count: int):
        self.workers: list[Worker] = []
        self.count = count
        self.tree: Tree = {}

    def begin(self, config: Config, world: World, store: MemoryStore) -> None:
        self.world, self.store, self.tree = world, store, config.dump()
        if not self.workers:
            keep_freed_memory()  # workers inherit it
            for _ in range(self.count):
                self.workers.append(Worker(self.workers))
        for worker in self.workers:
            worker.begin(self.tree)

    def hello(self) -> Iterator[Outcome]:
        """Asked in this process: the workers' worlds are the same."""
        return greet(self.world)

    def run(
        self, jobs: Sequence[Job], deadline: float | None, meanwhile: Callable[[], None] | None
    ) -> Iterator[Outcome]:
        """Longest first, each to the next free worker."""
        waiting = deque(sorted(jobs, key=lambda job: (-job.size, job.client)))
        deaths: Counter[int] = Counter()
        end = None if deadline is None else time.monotonic() + deadline
        ahead = AHEAD if deadline is None else 0  # nobody is late because he waited behind another
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
                    yield from self._give_up(waiting)
                if not ready:
                    yield Outcome(-1)  # a breath: the caller looks whether it was asked to stop
        finally:
            self._abandon()

    def close(self) -> None:
        """End every process."""
        for worker in self.workers:
            worker.end()
        self.workers = []

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
        self.workers[at] = Worker([w for w in self.workers if w is not worker])
        self.workers[at].begin(self.tree)

    def _give_up(self, waiting: deque[Job]) -> Iterator[Outcome]:
        """Whoever is not back by the deadline is lost to the round."""
        late = [job for w in self.workers for job in w.jobs] + list(waiting)
        waiting.clear()
        self._abandon()
        yield from (Outcome(job.client, error="deadline") for job in late)

    def _abandon(self) -> None:
        """A worker with an unfinished job would answer the next question with the last one's: replace it."""
        for worker in [w for w in self.workers if w.jobs]:
            self._replace(worker)


def serve(channel: Channel, other_end: Connection, inherited: list[Channel], parent: int) -> None:
    """A worker's life: build the world it is told to, do jobs, end with its parent however that dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    other_end.close()
    for other in inherited:
        other.close()
    threading.Thread(target=follow, args=(parent,), daemon=True).start()
    torch.set_num_threads(1)
    world: World | None = None
    failure = ""
    with threadpool_limits(1):
        while True:
            try:
                order, down, blob = channel.receive()
            except (EOFError, OSError):
                os._exit(0)
            if not isinstance(order, Job):
                world, failure = _settle(order)
                continue
            job = replace(order, down=down)
            outcome = world.do(job, blob) if world else Outcome(job.client, error=failure)
            try:
                channel.send(replace(outcome, up=Message(), memory=None), outcome.up, outcome.memory)
            except OSError:  # nobody listens any more
                os._exit(0)
            except Exception as error:  # nothing of it was sent
                channel.send(unsendable(outcome, error))


def _settle(tree: dict[str, Any]) -> tuple[World | None, str]:
    try:
        return World(make_config(tree)), ""
    except Exception as error:
        return None, f"a worker could not set up: {type(error).__name__}: {error}"


def follow(parent: int) -> None:
    """End when the parent is gone, whatever this process is doing."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
