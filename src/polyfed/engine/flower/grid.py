"""A crew over Flower's grid: jobs go out as messages, replies come back as outcomes, in simulation and deployment."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from polyfed.engine.flower.records import job_to_records, outcome_from_records
from polyfed.engine.work import Job, Outcome, sentence

TYPES = {"hello": "query", "train": "train", "finish": "train", "evaluate": "evaluate"}  # Flower's kinds of messages
WHO = "query.who"  # asks a node whose it is, before anything else
PAUSE = 0.05  # seconds between looks for replies
UNSENT = "the message could not be sent"


class Posted:
    """Messages on their way, by client, until they are answered or given up."""

    def __init__(self, grid: Grid, deadline: float | None):
        self.grid = grid
        self.end = None if deadline is None else time.monotonic() + deadline
        self.ttl = None if deadline is None else deadline + 60  # Flower forgets a message only after we did
        self.waiting: dict[str, int] = {}  # message id -> client
        self.broke: dict[int, int] = {}  # client -> how often its job broke a worker

    def send(self, node: int, client: int, kind: str, group: str, content: RecordDict) -> None:
        """Send one message by itself; several would have to fit into one request."""
        message = Message(content, node, kind, ttl=self.ttl, group_id=group)
        for key in self.grid.push_messages([message]):
            if key:
                self.waiting[key] = client

    def replies(self) -> Iterator[tuple[int, Message]]:
        """Yield the replies that have arrived since the last call."""
        for message in self.grid.pull_messages(list(self.waiting)) if self.waiting else ():
            client = self.waiting.pop(message.metadata.reply_to_message_id, None)
            if client is not None:
                yield client, message

    def forget(self, client: int) -> None:
        """Stop waiting for a client's reply."""
        self.waiting = {key: k for key, k in self.waiting.items() if k != client}

    @property
    def late(self) -> bool:
        """Whether the deadline has passed."""
        return self.end is not None and time.monotonic() > self.end


class OverGrid:
    """Sends jobs to nodes; a subclass says which node is whose, and what a worker must know beside the job."""

    pause = PAUSE
    broken = "worker died"  # what is said of a client whose job Flower itself could not bring to its end
    mail: type[Posted] = Posted
    tries = 1  # how often a job may break its worker; above 1, what breaks is set up anew

    def __init__(self) -> None:
        self.nodes: dict[int, int] = {}  # client -> node

    def order(self, job: Job) -> Mapping[str, Any]:
        """What goes with a job."""
        raise TypeError(f"{type(self).__name__} must say what goes with a job")

    def grid(self) -> Grid:
        """The grid, in working order."""
        raise TypeError(f"{type(self).__name__} must say where its grid is")

    def abandon(self) -> None:
        """Give up the jobs that are under way."""

    def missing(self, client: int) -> str:
        """Why a client cannot be reached, or nothing; asked while its answer is awaited."""
        return ""

    def run(
        self, jobs: Sequence[Job], deadline: float | None, meanwhile: Callable[[], None] | None
    ) -> Iterator[Outcome]:
        """Send all jobs at once; yield outcomes as they arrive."""
        left = {job.client: job for job in sorted(jobs, key=lambda job: (-job.size, job.client))}
        posted = self.mail(self.grid(), deadline)
        self._post(posted, left)
        try:
            if meanwhile:
                meanwhile()
            while left:
                for outcome in self._arrived(posted, left):
                    del left[outcome.client]
                    yield outcome
                if left:
                    yield Outcome(-1)  # no outcome yet: the caller checks whether it was asked to stop
                    time.sleep(self.pause)
        finally:
            if left:
                self.abandon()

    def _post(self, posted: Posted, jobs: Mapping[int, Job]) -> None:
        for client, job in jobs.items():
            if client in self.nodes:
                content = job_to_records(job, self.order(job))
                posted.send(self.nodes[client], client, TYPES[job.kind], str(job.round), content)

    def _arrived(self, posted: Posted, left: Mapping[int, Job]) -> Iterator[Outcome]:
        """Replies, then those who will not reply any more."""
        broken = []
        for client, message in posted.replies():
            outcome = outcome_of(client, message, self.broken)
            if message.has_error():
                broken.append((message.metadata.created_at, outcome))
            else:
                yield outcome
        for outcome in (outcome for _, outcome in sorted(broken, key=lambda pair: pair[0])):
            if self.tries == 1:
                yield outcome
            else:  # who broke first broke the worker; the others found it broken
                yield from self._set_up_anew(posted, left, outcome)
                return
        for client in list(left):
            why = self.missing(client) or ("" if client in posted.waiting.values() else UNSENT)
            if why:
                posted.forget(client)
                yield Outcome(client, error=why)
        if posted.late:
            late = list(posted.waiting.values())
            posted.waiting.clear()
            self.abandon()
            yield from (Outcome(client, error="deadline") for client in late)

    def _set_up_anew(self, posted: Posted, left: Mapping[int, Job], outcome: Outcome) -> Iterator[Outcome]:
        """Send the jobs that were lost with a worker again, from the same inputs, but none more than `tries` times."""
        posted.broke[outcome.client] = posted.broke.get(outcome.client, 0) + 1
        if posted.broke[outcome.client] == self.tries:
            yield outcome
        self.abandon()
        posted.waiting.clear()
        if left:
            posted.grid = self.grid()
            self._post(posted, left)


def outcome_of(client: int, message: Message, broken: str) -> Outcome:
    """A reply as an outcome; one that is none, or another client's, is an error."""
    if message.has_error():
        return Outcome(client, error=broken, trace=str(message.error.reason))
    try:
        outcome = outcome_from_records(message.content)
    except Exception as error:  # a foreign peer may send anything
        return Outcome(client, error=f"the reply is not an outcome: {sentence(error)}")
    if outcome.client != client:
        return Outcome(client, error=f"the reply is client {outcome.client}'s")
    return outcome
