"""The defence of a run at work: it stands in the place of the server's average of models and keeps count."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from polyfed.errors import UsageError
from polyfed.message import Wire
from polyfed.methods.base import Method, Server, Upload
from polyfed.parts.losses import cross_entropy
from polyfed.threats.defences import Case, Defence, Verdict
from polyfed.threats.updates import start_of, weights_in


class Defender:
    """Averages models by a rule; what it thought of every client in this round is read by the record."""

    def __init__(self, rule: Defence, server: Server, wire: Wire, method: Method):
        self.rule, self.server, self.wire, self.method = rule, server, wire, method
        if rule.name == "fltrust" and not method.has_global:
            raise UsageError(
                f"defence=fltrust compares updates with the server's own, and method '{method.name}' has no global "
                "model to train: take another defence"
            )
        self.begin()

    def begin(self) -> None:
        """Begin a round: nobody has been judged in it."""
        self.calls = 0
        self.weights: dict[int, float] = {}
        self.suspects: dict[int, bool] = {}  # whom a rule that names suspects has judged, and whether it suspects them

    def __call__(self, uploads: Sequence[Upload], shares: Tensor) -> Tensor:
        """The robust mean of the uploaded models."""
        order = sorted(range(len(uploads)), key=lambda at: uploads[at].client)
        ordered, p = [uploads[at] for at in order], shares.double().numpy()[order]
        case = self._case(ordered, p if getattr(self.rule, "weights", "") == "method" else np.full(len(p), 1 / len(p)))
        if self.rule.lowered(case.n):
            assumed, most = self.rule.assumed(case.n), max(0, self.rule.most(case.n))
            self._count(
                "lowered", f"assumes {assumed} attackers among {case.n} uploads, where it stands {most} at most"
            )
        verdict = self.rule.average(case)
        if verdict.idle:
            self._count("idle", f"is idle: {case.n} uploads are averaged plainly")
        self._remember([upload.client for upload in ordered], verdict)
        self.calls += 1
        return verdict.mean.to(uploads[0].message["w"].device)

    def _case(self, uploads: Sequence[Upload], p: np.ndarray) -> Case:
        field, server = self.wire.up["w"], self.server
        rows = [upload.message["w"] for upload in uploads]
        starts = [start_of(field, row, upload.sent) for row, upload in zip(rows, uploads, strict=True)]
        return Case(
            rows=[row.detach().cpu() for row in rows],
            sent=[start.detach().cpu() for start in starts],
            n_weights=weights_in(field, rows[0], server.shared.layout),
            p=p,
            call=self.calls,
            draw=server.draw,
            state=server.state,
            layout=server.shared.layout,
            part=field.part,
            own_update=self._own_update,
            say=server.say,
            round=server.round,
        )

    def _own_update(self) -> Tensor:
        """The update of the shared model that the server's own samples make; the live values are left as they were."""
        server, part = self.server, self.server.slice
        live = server.live.copy()
        server.live.set(server.shared)
        server.fit(cross_entropy, server.public, train=self.method.trains)
        count = weights_in(self.wire.up["w"], server.live.get(part)[0], server.shared.layout)
        update = (server.live.get(part)[0] - server.shared.get(part)[0])[:count].detach().cpu()
        server.live.set(live)
        return update

    def _remember(self, clients: Sequence[int], verdict: Verdict) -> None:
        if verdict.weights is not None:
            self.weights |= dict(zip(clients, verdict.weights.tolist(), strict=True))
        if verdict.suspects is not None:
            self.suspects |= {client: at in set(verdict.suspects) for at, client in enumerate(clients)}

    def _count(self, what: str, sentence: str) -> None:
        """Count something in the server's state; the first time, say it."""
        key = f"defence.{what}"
        before = self.server.state.get(key, 0)
        if not before:
            self.server.say(f"defence={self.rule.name} {sentence}")
        self.server.state[key] = before + 1

    @property
    def counted(self) -> dict[str, Any]:
        """How often it was idle, and how often it had to assume fewer attackers."""
        return {what: int(self.server.state.get(f"defence.{what}", 0)) for what in ("idle", "lowered")}

    def tell_what_is_open(self) -> None:
        """In the first round, say what is not defended."""
        if self.server.round != 1:
            return
        name, others = self.rule.name, [f"'{field}'" for field in self.wire.up if field != "w"]
        if not self.calls:
            self.server.say(f"defence={name} does nothing: method '{self.method.name}' averages no model")
        elif others:
            self.server.say(f"defence={name} guards the average of models; {', '.join(others)} is not defended")
        if self.rule.name == "credit":
            self.server.say("defence=credit assumes that nobody attacks in its first rounds, from which it learns")
