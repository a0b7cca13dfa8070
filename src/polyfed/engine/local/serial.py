"""Every job is done in this process, but its messages are encoded and decoded as if it were another process."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from polyfed.config import Config
from polyfed.engine.memory import MemoryStore
from polyfed.engine.threads import threads
from polyfed.engine.work import Job, Outcome, World, device_of, unsendable
from polyfed.message import Message


class Serial:
    """Does every job in this process, one after the other, which is what a debugger needs."""

    def begin(self, config: Config, world: World, store: MemoryStore) -> None:
        # a world of its own: client work must not share a resident model with the server between its steps
        self.world, self.store = World(config, device=device_of(config.device)), store

    def hello(self) -> Iterator[Outcome]:
        """Asked in this process: the worlds are the same."""
        return hellos(self.world)

    def run(
        self, jobs: Sequence[Job], deadline: float | None, meanwhile: Callable[[], None] | None
    ) -> Iterator[Outcome]:
        """Do the jobs one after the other."""
        end = None if deadline is None else time.monotonic() + deadline
        for job in jobs:
            if end is not None and time.monotonic() > end:
                yield Outcome(job.client, error="deadline")
                continue
            sent = replace(job, down=as_received(job.down))
            with threads(1):
                outcome = self.world.do(sent, self.store.get(job.client, job.version))
            if end is not None and time.monotonic() > end:
                outcome = Outcome(job.client, error="deadline")
            yield as_sent(outcome)
        if meanwhile:
            meanwhile()

    def close(self) -> None:
        """Do nothing: there is no process to end."""


def as_received(message: Message) -> Message:
    """The message as another process would get it: nothing of the sender's can be changed through it."""
    return Message.decode(message.encode())


def as_sent(outcome: Outcome) -> Outcome:
    """The outcome as another process would have sent it."""
    try:
        return replace(outcome, up=as_received(outcome.up))
    except Exception as error:
        return unsendable(outcome, error)


def hellos(world: World) -> Iterator[Outcome]:
    """Every client's hello, from a world that holds them all."""
    for client in range(len(world.federation.clients)):
        yield world.do(Job("hello", client, 0), None)
