"""The server as a method sees it: the shared model, its state, what it knows about the clients, and their uploads."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from polyfed.data.samples import Samples
from polyfed.message import Message, State
from polyfed.methods.sites.site import Site, Task
from polyfed.params import Params, Slice
from polyfed.parts.average import average, mean_number, shares
from polyfed.parts.resident import Resident


@dataclass(frozen=True)
class Known:
    """What the server knows about a client, from its hello."""

    id: int
    name: str
    n: int
    counts: tuple[int, ...] | None  # None where the client does not disclose them

    @property
    def disclosed(self) -> str:
        """What the client disclosed about its data: `n` alone, or the samples of each class, too."""
        return "n" if self.counts is None else "counts"


@dataclass(frozen=True)
class Upload:
    """What one client sent up, after the gate, and what it had been sent: updates are measured from that."""

    client: int
    n: int
    message: Message
    sent: Message = field(default_factory=Message)


class Robust(Protocol):
    """What takes the place of the weighted average of models; the engine gives it to the server."""

    def __call__(self, uploads: Sequence[Upload], shares: Tensor) -> Tensor:
        """The robust mean of the uploaded models, where `shares` are the weights of the method."""


def _no_samples(task: Task, device: torch.device) -> Samples:
    return Samples.of(torch.empty(0, *task.shape, device=device), torch.empty(0, dtype=torch.int64, device=device))


class Server(Site):
    """The server between rounds: the shared model, its own state, and what it knows of the clients."""

    def __init__(
        self,
        resident: Resident,
        task: Task,
        clients: Sequence[Known],
        weighting: str,
        shared: Slice,
        public: Samples | None = None,
    ):
        super().__init__(resident, task, 0, -1)
        self.public = public or _no_samples(task, resident.device)  # `split.public` samples that are in no test set
        self.clients, self.weighting, self.slice = {c.id: c for c in clients}, weighting, shared
        self.state = State()
        self.shared = resident.initial.copy()
        self.averaged: Callable[[Server, Sequence[Upload]], Params] | None = None  # privacy=user: a noisy mean
        self.records: dict[str, np.ndarray] = {}
        self.said: list[str] = []
        self.defence: Robust | None = None

    @property
    def class_counts(self) -> list[int]:
        """The federation's training samples per class; empty where a client does not disclose its counts."""
        told = [known.counts for known in self.clients.values() if known.counts is not None]
        return np.sum(told, axis=0).tolist() if len(told) == len(self.clients) else []

    def part(self, part: Slice) -> tuple[Tensor, Tensor]:
        """A slice of the shared model to send; gathered once until the model changes."""
        if part.text not in self._parts:
            self._parts[part.text] = self.shared.get(part)
        return self._parts[part.text]

    def weights(self, uploads: Sequence[Upload], weighting: str | None = None) -> Tensor:
        """p_k of these uploads under the run's weighting, or another."""
        return shares([u.n for u in uploads], weighting or self.weighting)

    def average(self, uploads: Sequence[Upload], name: str = "w", weighting: str | None = None) -> Any:
        """The weighted average of a field; for the model's slice, the shared model with that slice replaced.

        Where the run has a defence, it makes the average of models; other fields are averaged plainly.
        """
        if self.averaged is not None:
            return self.averaged(self, uploads)
        weights = self.weights(uploads, weighting)
        if name == "w" and self.defence is not None:
            return self.model_of(uploads[0], self.defence(uploads, weights))
        rows = [u.message[name] for u in uploads]
        if not isinstance(rows[0], Tensor):
            return mean_number(rows, [u.n for u in uploads], weighting or self.weighting)
        mean = average(rows, weights)
        # integer buffers are never averaged: the first contributor's are taken (docs/changed-from-papers.md)
        return self.model_of(uploads[0], mean) if name == "w" else mean

    def model_of(self, upload: Upload, floats: Tensor | None = None) -> Params:
        """An upload as a whole model: the shared one with the slice it sent; new floats may stand for its own."""
        integers = upload.message.get("w.integers", self.shared.integers[:0])
        if floats is not None and self.shared.layout.is_whole(self.slice):
            return Params(self.shared.layout, floats, integers.clone())
        params = self.shared.copy()
        params.put(self.slice, upload.message["w"] if floats is None else floats, integers)
        return params

    def say(self, text: str) -> None:
        """Write a line to the log of the run."""
        self.said.append(text)

    def record(self, name: str, array: Any) -> None:
        """Keep an array of this round for pictures."""
        self.records[name] = np.asarray(array)
