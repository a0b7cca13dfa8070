"""What privacy has cost: charged when a job is sent, kept in the checkpoint, written to privacy.csv and the summary."""

import json
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from polyfed.errors import DataError, UsageError
from polyfed.files import Place, write_file
from polyfed.threats.accountant import Entry, add, epsilon_of
from polyfed.threats.privacy import Privacy, Setting

if TYPE_CHECKING:
    from polyfed.engine.rounds import Run

EVERYBODY = "-1"  # the account of what is spent for all clients together
SPENT = "budget spent"  # why a client that was drawn is not asked
KEPT = "privacy.json"  # between real sites: what was spent, written before a job is sent or done
History = list[list[float]]


class Ledger:
    """The accounts of a run, by client; they are kept in the run's progress."""

    def __init__(self, run: "Run"):
        self.run = run
        self.privacy: Privacy = run.world.privacy
        self.setting: Setting = run.world.setting
        self.delta = self.privacy.delta_of(self.setting.task.clients)
        self._charged: set[str] = set()  # in this round; a repeated attempt has the same noise, and costs nothing more
        self._costs = {k: self._cost(k) for k in run.world.federation.participants} if self.privacy.counts else {}

    def _cost(self, client: int) -> Entry | None:
        return self.privacy.cost(self.setting, self.run.server.clients[client].n)

    @property
    def spent(self) -> dict[str, History]:
        """The history of each client."""
        return self.run.progress.privacy

    def resumes(self) -> None:
        """Between real sites, also count what was spent after the last checkpoint: rounds done again have new noise."""
        if self.setting.secret and self._kept.exists():
            self.run.progress.privacy = read_spent(self._kept)

    @property
    def _kept(self) -> Place:
        return self.run.folder.place / KEPT

    def begins(self, number: int) -> None:
        """Begin a round; where there is one account for all clients, charge it, whoever is drawn."""
        self._charged.clear()
        cost = self.privacy.round_cost(self.setting) if self.privacy.counts else None
        if cost is not None:
            self._pay(EVERYBODY, cost)

    def affords(self, client: int) -> bool:
        """Whether a client can take part in one more round without exceeding its budget."""
        cost, budget = self._costs.get(client), self.privacy.budget()
        repeats = str(client) in self._charged and not self.setting.secret
        if cost is None or budget is None or repeats:
            return True
        return self._epsilon([*self.spent.get(str(client), []), list(cost)]) <= budget

    def charge(self, clients: Iterable[int]) -> None:
        """Charge the clients that are sent a job."""
        for client in clients:
            cost = self._costs.get(client)
            if cost is not None:
                self._pay(str(client), cost)

    def _pay(self, who: str, cost: Entry) -> None:
        if who not in self._charged or self.setting.secret:
            self._charged.add(who)
            add(self.spent.setdefault(who, []), *cost)
            if self.setting.secret:
                write_file(self._kept, json.dumps(self.spent).encode())

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

    def _epsilon(self, history: History) -> float:
        return epsilon_of(history, self.delta, self.privacy.counted_by)


def read_spent(file: Place) -> dict[str, History]:
    """What was spent, by client, as it was written."""
    try:
        return TypeAdapter(dict[str, History]).validate_python(json.loads(file.read_text()))
    except ValueError as error:
        raise DataError(f"what privacy has cost cannot be read from '{file.path}': {error}") from None


def charge_site(privacy: Privacy, setting: Setting, n: int, client: int, file: Place) -> None:
    """Charge a job to a site's own account, before it is done; a site whose budget is spent refuses it.

    The site counts for itself, because the server's word is no guarantee.
    """
    cost, budget = privacy.cost(setting, n), privacy.budget()
    if cost is None:
        return
    spent = read_spent(file) if file.exists() else {}
    history = spent.setdefault(str(client), [])
    add(history, *cost)
    delta = privacy.delta_of(setting.task.clients)
    if budget is not None and epsilon_of(history, delta, privacy.counted_by) > budget:
        raise UsageError(f"{SPENT}: one more round would exceed epsilon={budget:g} at this site")
    write_file(file, json.dumps(spent).encode())
