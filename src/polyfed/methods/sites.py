"""Where a method's hooks run: the client with its data and memory, the server with its params and state."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyfed import rng
from polyfed.config import Train
from polyfed.data.samples import Samples
from polyfed.message import Bundle, Memory, Message, State
from polyfed.models.base import Net
from polyfed.params import Params, Slice, body, everything, trunk
from polyfed.parts.average import average, shares
from polyfed.parts.fit import Augment, Correct, Fit, Loss, Order, Stream, Tally, shuffled
from polyfed.parts.resident import Batch, Cut, Frozen, Resident, in_batches
from polyfed.parts.steps import Step, sgd


@dataclass(frozen=True)
class Task:
    """What every site knows of the experiment."""

    seed: int = 0
    rounds: int = 1
    participation: float = 1.0
    classes: int = 2
    train: Train = field(default_factory=Train)
    weighting: str | None = None  # None: the method's own
    buffers: str | None = None
    clients: int = 1
    shape: tuple[int, ...] = ()

    @property
    def expected_rounds(self) -> int:
        """How often a client expects to be selected: int(Q * T), at least once."""
        return max(int(self.participation * self.rounds), 1)


class Site:
    """What client and server have in common: a resident model, a key, and the one training loop."""

    def __init__(self, resident: Resident, task: Task, round: int, client: int, augment: Augment | None = None):
        self.resident, self.task, self.round = resident, task, round
        self.model: Net = resident.model
        self.common: Params = resident.initial  # the model everybody shares, as this site knows it
        self._client, self._augment = client, augment
        self.tally = Tally()
        self._fits: dict[str, int] = {}
        self._going: tuple[Stream, dict[str, Tensor]] | None = None

    @property
    def live(self) -> Params:
        """The values of the resident model, as they are now."""
        return self.resident.params

    @property
    def steps(self) -> int:
        """Steps taken since this work began."""
        return self.tally.steps

    @property
    def travelled(self) -> float:
        """Sum of the learning rates of those steps."""
        return self.tally.travelled

    @property
    def lr(self) -> float:
        """This round's learning rate; after the last round it stays what it was."""
        return self.task.train.lr_at(min(self.round, self.task.rounds), self.task.rounds)

    def draw(self, purpose: str, *where: int) -> np.random.Generator:
        """Keyed randomness of this site in this round."""
        return rng.generator(self.task.seed, purpose, self.round, self._client, *where)

    def frozen(self, params: Params) -> Frozen:
        """A further copy of the model with these values: eval mode, no gradient."""
        return self.resident.frozen(params, augmented=self._augment is not None)

    def fresh(self, part: Slice, *where: int) -> None:
        """Give a slice of the live model new initial values, keyed by the site."""
        with rng.seeded(self.task.seed, "fresh", self.round, self._client, *where):
            values = self.resident.fresh()
        self.live.put(part, *values.get(part))

    def per_epoch(self, on: Samples) -> int:
        """Batches in one pass."""
        return -(-len(on) // self.task.train.batch)

    def fit(
        self,
        loss: Loss,
        on: Samples,
        steps: int | None = None,
        epochs: float | None = None,
        train: Slice = everything,
        batches: Order = shuffled,
        batch: int | None = None,
        step: Step = sgd,
        correct: Correct | None = None,
        lr: float | None = None,
        bn: str = "train",
        go_on: bool = False,
        rule: Train | None = None,
        key: str = "batches",
    ) -> int:
        """The one training loop, on the resident model; gives the steps taken."""
        if len(on) == 0:
            return 0
        rule = rule or self.task.train
        if not (go_on and self._going):
            self._going = self._stream(on, batch or rule.batch, batches, key), {}
        stream, velocity = self._going
        if steps is None:
            steps = round(stream.per_epoch * (rule.epochs if epochs is None else epochs))
        going = Fit(
            self.resident, loss, stream, rule, self.lr if lr is None else lr, train, bn, correct, self.tally, velocity
        )
        taken = going.run(steps, step)
        self.resident.modes.set(training=False)
        return taken

    def _stream(self, on: Samples, batch: int, order: Order, key: str) -> Stream:
        """A run of batches of its own; under any key but the usual one all sites draw alike."""
        if key != "batches":
            return Stream(on, batch, order, lambda epoch: rng.generator(self.task.seed, key, self.round, epoch), None)
        # numbered apart for raw data and for features: methods that tune a head first still share their raw batches
        purpose = key if on.cut is None else f"{key}-{on.cut}"
        number = self._fits.get(purpose, 0)
        self._fits[purpose] = number + 1
        return Stream(on, batch, order, lambda epoch: self.draw(purpose, number, epoch), self._augment)


class Client(Site):
    """One client at work: what it received, what it remembers, what it holds."""

    def __init__(
        self,
        id: int,
        resident: Resident,
        task: Task,
        round: int,
        data: Samples,
        counts: Tensor,
        received: Bundle,
        memory: Memory,
        augment: Augment | None = None,
    ):
        super().__init__(resident, task, round, id, augment)
        self.id, self.data, self.counts, self.received, self.memory = id, data, counts, received, memory
        self.common = received.get("w", resident.initial)
        self.new = len(memory) == 0
        self.scratch = Bundle()  # what the hooks of one work tell each other; gone with it
        self._features: dict[str, tuple[Tensor, Samples]] = {}

    @property
    def params(self) -> Params:
        """The live values: what is trained, sent and kept."""
        return self.live

    @property
    def n(self) -> int:
        """How many samples it trains on."""
        return len(self.data)

    @property
    def classes(self) -> Tensor:
        """O_k: the classes it holds."""
        return torch.nonzero(self.counts).flatten()

    def fit(self, loss: Loss, on: Samples | None = None, **options: Any) -> int:  # type: ignore[override]
        """The one training loop on this client's data (or `on`); gives the steps taken."""
        return super().fit(loss, self.data if on is None else on, **options)

    def load(self, params: Params) -> None:
        """Make these the live values."""
        self.params.set(params)

    def halves(self, share: float = 0.5, at_least: int = 5) -> tuple[int, int]:
        """A round's steps in two stages (MAP 3.3): n_tot = max(int(E * batches), 5), n_1 and the rest, each >= 1."""
        total = max(int(self.task.train.epochs * self.per_epoch(self.data)), at_least)
        first = min(max(int(total * share), 1), total - 1)
        return first, total - first

    def mean_loss(self, params: Params, loss: Loss) -> float:
        """The mean of a loss over this client's data at these values; the live ones are left as they were."""
        live = self.params.copy()
        self.load(params)
        self.model.eval()
        total = 0.0
        with torch.no_grad():
            for start in range(0, self.n, 128):
                index = torch.arange(start, min(start + 128, self.n), device=self.data.rows.device)
                x, y = self.data.take(index)
                total += float(loss(Batch(self.model, x, y, index, self.data))) * len(y)
        self.load(live)
        return total / max(self.n, 1)

    def features(self, cut: Cut = "head") -> Samples:
        """This client's data as what reaches `cut`, computed once while nothing below it changes.

        Where inputs are augmented they change every epoch: the data themselves come back, and fit runs the frozen part.
        """
        if self._augment is not None:
            return self.data
        below, _ = self.params.get(body if cut == "head" else trunk)
        kept = self._features.get(cut)
        if kept is None or not torch.equal(kept[0], below):
            self.model.eval()
            rows = in_batches(self.model.features if cut == "head" else self.model.trunk, self.data, 128)
            kept = self._features[cut] = below, Samples.of(rows, self.data.y, cut)
        return kept[1]


@dataclass(frozen=True)
class Known:
    """What the server knows of a client: what it said in its hello."""

    id: int
    name: str
    n: int
    counts: tuple[int, ...] | None


@dataclass(frozen=True)
class Upload:
    """What one client sent up, after the gate."""

    client: int
    n: int
    message: Message


class Server(Site):
    """The server between rounds: the shared model, its own state, and what it knows of the clients."""

    def __init__(self, resident: Resident, task: Task, clients: Sequence[Known], weighting: str, shared: Slice):
        super().__init__(resident, task, 0, -1)
        self.clients, self.weighting, self.shared = {c.id: c for c in clients}, weighting, shared
        self.state = State()
        self.common = resident.initial.copy()
        self.records: dict[str, np.ndarray] = {}
        self.said: list[str] = []
        self._parts: dict[str, tuple[Tensor, Tensor]] = {}

    @property
    def params(self) -> Params:
        """The shared model."""
        return self.common

    @params.setter
    def params(self, value: Params) -> None:
        self.common = value
        self._parts.clear()

    @property
    def class_counts(self) -> list[int]:
        """The federation's training samples per class; nothing where somebody does not tell his."""
        told = [known.counts for known in self.clients.values() if known.counts is not None]
        return np.sum(told, axis=0).tolist() if len(told) == len(self.clients) else []

    def part(self, part: Slice) -> tuple[Tensor, Tensor]:
        """A slice of the shared model to send; gathered once until the model changes."""
        if part.text not in self._parts:
            self._parts[part.text] = self.common.get(part)
        return self._parts[part.text]

    def weights(self, uploads: Sequence[Upload]) -> Tensor:
        """p_k of these uploads under the run's weighting."""
        return shares([u.n for u in uploads], self.weighting)

    def average(self, uploads: Sequence[Upload], name: str = "w") -> Any:
        """The weighted average of a field; for the model's slice, the shared model with that slice replaced."""
        rows = [u.message[name] for u in uploads]
        mean = average(rows, self.weights(uploads))
        # integer buffers are never averaged: the first contributor's are taken (methods.md 0.1)
        return self.model_of(uploads[0], mean) if name == "w" else mean

    def model_of(self, upload: Upload, floats: Tensor | None = None) -> Params:
        """An upload as a whole model: the shared one with the slice it sent; new floats may stand for its own."""
        integers = upload.message.get("w.integers", self.common.integers[:0])
        if floats is not None and self.common.layout.is_whole(self.shared):
            return Params(self.common.layout, floats, integers.clone())
        params = self.common.copy()
        params.put(self.shared, upload.message["w"] if floats is None else floats, integers)
        return params

    def say(self, text: str) -> None:
        """Something for the log."""
        self.said.append(text)

    def record(self, name: str, array: Any) -> None:
        """Keep an array of this round for pictures."""
        self.records[name] = np.asarray(array)
