"""SCAFFOLD: Karimireddy et al., Stochastic Controlled Averaging for Federated Learning, 2020 (option II).

Departures: clients send their model instead of its difference (as many bytes; the server subtracts). With client
momentum rho the control divides by the distance that tau steps with momentum really travel, eta sum_j (1 - rho^j) /
(1 - rho); its limit tau eta / (1 - rho) would make c_k too small for short rounds. `control=official` is the variant of
the code that MAP's authors released: c takes the whole mean change, and the raw gradient is clipped before it is
corrected; docs/changed-from-papers.md compares the two.
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from polyfed.message import Field, Message, Wire
from polyfed.methods.base import Client, Method, Server, Upload, method
from polyfed.params import Params
from polyfed.parts.steps import momentum_reach
from polyfed.registry import param


@method(
    "scaffold",
    written="SCAFFOLD",
    paper="Karimireddy et al. 2020",
    title="SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
)
class Scaffold(Method):
    """Control variates on both sides correct the drift of local steps."""

    weighting = "uniform"
    cost = "as FedAvg, and a correction at every step"
    keeps = {"control": "the client's control variate c_k"}
    server_lr: float = param(1.0, "server learning rate eta_g", gt=0)
    control: Literal["canonical", "official"] = param(
        "canonical", "c moves by |S| / K of the mean change, or by all of it"
    )

    def wire(self) -> Wire:
        control = Field("the server's control variate c", rows=("P",))
        change = Field("the change of the client's control variate c_k", rows=("P",), like="w")
        return super().wire().also(down={"c": control}, up={"c": change}).summing("w", "c")

    def start(self, server: Server) -> None:
        super().start(server)
        server.state.c = torch.zeros_like(server.shared.weights)

    def send(self, server: Server, id: int) -> Message:
        message = super().send(server, id)
        message["c"] = server.state.c
        return message

    def local(self, client: Client, **fit: Any) -> int:
        if self.control == "official":  # `correct` clips instead, before it adds the controls
            fit.setdefault("rule", client.task.train.model_copy(update={"clip": None}))
        return super().local(client, **fit)

    def correct(self, client: Client, grad: Tensor) -> None:
        """w <- w - eta (g - c_k + c)."""
        super().correct(client, grad)
        clip = client.task.train.clip
        if self.control == "official" and clip is not None:
            grad.mul_((clip / (torch.linalg.vector_norm(grad) + 1e-6)).clamp(max=1.0))
        grad.add_(client.received.c - self.own_control(client))

    def upload(self, client: Client) -> Message:
        """c_k+ = c_k - c + (w_g - w_k) / (tau eta); up go w_k and c_k+ - c_k."""
        message = super().upload(client)
        before = after = self.own_control(client)
        if client.steps:  # who took no step has learnt nothing of its drift
            rule, mean_lr = client.task.train, client.travelled / client.steps
            travelled = mean_lr * momentum_reach(client.steps, rule.momentum, rule.nesterov)
            after = before - client.received.c + (client.received.w.weights - client.live.weights) / travelled
        client.memory.control = after
        message["c"] = after - before
        return message

    def update(self, server: Server, before: Params, mean: Params) -> None:
        """w_g += eta_g mean(w_k - w_g); float buffers are plainly averaged."""
        mean.weights.lerp_(before.weights, 1 - self.server_lr)
        super().update(server, before, mean)

    def merge(self, server: Server, uploads: Sequence[Upload]) -> None:
        """Beside the model, c += |S| / K mean(c_k+ - c_k) (eq. 5)."""
        super().merge(server, uploads)
        changes = server.average(uploads, "c", weighting="uniform")
        share = len(uploads) / server.task.clients if self.control == "canonical" else 1.0
        server.state.c = c = server.state.c + changes * share
        server.record("controls", torch.stack([c, changes]).norm(dim=1))  # |c| and the mean change of the c_k

    @staticmethod
    def own_control(client: Client) -> Tensor:
        """c_k, zero at first."""
        kept = client.memory.get("control")
        return torch.zeros_like(client.live.weights) if kept is None else kept
