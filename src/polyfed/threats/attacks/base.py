"""What every attack is: who attacks, when, and what it may change."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt
from pydantic import BaseModel, ConfigDict, model_validator
from torch import Tensor

from polyfed import rng
from polyfed.data.samples import Samples
from polyfed.errors import UsageError
from polyfed.registry import Registry, Spec, contradiction, param


class Span(BaseModel):
    """Rounds from one to another, both included."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    from_: Annotated[int, Ge(1)] = 1
    to: int = 10**9

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, value: Any) -> Any:
        return {("from_" if k == "from" else k): v for k, v in value.items()} if isinstance(value, dict) else value


@dataclass(frozen=True)
class Place:
    """Where an attack happens: whose upload it is, in which round, and what the run knows.

    Attributes:
        seed: The seed of the run.
        round: The number of the round.
        client: The attacker.
        replaces: The factor by which an update must be boosted to take the place of the average.
    """

    seed: int
    round: int
    client: int
    replaces: float = 1.0

    def noise(self, like: Tensor, scale: float) -> Tensor:
        """Gaussian noise for this upload."""
        draw = rng.torch_generator(self.seed, "attack", self.round, self.client)
        return torch.randn(like.shape, generator=draw).to(like.device) * scale


class Attack(Spec):
    """What attackers do; every attack has keys for who attacks and when."""

    kind: ClassVar[str] = "attack"
    trains: ClassVar[bool] = True  # whether an attacker trains at all
    colludes: ClassVar[bool] = False  # whether attackers act together, when all uploads are there
    no_masks: ClassVar[str] = ""  # why it cannot attack masks, in words; empty: it can
    clients: list[Annotated[int, Ge(0)]] | None = param(None, "ids of the attackers")
    count: Annotated[int, Ge(1)] | None = param(None, "number of attackers, drawn from the participants")
    fraction: Annotated[float, Gt(0)] | None = param(None, "share of the participants that attack", lt=1)
    rounds: Literal["all", "last", "never"] | list[Annotated[int, Ge(1)]] | Span = param(
        "all", "when they attack: all, last, never (the base rate), a list of rounds, or {from: 3, to: 9}"
    )

    @model_validator(mode="after")
    def _one_number(self) -> "Attack":
        given = [key for key in ("clients", "count", "fraction") if getattr(self, key) is not None]
        if len(given) != 1:
            said = f"{' and '.join(f'attack.{key}' for key in given)} are given" if given else "none is given"
            raise contradiction(
                f"how many clients attack is said by exactly one of attack.clients, attack.count and attack.fraction, "
                f"and {said}"
            )
        return self

    def attackers(self, seed: int, participants: Sequence[int]) -> frozenset[int]:
        """Who attacks: these clients, or as many as asked for, drawn from the participants."""
        everybody = len(participants)
        if self.clients is not None:
            unknown = sorted(set(self.clients) - set(participants))
            if unknown:
                raise UsageError(f"attack.clients names client {unknown[0]}, which does not train in this federation")
            chosen = frozenset(self.clients)
        else:
            count = self.count if self.count is not None else max(1, round((self.fraction or 0) * everybody))
            if count > everybody:
                raise UsageError(f"attack.count={count} is more than the {everybody} clients that train")
            draw = rng.generator(seed, "attackers")
            chosen = frozenset(int(k) for k in draw.choice(np.array(participants), size=count, replace=False))
        if not 0 < len(chosen) < everybody:
            whom = "every client" if chosen else "no client"
            raise UsageError(f"{whom} would attack: leave at least one honest client and one attacker")
        return chosen

    def acts(self, round: int, last: int) -> bool:
        """Whether attackers attack in this round; `last` is the number of the last one."""
        if isinstance(self.rounds, Span):
            return self.rounds.from_ <= round <= self.rounds.to
        if isinstance(self.rounds, list):
            return round in self.rounds
        return self.rounds == "all" or (self.rounds == "last" and round == last)

    @property
    def changes_uploads(self) -> bool:
        """Whether it does anything to an upload."""
        return True

    def check(self, classes: int, images: bool, shape: Sequence[int]) -> None:
        """Refuse data that the attack is not made for."""

    def poison(self, samples: Samples, classes: int, seed: int, client: int) -> Samples:
        """The samples an attacker trains on; changed ones are copied into a pool of their own first."""
        return samples

    def own(self, trained: Tensor, sent: Tensor, place: Place) -> Tensor:
        """The weights an attacker sends instead of those it trained."""
        return trained

    def stamp(self, samples: Samples) -> Samples | None:
        """Test samples with a trigger, where the attack has one."""
        return None

    def success(self, counts: np.ndarray, stamped: np.ndarray | None, seed: int) -> float | None:
        """The attack's success rate from the counts of a test set; None where it aims at nothing in particular."""
        return None


attacks = Registry("attack", "polyfed.threats.attacks")
attack = attacks.register


@attack("none", paper="everybody is honest")
class NoAttack(Spec):
    """Nobody attacks."""
