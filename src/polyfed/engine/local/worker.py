"""One worker: the process, the channel to it, and what it does there."""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any

import torch
from threadpoolctl import threadpool_limits

from polyfed.config import Tree, make_config
from polyfed.data.federation import divided
from polyfed.engine.local.channel import Channel, Reader, channels
from polyfed.engine.local.shelf import Shelf, Shelved, hold_objects, taken
from polyfed.engine.parent import end_with
from polyfed.engine.work import Job, Outcome, World, device_of, unsendable
from polyfed.message import Message


@dataclass(frozen=True)
class Begin:
    """The order to begin a run: the world is to be built from this. A forked worker has samples and objects already."""

    tree: Tree
    samples: Shelved | None = None
    objects: bytes = b""

    def on(self, device: str) -> "Begin":
        """The same run, on this device."""
        return replace(self, tree={**self.tree, "device": device})


class Worker:
    """One process on one device, and the channel to it; with a shelf it is spawned, without one it is forked."""

    def __init__(self, device: str, others: Sequence["Worker"], shelf: Shelf | None):
        self.device = device
        self.jobs: deque[Job] = deque()  # in the order it does them
        self.settling = 0  # runs it was told to begin and has not said it is ready for
        context: Any = multiprocessing.get_context("fork" if shelf is None else "spawn")
        self.channel, theirs = channels(context)
        inherited = [self.pipe, *(w.channel for w in others)] if shelf is None else []
        reader = None if shelf is None else shelf.reader()
        self.process = context.Process(target=serve, args=(theirs, inherited, os.getpid(), reader), daemon=True)
        with _forking() if shelf is None else _spawning():
            self.process.start()
        theirs.pipe.close()

    @property
    def pipe(self) -> Connection:
        """Where its answers are awaited."""
        return self.channel.pipe

    def begin(self, order: Begin) -> None:
        """A run begins."""
        with contextlib.suppress(EOFError, OSError):  # that it is dead is found when its answer is awaited
            while self.settling and self.pipe.poll():
                self.answer()
        self.settling += 1
        self._tell(order.on(self.device))

    def do(self, job: Job, blob: bytes | None) -> None:
        """Hand over a job and the memory it starts from."""
        self.jobs.append(job)
        self._tell(replace(job, down=Message()), job.down, blob)

    def _tell(self, value: Any, message: Message | None = None, blob: bytes | None = None) -> None:
        """Send something; a worker that did not get all of it would wait for ever, so it is ended.

        That it is dead is found when its answer is awaited.
        """
        try:
            self.channel.send(value, message, blob)
        except OSError:
            self.process.kill()

    def answer(self) -> Outcome | None:
        """What it made of its first job; None where it says that it is ready for a run."""
        outcome, up, memory = self.channel.receive()
        if outcome is None:
            self.settling -= 1
            return None
        self.jobs.popleft()
        return replace(outcome, up=up, memory=memory)

    def end(self) -> None:
        """Kill it."""
        self.channel.close()
        self.process.kill()
        self.process.join()


@contextlib.contextmanager
def _forking() -> Iterator[None]:
    """Python warns of threads; forking beside our own progress thread is safe, since workers never print."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


@contextlib.contextmanager
def _spawning() -> Iterator[None]:
    """A process spawned inside does not run the user's script again, and a Ctrl-C while it starts is not its own."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    resource_tracker.ensure_running()  # started by the first spawn, it would unblock the signal before that spawn
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def serve(channel: Channel, inherited: list[Connection | Channel], parent: int, shelf: Reader | None) -> None:
    """A worker's life: build the world it is told to, do jobs, end with its parent however that dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in inherited:
        other.close()
    threading.Thread(target=end_with, args=(parent,), daemon=True).start()
    torch.set_num_threads(1)
    world: World | None = None
    failure = ""
    with threadpool_limits(1):
        while True:
            try:
                order, down, blob = channel.receive()
            except (EOFError, OSError):
                os._exit(0)
            if isinstance(order, Begin):
                world = None  # its samples are not read any more
                world, failure = _build_world(order, shelf)
                _answer(channel, None)
                continue
            job = replace(order, down=down)
            _answer(channel, world.do(job, blob) if world else Outcome(job.client, error=failure))


def _answer(channel: Channel, outcome: Outcome | None) -> None:
    """Send an outcome, or the word that this worker is ready."""
    try:
        if outcome is None:
            channel.send(None)
        else:
            channel.send(replace(outcome, up=Message(), memory=None), outcome.up, outcome.memory)
    except OSError:  # nobody listens any more
        os._exit(0)
    except Exception as error:  # nothing of it was sent
        assert outcome is not None
        channel.send(unsendable(outcome, error))


def _build_world(order: Begin, shelf: Reader | None) -> tuple[World | None, str]:
    try:
        hold_objects(order.objects)
        config = make_config(order.tree)
        device, federation = device_of(config.device), None
        if device.type == "cuda":
            torch.cuda.set_device(device)
        if order.samples is not None and shelf is not None:
            samples = taken(order.samples, shelf)
            federation = divided(samples, config.data, config.split, config.seed, device=device)
        return World(config, federation, device), ""
    except Exception as error:
        return None, f"a worker could not set up: {type(error).__name__}: {error}"
