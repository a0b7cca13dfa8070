"""FedNova: Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization, 2020.

Departures: instead of d_k = (w_g - w_k) / a_k (eq. 5) a client sends w_g - u d_k, where u is the a_k of a client of
median size; the server sends u down, and it cancels in the merge. So an upload is a model of the usual length, and
where all clients take equally many steps the result is FedAvg's bit for bit. a_k counts the steps really taken, and it
treats momentum and the proximal pull together, where the released code treats them one after the other. Float buffers
are plainly averaged.
"""

from collections.abc import Sequence
from statistics import median_low
from typing import Any

import torch
from torch import Tensor

from polyfed.message import Field, Message, Wire
from polyfed.methods.base import Client, Method, Server, Upload, method, part_message
from polyfed.parts.corrections import pull
from polyfed.parts.server_steps import momentum_step
from polyfed.parts.steps import momentum_reach
from polyfed.registry import param


@method(
    "fednova",
    written="FedNova",
    paper="Wang et al. 2020",
    title="Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization",
)
class FedNova(Method):
    """Each update is divided by what its steps are worth before averaging, so that more steps do not pull farther."""

    rho: float | None = param(None, "momentum that a_k counts with; by default train.momentum", ge=0, lt=1)
    prox: float = param(0.0, "strength mu of a proximal pull", ge=0)
    gmf: float = param(0.0, "momentum of the server", ge=0, lt=1)

    def wire(self) -> Wire:
        unit = Field("the scale u of the updates", kind="number")
        tau = Field("what the client's steps are worth", kind="number", bound=1e9)
        return super().wire().also(down={"unit": unit}, up={"tau": tau}).summing("w", "tau")

    def start(self, server: Server) -> None:
        super().start(server)
        rule, sizes = server.task.train, [known.n for known in server.clients.values() if known.n]
        steps = [rule.steps(-(-n // rule.batch)) for n in sizes]
        server.state.unit = self.reach(server, max(median_low(steps or [1]), 1))

    def send(self, server: Server, id: int) -> Message:
        message = super().send(server, id)
        message["unit"] = server.state.unit
        return message

    def local(self, client: Client, **fit: Any) -> int:
        if not self.prox:
            fit.setdefault("correct", None)
        return super().local(client, **fit)

    def correct(self, client: Client, grad: Tensor) -> None:
        """Gradient of the proximal term."""
        super().correct(client, grad)
        pull(grad, client.live.weights, client.received.w.weights, self.prox)

    def reach(self, site: Client | Server, steps: int) -> float:
        """a_k, the length of the vector of eq. 3: what so many steps are worth in steps of plain SGD."""
        rule = site.task.train
        rho = rule.momentum if self.rho is None else self.rho
        return momentum_reach(steps, rho, rule.nesterov, site.lr * self.prox)

    def upload(self, client: Client) -> Message:
        """Up go w_g - u d_k and what the client adds to tau_eff: a_k, or tau_k with a proximal pull."""
        a, sent, received = self.reach(client, client.steps), client.live.copy(), client.received
        if client.steps:
            torch.lerp(received.w.weights, client.live.weights, received.unit / a, out=sent.weights)
        message = part_message("w", *sent.get(self.shared))
        message["tau"] = float(client.steps) if self.prox else a
        return message

    def merge(self, server: Server, uploads: Sequence[Upload]) -> None:
        """w_g <- w_g - tau_eff sum p_k d_k with tau_eff = sum p_k tau_k (eq. 7), by a step of momentum gmf."""
        before, mean, state = server.shared, server.average(uploads), server.state
        rate = server.average(uploads, "tau") / state.unit
        velocity = momentum_step(before.weights, mean.weights, state.get("velocity"), rate, self.gmf)
        if velocity is not None:
            state.velocity = velocity
        self.update(server, before, mean)
