"""The client as a method sees it: its data, its memory and what it received."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyfed.data.samples import Samples
from polyfed.errors import UsageError
from polyfed.message import Bundle, Memory
from polyfed.methods.sites.site import Site, Task
from polyfed.params import Params, Slice, body, trunk
from polyfed.parts.fit import Augment, Loss, poisson, shuffled
from polyfed.parts.resident import Batch, Cut, Frozen, Resident, in_batches
from polyfed.parts.steps import Step, sgd


@dataclass
class PrivateFits:
    """What stands for plain SGD in every fit of a client, so that its training is private."""

    step: Step
    most: int | None  # steps that are paid for; None: any number
    masks: Callable[[], np.random.Generator] | None = None  # secret chance for batches; None: keyed
    poisson: bool = True  # whether batches are Poisson's

    def options(self, client: "Client", on: Samples, given: dict[str, Any]) -> dict[str, Any]:
        """The options of a fit with the private step; a fit that this cannot protect is refused."""
        rule = given.get("rule") or client.task.train
        if given.get("step", sgd) is not sgd:
            raise UsageError("a private fit descends by sgd, and this one has a step of its own")
        if given.get("patience") is not None:
            raise UsageError("a private fit has a fixed number of steps, and this one ends when its loss stops falling")
        if not self.poisson:
            return {**given, "step": self.step}
        if given.get("batches", shuffled) is not shuffled:
            raise UsageError("a private fit draws its batches itself, and this one asks for an order of its own")
        if len(on) != client.n or (given.get("batch") or rule.batch) != client.task.train.batch:
            raise UsageError("a private fit is on all of a client's samples, in batches of train.batch")
        return {**given, "step": self.step, "batches": poisson}


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
        self.scratch: Any = Bundle()  # what the hooks pass to each other; it is dropped when the work ends
        self.private: PrivateFits | None = None
        self._features: dict[str, tuple[Tensor, Samples]] = {}

    @property
    def n(self) -> int:
        """The number of samples that the client trains on."""
        return len(self.data)

    @property
    def classes(self) -> Tensor:
        """O_k: the classes of which the client holds samples."""
        return torch.nonzero(self.counts).flatten()

    def fit(self, loss: Loss, on: Samples | None = None, **options: Any) -> int:  # type: ignore[override]
        """The one training loop on this client's data (or `on`); gives the steps taken."""
        on = self.data if on is None else on
        if self.private is None or len(on) == 0:
            return super().fit(loss, on, **options)
        taken = super().fit(loss, on, **self.private.options(self, on, options))
        if self.private.most is not None and self.steps > self.private.most:
            raise UsageError(
                f"{self.steps} private steps in one round, and {self.private.most} are paid for: the method's "
                "private_steps must say how many it takes"
            )
        return taken

    def once(self, part: Slice, given: Iterable[Tensor], fit: Callable[[], object], alike: bool = True) -> None:
        """Do a fit that will be asked for again once; a private one is not remembered, for it has noise of its own."""
        if self.private is None:
            super().once(part, given, fit, alike)
        else:
            fit()

    def masks(self, purpose: str, *where: int) -> np.random.Generator:
        """The chance that decides a Poisson batch: keyed, or secret between real sites."""
        secret = self.private.masks if self.private is not None else None
        return secret() if secret is not None else self.draw(purpose, *where)

    def load(self, params: Params) -> None:
        """Make these the live values."""
        self.live.set(params)

    @cached_property
    def global_model(self) -> Frozen:
        """The model that it received, frozen for the whole of this work; made when somebody asks for it."""
        return self.frozen(self.received.w)

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
            count, size = 0, self.data.at_once(128)
            for start in range(0, self.n, size):
                index = torch.arange(start, min(start + size, self.n), device=self.data.rows.device)
                batch = Batch(self.model, *self.data.take(index), index, self.data)
                if batch.y.numel():
                    total, count = total + float(loss(batch)) * len(batch), count + len(batch)
        self.load(live)
        return total / max(count, 1)

    def features(self, cut: Cut = "head") -> Samples:
        """This client's data as the features that enter `cut`, computed once while nothing below it changes.

        Inputs that are augmented or read anew change every epoch, and features of all pixels are too many to keep: then
        the raw data are returned, and `fit` runs the frozen part.
        """
        if self._augment is not None or self.data.anew is not None or self.data.masks:
            return self.data
        below, _ = self.live.get(body if cut == "head" else trunk)
        kept = self._features.get(cut)
        if kept is None or not torch.equal(kept[0], below):
            self.model.eval()
            rows = in_batches(self.model.features if cut == "head" else self.model.trunk, self.data, 128)
            kept = self._features[cut] = below, Samples.of(rows, self.data.y, cut)
        return kept[1]
