"""The attack of a run: who attacks, when, and what becomes of their samples and uploads."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyfed.data.samples import Samples
from polyfed.errors import UsageError
from polyfed.message import Field, Message, Wire
from polyfed.methods.base import Task
from polyfed.params import Layout
from polyfed.threats.attacks import Attack, Collusion, Place
from polyfed.threats.updates import start_of, weights_in


class Adversary:
    """Every process builds the same one from the config: no message tells who attacks."""

    def __init__(
        self,
        spec: Attack,
        task: Task,
        method: str,
        wire: Wire,
        layout: Layout,
        sizes: Mapping[int, int],
        selected: int,
        weighting: str,
    ):
        self.spec, self.task, self.layout, self.sizes = spec, task, layout, sizes
        self.attackers = spec.attackers(task.seed, sorted(sizes))
        self.trains = spec.trains
        self.fields: dict[str, Field] = {name: one for name, one in wire.up.items() if one.against is not None}
        if spec.changes_uploads and not self.fields:
            what = "attack.boost" if hasattr(spec, "boost") else f"attack={spec.name}"
            raise UsageError(f"{what} changes the models that clients send, and method '{method}' sends none")
        self._selected, self._weighting = selected, weighting

    def acts(self, client: int, round: int) -> bool:
        """Whether a client attacks in a round."""
        return client in self.attackers and self.spec.acts(round, self.task.rounds)

    def replaces(self, client: int) -> float:
        """The factor by which an update must be boosted to replace the average, if other clients have the mean size."""
        mean = sum(self.sizes.values()) / len(self.sizes)
        alike = self._weighting != "sample" or not self.sizes[client]
        return float(self._selected) if alike else self._selected * mean / self.sizes[client]

    def poison(self, samples: Samples, client: int) -> Samples:
        """The samples that an attacker trains on."""
        return self.spec.poison(samples, self.task.classes, self.task.seed, client)

    def own(self, up: Message, down: Message, client: int, round: int) -> Message:
        """The upload that an attacker sends instead of the one it computed."""
        if self.spec.changes_uploads and not self.spec.colludes:
            place = Place(self.task.seed, round, client, self.replaces(client))
            for name, field in self.fields.items():
                if name in up:
                    self._replace(up, name, field, down, lambda trained, sent: self.spec.own(trained, sent, place))
        return up

    def _replace(
        self, up: Message, name: str, field: Field, down: Message, make: Callable[[Tensor, Tensor], Tensor]
    ) -> None:
        """Put other weights into a field of an upload; its buffers stay."""
        value, count = up[name], weights_in(field, up[name], self.layout)
        sent = start_of(field, value, down)
        made = value.clone()
        made.view(-1)[:count] = make(value.reshape(-1)[:count], sent[:count])
        up[name] = made

    def together(
        self, uploads: Mapping[int, Message], downs: Mapping[int, Message], round: int, say: Callable[[str], None]
    ) -> None:
        """Change the uploads of attackers that act together, in place, once all uploads of the round have arrived."""
        spec = self.spec
        mine = [k for k in sorted(uploads) if self.acts(k, round)]
        if not isinstance(spec, Collusion) or not mine:
            return
        for name, field in self.fields.items():
            known = self._known(name, field, uploads, downs, mine, spec.knows)
            if len(known) < (2 if spec.knows == "own" else 1):
                whose = "other attackers'" if spec.knows == "own" else "honest"
                say(f"attack={spec.name} has too few {whose} updates to know anything: uploads stay as they are")
                continue
            plan = spec.plan(known, len(uploads), len(mine))
            for at, client in enumerate(mine):
                update = plan[at % len(plan)]
                self._replace(uploads[client], name, field, downs[client], lambda _, sent, u=update: sent + u)  # type: ignore[misc]

    def _known(
        self,
        name: str,
        field: Field,
        uploads: Mapping[int, Message],
        downs: Mapping[int, Message],
        mine: Sequence[int],
        knows: str,
    ) -> list[Tensor]:
        """The finite updates that the attackers know, in the order of client ids."""
        found = []
        for client in mine if knows == "own" else [k for k in sorted(uploads) if k not in mine]:
            value = uploads[client].get(name)
            if not isinstance(value, Tensor) or not torch.isfinite(value).all():
                continue
            count = weights_in(field, value, self.layout)
            found.append(value.reshape(-1)[:count] - start_of(field, value, downs[client])[:count])
        return found

    # ---- what it achieves

    @property
    def measures(self) -> tuple[str, ...]:
        """What clients measure on the global test set: as it is, and with the attack's trigger if it has one."""
        return ("threat", "stamped") if type(self.spec).stamp is not Attack.stamp else ("threat",)

    def stamped(self, samples: Samples) -> Samples:
        """Test samples with the attack's trigger."""
        made = self.spec.stamp(samples)
        assert made is not None
        return made

    def success(self, tables: Mapping[str, np.ndarray]) -> float | None:
        """The attack's success rate from the counts of the measures; None where it aims at nothing in particular."""
        found: Any = tables.get("threat")
        return None if found is None else self.spec.success(found, tables.get("stamped"), self.task.seed)
