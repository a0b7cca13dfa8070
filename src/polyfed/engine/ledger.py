"""What privacy has cost: charged when a job is sent, kept in the checkpoint, told in privacy.csv and the summary."""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from polyfed.threats.accountant import Entry, add, epsilon_of
from polyfed.threats.privacy import Privacy, Setting

if TYPE_CHECKING:
    from polyfed.engine.rounds import Run

EVERYBODY = "-1"  # the server, under which is kept what is spent for all clients together
SPENT = "budget spent"  # why a client that was drawn is not asked


class Ledger:
    """The accounts of a run, by client; they are kept in the run's progress."""

    def __init__(self, run: "Run"):
        self.run = run
        self.privacy: Privacy = run.world.privacy
        self.setting: Setting = run.world.setting
        self.delta = self.privacy.delta_of(self.setting.task.clients)
        self._charged: set[str] = set()  # in this round: an attempt that is repeated has the same noise, and is free
        self._costs = {k: self._cost(k) for k in run.world.federation.participants} if self.privacy.counts else {}

    def _cost(self, client: int) -> Entry | None:
        return self.privacy.cost(self.setting, self.run.server.clients[client].n)

    @property
    def spent(self) -> dict[str, list[list[float]]]:
        """The history of each client."""
        return self.run.progress.privacy

    def begins(self, number: int) -> None:
        """Begin a round: where one price is paid for all, it is paid whoever is drawn."""
        self._charged.clear()
        cost = self.privacy.round_cost(self.setting) if self.privacy.counts else None
        if cost is not None:
            self._pay(EVERYBODY, cost)

    def affords(self, client: int) -> bool:
        """Whether a client can take part in one more round without exceeding its budget."""
        cost, budget = self._costs.get(client), self.privacy.budget()
        if cost is None or budget is None or str(client) in self._charged:
            return True
        history = [*self.spent.get(str(client), []), list(cost)]
        return self._epsilon(history) <= budget

    def charge(self, clients: Iterable[int]) -> None:
        """Charge the clients that are sent a job."""
        for client in clients:
            cost = self._costs.get(client)
            if cost is not None:
                self._pay(str(client), cost)

    def _pay(self, who: str, cost: Entry) -> None:
        if who not in self._charged:
            self._charged.add(who)
            add(self.spent.setdefault(who, []), *cost)

    def record(self, number: int) -> None:
        """Append what this round's clients have spent so far to privacy.csv."""
        if not self._charged:
            return
        rows = []
        for who in sorted(self._charged, key=int):
            sigma, q, steps = self.spent[who][-1]
            epsilon = round(self._epsilon(self.spent[who]), 6)
            row = {"round": number, "client": who, "sigma": sigma, "q": q, "steps": int(steps), "epsilon": epsilon}
            rows.append(row)
        self.run.recorder.append("privacy", rows)

    def summary(self) -> dict[str, Any]:
        """What the summary tells of privacy; nothing where none was asked for."""
        facts = self.privacy.facts(self.setting)
        if not facts:
            return {}
        if self.privacy.counts:
            epsilons = [self._epsilon(history) for history in self.spent.values()]
            facts |= {"delta": self.delta, "epsilon": max(epsilons, default=0.0)}
            facts |= {"epsilon_mean": math.fsum(epsilons) / max(len(epsilons), 1)}
        return {"privacy": facts}

    def _epsilon(self, history: list[list[float]]) -> float:
        return epsilon_of(history, self.delta, getattr(self.privacy, "accountant", "rdp"))
