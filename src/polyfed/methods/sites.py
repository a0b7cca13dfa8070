"""Where a method's hooks run: the client with its data and memory, the server with its params and state."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyfed import rng
from polyfed.config import Train
from polyfed.data.samples import Samples
from polyfed.message import Bundle, Memory, Message, State, digest_of
from polyfed.models.base import Net
from polyfed.params import Params, Slice, body, everything, trunk
from polyfed.parts.average import average, shares
from polyfed.parts.fit import Augment, Correct, Fit, Loss, Order, Stream, Tally, shuffled
from polyfed.parts.losses import LogitLoss
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
        self.resident, self.task = resident, task
        self.model: Net = resident.model
        self.shared = resident.initial
        self._client, self._augment = client, augment
        self._in_loss = False
        self.begin(round)

    def begin(self, round: int) -> None:
        """Start a round: counters, streams and tallies of the one before are gone, as they would be after a resume."""
        self.round = round
        self.tally = Tally()
        self._fits: dict[str, int] = {}
        self._going: tuple[Stream, dict[str, Tensor]] | None = None

    @property
    def shared(self) -> Params:
        """The model that everybody shares, as this site knows it."""
        return self._shared

    @shared.setter
    def shared(self, value: Params) -> None:
        self._shared = value
        self._parts: dict[str, tuple[Tensor, Tensor]] = {}  # slices of it that were gathered

    @property
    def live(self) -> Params:
        """The values of the resident model, as they are now; they carry no gradient, so a loss may not read them."""
        if self._in_loss:
            raise ValueError(
                "a loss read the live values, which carry no gradient: a term in parameters trains nothing there; "
                "write it in `correct`, which adds its gradient"
            )
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
        train: Slice | Sequence[Tensor] = everything,
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
        """The one training loop, on the resident model; gives the steps taken.

        Args:
            loss: What is minimised: a function of a batch that gives a number.
            on: What it is trained on: data, some of their classes, cached features, or rows that came in a message.
            steps: How many steps; by default those of `epochs`.
            epochs: How many passes; by default what `rule` says.
            train: The slice that is trained, or a list of tensors that are no part of the model; the rest is frozen.
            batches: The order of the samples in an epoch: `shuffled` or `balanced`.
            batch: The samples in a batch; by default what `rule` says.
            step: What moves the weights.
            correct: Terms in parameters: changes the flat gradient in place before each step.
            lr: The learning rate; by default this round's.
            bn: Whether batch normalisation in what is trained learns statistics ("train") or not ("eval").
            go_on: Whether the momentum and the batches of the fit before go on.
            rule: Momentum, decay, clipping and the defaults above; by default the run's `train`.
            key: The name of the random order of batches; under any but the usual one all sites draw alike.
        """
        if len(on) == 0:
            return 0
        rule = rule or self.task.train
        if not (go_on and self._going):
            self._going = self._stream(on, batch or rule.batch, batches, key), {}
        stream, kept = self._going
        if steps is None:
            steps = rule.steps(stream.per_epoch) if epochs is None else round(stream.per_epoch * epochs)
        lr = self.lr if lr is None else lr
        watched = loss if isinstance(loss, LogitLoss) else self._watched(loss)
        going = Fit(self.resident, watched, stream, rule, lr, train, bn, correct, self.tally, kept)
        taken = going.run(steps, step)
        self.resident.modes.set(training=False)
        return taken

    def once(self, part: Slice, given: Iterable[Tensor], fit: Callable[[], object]) -> None:
        """Do a fit of a slice that every site of this round does alike; a process does it once and remembers it.

        Such a fit depends only on the slice, on the tensors given and on a key that all sites share. It is found by
        their digest, and leaves the values and the tally that it left the first time.
        """
        start = [*self.live.get(part), *given]
        key = digest_of(b"".join([str(self.round).encode(), *(t.cpu().numpy().tobytes() for t in start)]))
        if key not in self.resident.fitted:
            before, self.tally = self.tally, Tally()
            fit()
            self.resident.fitted.clear()  # of earlier rounds
            self.resident.fitted[key] = self.live.get(part), self.tally
            self.tally = before
        values, tally = self.resident.fitted[key]
        self.live.put(part, *values)
        self.tally.add(tally)
        self._going = None

    def _watched(self, loss: Loss) -> Loss:
        """The same loss; while it is computed, `live` says that it has no gradient."""

        def watched(batch: Batch) -> Tensor:
            self._in_loss = True
            try:
                return loss(batch)
            finally:
                self._in_loss = False

        return watched

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
        self.shared = received.get("w", resident.initial)
        self.new = len(memory) == 0
        self.scratch = Bundle()  # what the hooks of one work tell each other; gone with it
        self._features: dict[str, tuple[Tensor, Samples]] = {}

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
        self.live.set(params)

    def halves(self, share: float = 0.5) -> tuple[int, int]:
        """A round's steps in two stages, each of at least one step (MAP, algorithm 1)."""
        total = max(self.task.train.steps(self.per_epoch(self.data)), 2)
        first = min(max(int(total * share), 1), total - 1)
        return first, total - first

    def mean_loss(self, params: Params, loss: Loss) -> float:
        """The mean of a loss over this client's data at these values; the live ones are left as they were."""
        live = self.live.copy()
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
        below, _ = self.live.get(body if cut == "head" else trunk)
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
    counts: tuple[int, ...] | None  # None where it keeps them for itself

    @property
    def disclosed(self) -> str:
        """What it told of its data: n alone, or the samples of each class too."""
        return "n" if self.counts is None else "counts"


@dataclass(frozen=True)
class Upload:
    """What one client sent up, after the gate."""

    client: int
    n: int
    message: Message


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
        self.public = public or _no_samples(task, resident.device)  # split.public of them, in nobody's test set
        self.clients, self.weighting, self.slice = {c.id: c for c in clients}, weighting, shared
        self.state = State()
        self.shared = resident.initial.copy()
        self.records: dict[str, np.ndarray] = {}
        self.said: list[str] = []

    @property
    def class_counts(self) -> list[int]:
        """The federation's training samples per class; nothing where somebody does not tell his."""
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
        """The weighted average of a field; for the model's slice, the shared model with that slice replaced."""
        rows = [u.message[name] for u in uploads]
        mean = average(rows, self.weights(uploads, weighting))
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
        """Something for the log."""
        self.said.append(text)

    def record(self, name: str, array: Any) -> None:
        """Keep an array of this round for pictures."""
        self.records[name] = np.asarray(array)
