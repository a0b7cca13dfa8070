"""FedDF: Lin et al., Ensemble Distillation for Robust Model Fusion in Federated Learning, 2020 (algorithm 1).

The server needs samples of its own (`split.public`); their labels are never looked at. Readings: training ends where
the loss itself no longer falls, because a validation set would need labels; the learning rate is constant; batch
normalisation keeps the averaged statistics.
"""

from collections.abc import Sequence

import torch

from polyfed.config import Train
from polyfed.errors import UsageError
from polyfed.methods.base import Method, Server, Upload, method
from polyfed.parts.distil import kl, mean_logits
from polyfed.parts.steps import adam
from polyfed.registry import param


@method(
    "feddf",
    written="FedDF",
    paper="Lin et al. 2020",
    title="Ensemble Distillation for Robust Model Fusion in Federated Learning",
)
class FedDF(Method):
    """FedAvg whose server trains the average to answer public samples as the clients' models do together."""

    no_masks = "it keeps what models answer for every public sample, and for every pixel that is too much"
    cost = "as FedAvg; the server distils every upload into the mean on public data"
    lr: float = param(0.001, "learning rate of the distillation (Adam)", gt=0)
    batch: int = param(128, "its batch", ge=1)
    steps: int = param(100, "its steps each round, at most", ge=0)
    patience: int = param(20, "it ends where the mean loss of so many steps is not the lowest so far", ge=1)

    def start(self, server: Server) -> None:
        super().start(server)
        if not len(server.public):
            raise UsageError("feddf teaches on samples of the server, and it has none: set split.public, to 500 say")

    def merge(self, server: Server, uploads: Sequence[Upload]) -> None:
        """After averaging: minimise KL(softmax(mean of the clients' logits) || softmax(student)) (eq. 1)."""
        super().merge(server, uploads)
        models = (server.model_of(upload) for upload in uploads)
        teacher = mean_logits(server.frozen(server.shared), models, server.public)
        server.live.set(server.shared)
        server.fit(
            lambda batch: kl(teacher[batch.index], batch.logits),
            on=server.public,
            steps=self.steps,
            patience=self.patience,
            step=adam,
            lr=self.lr,
            batch=self.batch,
            bn="eval",
            rule=Train(),
        )
        server.shared = server.live.copy()
        losses = server.tally.losses
        server.record("distillation", torch.stack(losses) if losses else torch.empty(0))
