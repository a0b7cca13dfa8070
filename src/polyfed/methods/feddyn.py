"""FedDyn: Acar et al., Federated Learning Based on Dynamic Regularization, 2021 (algorithm 1).

The gradient of the whole objective is clipped at `clip`, as in the released code, unless `train.clip` says otherwise.
Float buffers are plainly averaged.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from polyfed.message import Message, Wire
from polyfed.methods.base import Client, Method, Server, Upload, method
from polyfed.parts.corrections import pull
from polyfed.registry import param


@method(
    "feddyn", written="FedDyn", paper="Acar et al. 2021", title="Federated Learning Based on Dynamic Regularization"
)
class FedDyn(Method):
    """Each client's objective is corrected by its earlier gradients, so that its minimum agrees with everybody's."""

    cost = "as FedAvg, and a correction at every step"
    weighting = "uniform"
    keeps = {"gradient": "the client's linear term g_k"}
    alpha: float = param(0.01, "strength of the dynamic regulariser", gt=0)
    clip: float | None = param(10.0, "longest gradient where train.clip gives none", gt=0)

    def wire(self) -> Wire:
        return super().wire().summing("w")

    def start(self, server: Server) -> None:
        super().start(server)
        server.state.h = torch.zeros_like(server.shared.weights)

    def local(self, client: Client, **fit: Any) -> int:
        rule = client.task.train
        if rule.clip is None:
            fit.setdefault("rule", rule.model_copy(update={"clip": self.clip}))
        return super().local(client, **fit)

    def correct(self, client: Client, grad: Tensor) -> None:
        """Eq. 1: the gradient of -<g_k, w> + (alpha / 2) |w - w_g|^2."""
        super().correct(client, grad)
        pull(grad, client.live.weights, client.received.w.weights, self.alpha)
        if "gradient" in client.memory:
            grad.sub_(client.memory.gradient)

    def upload(self, client: Client) -> Message:
        """g_k <- g_k - alpha (w_k - w_g); up goes w_k."""
        moved = client.live.weights - client.received.w.weights
        client.memory.gradient = client.memory.get("gradient", torch.zeros_like(moved)) - self.alpha * moved
        return super().upload(client)

    def merge(self, server: Server, uploads: Sequence[Upload]) -> None:
        """h <- h - (alpha / K) sum_S (w_k - w_g); w_g <- mean_S w_k - h / alpha."""
        before, mean = server.shared, server.average(uploads)
        share = len(uploads) / server.task.clients
        server.state.h = server.state.h - self.alpha * share * (mean.weights - before.weights)
        mean.weights.sub_(server.state.h, alpha=1 / self.alpha)
        self.update(server, before, mean)
