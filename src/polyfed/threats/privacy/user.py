"""user: one client's whole data more or less, with a trusted server (DP-FedAvg)."""

from collections.abc import Callable, Sequence

import torch

from polyfed.errors import UsageError
from polyfed.message import Message
from polyfed.methods.base import Client, Server, Upload
from polyfed.params import Params
from polyfed.threats.accountant import Entry, need_opacus
from polyfed.threats.privacy.base import NORMS, Budgeted, Setting, privacy
from polyfed.threats.privacy.noise import clipped, normal


@privacy("user", paper="McMahan et al. 2018 (DP-FedAvg)")
class User(Budgeted):
    """One client's whole data more or less, with a trusted server: clipped updates and noise on their sum."""

    unit = "one client"
    empty_rounds = True

    def check(self, setting: Setting) -> None:
        """Refuse what the accountant does not know: other sampling, weights by samples, further fields."""
        need_opacus()
        method, up = setting.method, setting.wire.up
        if setting.sampling == "fixed":
            raise UsageError("privacy=user needs clients that are drawn independently: set sampling=bernoulli")
        if method.everyone:
            raise UsageError(f"privacy=user needs clients that are drawn, and '{method.name}' asks everybody")
        if setting.weighting != "uniform":
            raise UsageError("privacy=user needs clients that count alike: set weighting=uniform")
        if len(up) > 1:
            raise UsageError(
                f"privacy=user cannot bound method '{method.name}': it sends {len(up)} fields, which need a joint bound"
            )
        if setting.updates() != list(up) or not all(field.summed for field in up.values()):
            name = next(iter(up), "nothing")
            raise UsageError(
                f"privacy=user cannot bound method '{method.name}': its server needs more of '{name}' than a sum"
            )
        part = up["w"].part
        if part is not None and any(part.test(entry) and entry.bn for entry in setting.layout.entries):
            raise UsageError(f"privacy=user needs a shared model without BatchNorm, {NORMS} or method=fedbn")

    def delta_of(self, clients: int) -> float:
        """K^-1.1."""
        return float(clients**-1.1) if clients > 1 else 0.5

    def round_cost(self, setting: Setting) -> Entry | None:
        """One step, in which each client is included with the probability `participation`."""
        task = setting.task
        q = task.participation
        return (self.sigma(self.delta_of(task.clients), q, task.rounds), q, 1)

    def leave(self, setting: Setting, client: Client, up: Message, down: Message) -> None:
        """Clip the update."""
        for name in setting.updates():
            sent = setting.start(name, up, down)
            up[name] = sent + clipped(up[name] - sent, self.clip)[0]

    def averaged(self, setting: Setting) -> "Callable[[Server, Sequence[Upload]], Params] | None":
        """model + (sum of clipped updates + N(0, (z S)^2)) / (q K): an upload that is missing is zero."""

        def mean(server: Server, uploads: Sequence[Upload]) -> Params:
            sent, integers = server.shared.get(server.slice)
            total, longer = torch.zeros_like(sent), 0
            for upload in uploads:
                update, too_long = clipped(upload.message["w"] - sent, self.clip)
                total, longer = total + update, longer + too_long
            if longer:
                server.say(f"{longer} updates were longer than privacy.clip={self.clip:g} and were clipped again")
            cost = self.round_cost(setting)
            assert cost is not None
            z, q, _ = cost
            draw = normal(setting.secret, server.task.seed, "user-noise", server.round)
            noise = draw(sent) * (z * self.clip)
            made = server.shared.copy()
            made.put(server.slice, sent + (total + noise) / (q * setting.task.clients), integers)
            return made

        return mean

    def outside(self, setting: Setting) -> list[str]:
        """Also the reports, and what a hello tells the server."""
        told = ["reports: losses and confusion counts", "numbers of samples and classes in the records"]
        return [*told, "the server, which is trusted", *super().outside(setting)]
