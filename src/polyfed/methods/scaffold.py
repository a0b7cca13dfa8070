"""SCAFFOLD: Karimireddy et al., Stochastic Controlled Averaging for Federated Learning, 2020 (option II).

Departures: clients send their model instead of its difference (the same numbers of bytes, the server subtracts); with
client momentum rho the control divides by the distance momentum really travels, tau * eta / (1 - rho).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from polyfed.message import Field, Message, Wire
from polyfed.methods.base import Client, Method, Server, Upload, method
from polyfed.parts.average import average, shares
from polyfed.registry import param


@method("scaffold", paper="Karimireddy et al. 2020")
class Scaffold(Method):
    """Control variates on both sides correct the drift of local steps."""

    weighting = "uniform"
    server_lr: float = param(1.0, "server learning rate eta_g", gt=0)

    def wire(self) -> Wire:
        control = Field("the server's control variate c", rows=("P",))
        change = Field("the change of the client's control variate c_k", rows=("P",))
        return super().wire().also(down={"c": control}, up={"c": change})

    def start(self, server: Server) -> None:
        super().start(server)
        server.state.c = torch.zeros_like(server.params.weights)

    def send(self, server: Server, id: int) -> Message:
        message = super().send(server, id)
        message["c"] = server.state.c
        return message

    def correct(self, client: Client, grad: Tensor) -> None:
        """w <- w - eta (g - c_k + c)."""
        super().correct(client, grad)
        grad.add_(client.received.c - self.control(client))

    def upload(self, client: Client) -> Message:
        """c_k+ = c_k - c + (w_g - w_k) / (tau eta); up go w_k and c_k+ - c_k."""
        message = super().upload(client)
        before = after = self.control(client)
        travelled = client.travelled / (1 - client.task.train.momentum)
        if travelled:  # who took no step has learnt nothing of its drift
            after = before - client.received.c + (client.received.w.weights - client.params.weights) / travelled
        client.memory.control = after
        message["c"] = after - before
        return message

    def merge(self, server: Server, uploads: Sequence[Upload]) -> None:
        """w_g += eta_g mean(w_k - w_g), float buffers plainly averaged; c += |S| / K mean(c_k+ - c_k)."""
        before = server.params
        super().merge(server, uploads)
        made = server.params.copy()
        made.weights.lerp_(before.weights, 1 - self.server_lr)
        server.params = made
        changes = average([u.message["c"] for u in uploads], shares([u.n for u in uploads], "uniform"))
        server.state.c = server.state.c + changes * (len(uploads) / server.task.clients)

    @staticmethod
    def control(client: Client) -> Tensor:
        """c_k, zero at first."""
        kept = client.memory.get("control")
        return torch.zeros_like(client.params.weights) if kept is None else kept
