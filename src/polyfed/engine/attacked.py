"""A run under attack: attackers act together before the gate, and what they achieve is measured and recorded."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from polyfed.engine.admission import Row
from polyfed.engine.work import Outcome
from polyfed.measure.counts import confusion
from polyfed.measure.metrics import accuracy
from polyfed.message import Message, digest_of
from polyfed.threats.adversary import Adversary

if TYPE_CHECKING:
    from polyfed.engine.rounds import Run

RATES = ("acc", "asr")  # accuracy and success of the attack, on the global test set


class Attacked:
    """What attackers do and achieve in a run, and what its defence makes of them; nothing where there is neither."""

    def __init__(self, run: "Run"):
        self.run = run
        self._row: Row | None = None

    @property
    def adversary(self) -> Adversary | None:
        """The attack of the run."""
        return self.run.world.adversary

    @property
    def active(self) -> bool:
        """Whether the run has an attack or a defence."""
        return self.adversary is not None or self.run.defender is not None

    def honest(self, clients: Sequence[int]) -> list[int]:
        """Those of some clients that never attack."""
        return [k for k in clients if self.adversary is None or k not in self.adversary.attackers]

    # ---- in a round

    def together(
        self, round: int, outcomes: Iterator[Outcome], downs: Mapping[int, Message]
    ) -> Iterator[Outcome] | list[Outcome]:
        """The outcomes as they come; where attackers act together, all at once when the last one is there."""
        adversary = self.adversary
        if adversary is None or not adversary.spec.colludes:
            return outcomes
        held = list(outcomes)
        uploads = {outcome.client: outcome.up for outcome in held if not outcome.error}
        adversary.together(uploads, downs, round, lambda text: self.run.say(f"round {round}: {text}"))
        return held

    def judged(self, rows: Sequence[Row]) -> None:
        """Add to the rows of training.csv who attacked, and what the defence made of each; count what it found.

        Who sent nothing did not attack. Attackers whom the gate stopped are told as such: no defence could name them.
        """
        self._row = None
        if not self.active:
            return
        number, defender = self.run.server.round, self.run.defender
        came = {row["client"]: row["status"] for row in rows if row["status"] != "failed"}
        acting = {client for client in came if self.adversary and self.adversary.acts(client, number)}
        stopped = {client for client in acting if came[client] == "rejected"}
        total = self.run.progress.threats
        total["stopped"] = total.get("stopped", 0) + len(stopped)
        weights, suspects = (defender.weights, defender.suspects) if defender is not None else ({}, {})
        for row in rows:
            client = row["client"]
            row["attacker"] = int(client in acting)
            row["weight"] = f"{weights[client]:.6g}" if client in weights else ""
            row["suspect"] = int(suspects[client]) if client in suspects else ""
        found: dict[str, Any] = {"suspects": "", "tp": "", "fp": "", "fn": ""}
        if suspects:
            named = {client for client, suspected in suspects.items() if suspected}
            caught = {"tp": len(named & acting), "fp": len(named - acting), "fn": len((acting & set(suspects)) - named)}
            found = {"suspects": len(named), **caught}
            for what, count in caught.items():
                total[what] = total.get(what, 0) + count
        self._row = {"round": number, "attackers": len(acting), "stopped": len(stopped), **found}

    def record(self, round: int) -> None:
        """Write the round's row of threats.csv."""
        if self._row is None:
            return
        measured = self.run.progress.threats if self.run.evaluates(round) else {}
        rates = {name: "" if (rate := measured.get(name)) is None else rate for name in RATES}
        self.run.recorder.append("threats", [{**self._row, **rates, "separated": self._separated()}])
        self._row = None

    def _separated(self) -> Any:
        """The share of honest clients of the round in whose cluster is no attacker; empty without clusters."""
        found = self.run.server.records.get("clusters")
        if found is None or self.adversary is None:
            return ""
        return separated(found, self.adversary.attackers)

    # ---- measuring

    def measure(self, round: int, clients: Sequence[int]) -> None:
        """ACC and ASR: what the models that honest clients would be sent now answer to the global test set."""
        if self.adversary is None or not len(self.run.world.federation.global_test):
            return
        tables = self._tables(round, self.honest(clients))
        if not tables:
            return
        each = [accuracy(table["threat"]) for table in tables]
        rates = [self.adversary.success(table) for table in tables]
        known = [rate for rate in rates if rate is not None]
        self.run.progress.threats |= {"acc": float(np.mean(each)), "asr": float(np.mean(known)) if known else None}

    def _tables(self, round: int, clients: Sequence[int]) -> list[dict[str, np.ndarray]]:
        """The tables of every honest client; where nothing is personal, a model that several share is asked once."""
        run, adversary = self.run, self.adversary
        assert adversary is not None
        method = run.method
        if method.has_global and not method.personalises:
            return [self._of_global()]
        alike: dict[str, list[int]] = {}
        for k in clients:
            key = digest_of(method.send(run.server, k).encode()) if method.answers_as_sent else str(k)
            alike.setdefault(key, []).append(k)
        found = run.evaluation.clients(round, [group[0] for group in alike.values()], adversary.measures)
        return [
            {measure: found[measure][group[0]] for measure in adversary.measures}
            for group in alike.values()
            for _ in group
            if group[0] in found["threat"]
        ]

    def _of_global(self) -> dict[str, np.ndarray]:
        """The tables of the one model that everybody is sent."""
        run, adversary = self.run, self.adversary
        assert adversary is not None
        world, model = run.world, run.method.global_predictor(run.server)
        assert model is not None
        tests = {"threat": world.federation.global_test}
        if "stamped" in adversary.measures:
            tests["stamped"] = world.stamped_test
        batch, classes = run.config.eval.batch, world.federation.classes
        made = {name: confusion(model, test, classes, batch, world.shared).numpy() for name, test in tests.items()}
        world.resident.reset()
        return made

    def summary(self) -> dict[str, Any] | None:
        """What the summary says of attack and defence; None where the run has neither."""
        if not self.active:
            return None
        run, found = self.run, self.run.progress.threats
        tp, fp, fn = (found.get(what, 0) for what in ("tp", "fp", "fn"))
        return {
            "attack": run.config.attack.name,
            "defence": run.config.defence.name,
            "attackers": sorted(self.adversary.attackers) if self.adversary else [],
            "stopped": found.get("stopped", 0),
            **{rate: found.get(rate) for rate in RATES},
            "precision": tp / (tp + fp) if tp + fp else None,
            "recall": tp / (tp + fn) if tp + fn else None,
            **(run.defender.counted if run.defender is not None else {}),
        }


def separated(clusters: np.ndarray, attackers: Collection[int]) -> float | str:
    """The share of honest clients in whose cluster is no attacker, from rows [client, cluster] or a cluster by id."""
    pairs = clusters.tolist() if clusters.ndim == 2 else list(enumerate(clusters.tolist()))
    bad = {cluster for client, cluster in pairs if client in attackers}
    apart = [cluster not in bad for client, cluster in pairs if client not in attackers]
    return float(np.mean(apart)) if apart else ""
