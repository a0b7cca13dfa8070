"""The client as a method sees it: its data, its memory and what it received."""

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from polyfed.data.samples import Samples
from polyfed.message import Bundle, Memory
from polyfed.methods.sites.site import Site, Task
from polyfed.params import Params, body, trunk
from polyfed.parts.fit import Augment, Loss
from polyfed.parts.resident import Batch, Cut, Frozen, Resident, in_batches


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
        return super().fit(loss, self.data if on is None else on, **options)

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
            for start in range(0, self.n, 128):
                index = torch.arange(start, min(start + 128, self.n), device=self.data.rows.device)
                x, y = self.data.take(index)
                total += float(loss(Batch(self.model, x, y, index, self.data))) * len(y)
        self.load(live)
        return total / max(self.n, 1)

    def features(self, cut: Cut = "head") -> Samples:
        """This client's data as the features that enter `cut`, computed once while nothing below it changes.

        Inputs that are augmented or read anew change every epoch: then the raw data are returned, and `fit` runs the
        frozen part.
        """
        if self._augment is not None or self.data.anew is not None:
            return self.data
        below, _ = self.live.get(body if cut == "head" else trunk)
        kept = self._features.get(cut)
        if kept is None or not torch.equal(kept[0], below):
            self.model.eval()
            rows = in_batches(self.model.features if cut == "head" else self.model.trunk, self.data, 128)
            kept = self._features[cut] = below, Samples.of(rows, self.data.y, cut)
        return kept[1]
