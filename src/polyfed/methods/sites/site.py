"""What client and server have in common: the task, a resident model, keyed randomness and the one training loop."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from polyfed import rng
from polyfed.config import Train
from polyfed.data.samples import Samples
from polyfed.methods.sites.fitted import Fitted, remember, start_digest
from polyfed.models.base import Net
from polyfed.params import Params, Slice, everything
from polyfed.parts.fit import Augment, Correct, Fit, Loss, Order, Poisson, Stream, Tally, poisson, shuffled
from polyfed.parts.losses import LogitLoss
from polyfed.parts.resident import Batch, Frozen, Resident
from polyfed.parts.steps import Step, sgd


@dataclass(frozen=True)
class Task:
    """What every site knows about the experiment."""

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
        self.idle = False  # whether every fit is skipped, as by a client that only pretends to train
        self._in_loss = False
        self.begin(round)

    def begin(self, round: int) -> None:
        """Start a round: counters, batches and tallies of the round before are dropped, as they are by a resume."""
        self.round = round
        self.tally = Tally()
        self._fits: dict[str, int] = {}
        self._last_fit: tuple[Stream, dict[str, Tensor]] | None = None  # its batches and its momentum

    @property
    def shared(self) -> Params:
        """The shared model: on a client the one it received, on the server the one that the next round sends."""
        return self._shared

    @shared.setter
    def shared(self, value: Params) -> None:
        self._shared = value
        self._parts: dict[str, tuple[Tensor, Tensor]] = {}  # slices of it that were already gathered

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
        """A random generator for a purpose, keyed by the seed, this round and this site."""
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
        """The number of batches in one pass over some samples."""
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
        patience: int | None = None,
    ) -> int:
        """The one training loop, on the resident model; gives the steps taken.

        Args:
            loss: What is minimised: a function of a batch that gives a number.
            on: What it is trained on: data, some of their classes, cached features, or rows that came in a message.
            steps: How many steps; by default those of `epochs`.
            epochs: How many passes; by default what `rule` says.
            train: The slice that is trained, or a list of tensors that are no part of the model; the rest is frozen.
            batches: The order of the samples in an epoch: `shuffled` or `balanced`; with `poisson` each batch is
                drawn for itself.
            batch: The samples in a batch; by default what `rule` says.
            step: What moves the weights.
            correct: Terms in parameters: changes the flat gradient in place before each step.
            lr: The learning rate; by default this round's.
            bn: Whether batch normalisation in what is trained learns statistics ("train") or not ("eval").
            go_on: Whether the momentum and the batches of the fit before go on.
            rule: Momentum, decay, clipping and the defaults above; by default the run's `train`.
            key: The name of the random order of batches; under any but the usual one all sites draw the same order.
            patience: End early where the loss no longer falls: its mean over so many steps is not the lowest so far.
        """
        if len(on) == 0 or self.idle:
            return 0
        rule = rule or self.task.train
        if not (go_on and self._last_fit):
            self._last_fit = self._stream(on, batch or rule.batch, batches, key), {}
        stream, kept = self._last_fit
        if steps is None:
            steps = rule.steps(stream.per_epoch) if epochs is None else round(stream.per_epoch * epochs)
        lr = self.lr if lr is None else lr
        watched = loss if isinstance(loss, LogitLoss) else self._watched(loss)
        work = Fit(self.resident, watched, stream, rule, lr, train, bn, correct, self.tally, kept)
        taken = work.run(steps, step, patience)
        self.resident.modes.set(training=False)
        return taken

    def once(self, part: Slice, given: Iterable[Tensor], fit: Callable[[], object], alike: bool = True) -> None:
        """Do a fit of a slice that will be asked for again from the same start; a process does it once.

        Such a fit depends only on the slice, on the tensors given and on a key: one that all sites of a round share
        (`alike`), or this site's own. It is found by their digest, and leaves the values and the tally that it left
        the first time; whoever does not find it does it again, with the same bits.
        """
        if self.idle:
            return
        whose = "everybody" if alike else str(self._client)
        place = f"{self.round} {'' if alike else sorted(self._fits.items())}"
        key = start_digest(place, [*self.live.get(part), *given])
        known: Fitted | None = self.resident.fitted.get(whose)
        if known is None or known.key != key:
            before, self.tally = self.tally, Tally()
            fit()
            known = Fitted(key, self.live.get(part), self.tally, dict(self._fits))
            self.tally = before
            remember(self.resident.fitted, whose, known)
        self.live.put(part, *known.values)
        self.tally.add(known.tally)
        self._fits = dict(known.fits)
        self._last_fit = None

    def _watched(self, loss: Loss) -> Loss:
        """The same loss; while it is computed, reading `live` raises an error, because it has no gradient."""

        def watched(batch: Batch) -> Tensor:
            self._in_loss = True
            try:
                return loss(batch)
            finally:
                self._in_loss = False

        return watched

    def _stream(self, on: Samples, batch: int, order: Order, key: str) -> Stream:
        """A stream of batches for a new fit; under any key but the usual one all sites draw the same order."""
        if key != "batches":
            return Stream(on, batch, order, lambda epoch: rng.generator(self.task.seed, key, self.round, epoch), None)
        # numbered apart for raw data and for features: methods that tune a head first still share their raw batches
        purpose = key if on.cut is None else f"{key}-{on.cut}"
        number = self._fits.get(purpose, 0)
        self._fits[purpose] = number + 1
        if order is poisson:
            return Poisson(on, batch, lambda step: self.masks(purpose, number, step), self._augment)
        return Stream(on, batch, order, lambda epoch: self.draw(purpose, number, epoch), self._augment)

    def masks(self, purpose: str, *where: int) -> np.random.Generator:
        """The chance that decides a Poisson batch."""
        return self.draw(purpose, *where)
