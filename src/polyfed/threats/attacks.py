"""Attacks: what some clients of a simulation do wrong on purpose, to their data, to their upload, or all together.

Who attacks follows from the seed alone, so every process knows it and no message tells it. An attack on uploads touches
the weights of the fields that are measured against a model sent down; float buffers stay as they were trained, because
a boosted variance would turn negative. In rounds without an attack an attacker is honest, on clean data.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt
from pydantic import BaseModel, ConfigDict, model_validator
from torch import Tensor

from polyfed import rng
from polyfed.data.samples import Pool, Samples
from polyfed.errors import UsageError
from polyfed.parts.chunks import in_chunks, ranges
from polyfed.registry import Registry, Spec, contradiction, param
from polyfed.threats.robust import BLOCK

DISTFL = {0: 4, 1: 5, 2: 6, 3: 7, 4: 0, 5: 1, 6: 2, 7: 3}  # classes 8 and 9 of CIFAR-10 stay


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
    rounds: Literal["all", "last"] | list[Annotated[int, Ge(1)]] | Span = param(
        "all", "when they attack: all, last, a list of rounds, or {from: 3, to: 9}"
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
        return self.rounds == "all" or round == last

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


# ---- on data

Boost = Annotated[float, Gt(0)] | Literal["auto"]


class DataAttack(Attack):
    """An attack on the attacker's own samples, whose update may be boosted."""

    share: float = param(1.0, "share of the samples that are changed", ge=0, le=1)
    boost: Boost = param(1.0, "factor of the update; auto: what takes the place of the average (model replacement)")

    @property
    def changes_uploads(self) -> bool:
        return self.boost != 1

    def own(self, trained: Tensor, sent: Tensor, place: Place) -> Tensor:
        factor = place.replaces if self.boost == "auto" else float(self.boost)
        return trained if factor == 1 else sent + factor * (trained - sent)

    def chosen(self, among: np.ndarray, seed: int, client: int) -> Tensor:
        """The positions that are changed: the same in every round."""
        count = round(self.share * len(among))
        drawn = rng.generator(seed, "poison", client).choice(among, size=count, replace=False)
        return torch.from_numpy(np.sort(drawn))


@attack("label-flip", paper="Tolpegin et al. 2020; Liu et al. 2021")
class LabelFlip(DataAttack):
    """Attackers train on labels that a mapping of the classes has changed; of masks, the pixels of what they own."""

    mapping: Literal["distfl", "next", "reverse", "random"] | dict[int, int] = param(
        "distfl", "which class becomes which: distfl, next, reverse, random, or {0: 1, ...}"
    )

    def check(self, classes: int, images: bool, shape: Sequence[int]) -> None:
        if self.mapping == "distfl" and classes < len(DISTFL):
            raise UsageError(
                f"attack.mapping=distfl swaps the first 8 classes, and these data have {classes}: take next or reverse"
            )
        if isinstance(self.mapping, dict):
            strange = [c for pair in self.mapping.items() for c in pair if not 0 <= c < classes]
            if strange:
                raise UsageError(f"attack.mapping names class {strange[0]}, and classes are 0 to {classes - 1}")
        if (self.map(classes, 0) == np.arange(classes)).all():
            raise UsageError("attack.mapping changes no class: name at least one that becomes another")

    def map(self, classes: int, seed: int) -> np.ndarray:
        """The class that each class becomes."""
        made = np.arange(classes)
        if self.mapping == "next":
            return (made + 1) % classes
        if self.mapping == "reverse":
            return made[::-1].copy()
        if self.mapping == "random":  # one cycle through all classes has no fixed point
            order = rng.generator(seed, "mapping").permutation(classes)
            made[order] = np.roll(order, -1)
            return made
        pairs = DISTFL if self.mapping == "distfl" else self.mapping
        made[list(pairs)] = list(pairs.values())
        return made

    def poison(self, samples: Samples, classes: int, seed: int, client: int) -> Samples:
        chosen = self.chosen(np.arange(len(samples)), seed, client)
        if not len(chosen):
            return samples
        made = _own_pool(samples, read=True)
        table = torch.from_numpy(np.append(self.map(classes, seed), 0)).to(made.y.device)
        labels = made.pool.y[chosen].long()
        known = labels < classes  # a label outside the classes (void pixels, the background) stays
        made.pool.y[chosen] = torch.where(known, table[labels.clamp(max=classes)], labels).to(made.pool.y.dtype)
        return made

    def success(self, counts: np.ndarray, stamped: np.ndarray | None, seed: int) -> float | None:
        """Over the classes that are changed, the mean share of samples answered with the changed label."""
        goal, totals = self.map(len(counts), seed), counts.sum(1)
        rates = [counts[c, goal[c]] / totals[c] for c in range(len(counts)) if goal[c] != c and totals[c]]
        return float(np.mean(rates)) if rates else None


@attack("backdoor", paper="Bagdasaryan et al. 2020; Gu et al. 2017")
class Backdoor(DataAttack):
    """Attackers stamp a white square on some images and call them the target class."""

    no_masks = "it calls whole images its target class; take label-flip"
    target: int = param(0, "the class that stamped images are called", ge=0)
    share: float = param(0.5, "share of the images of other classes that are stamped", ge=0, le=1)

    def check(self, classes: int, images: bool, shape: Sequence[int]) -> None:
        if not images or len(shape) != 3:
            raise UsageError("attack=backdoor stamps images, and these data hold none: take label-flip")
        if self.target >= classes:
            raise UsageError(f"attack.target={self.target} is no class: classes are 0 to {classes - 1}")

    def poison(self, samples: Samples, classes: int, seed: int, client: int) -> Samples:
        others = np.flatnonzero(samples.y.cpu().numpy() != self.target)
        chosen = self.chosen(others, seed, client)
        if not len(chosen):
            return samples
        made = _own_pool(samples)
        _stamp(made.pool.x, chosen)
        made.pool.y[chosen] = self.target
        return made

    def stamp(self, samples: Samples) -> Samples | None:
        made = _own_pool(samples)
        _stamp(made.pool.x, torch.arange(len(made)))
        return made

    def success(self, counts: np.ndarray, stamped: np.ndarray | None, seed: int) -> float | None:
        """The share of stamped samples of other classes that are answered with the target."""
        if stamped is None:
            return None
        others = np.arange(len(stamped)) != self.target
        total = stamped[others].sum()
        return float(stamped[others, self.target].sum() / total) if total else None


def _own_pool(samples: Samples, read: bool = False) -> Samples:
    """The same samples in a pool of their own, which may be written to; `read`: batches may still be read anew."""
    pool, rows, anew = samples.pool, samples.rows, samples.anew
    x = pool.rows(rows).clone(memory_format=torch.preserve_format)
    made = Pool(x, samples.y.clone(), pool.mean, pool.std)
    again = (lambda chosen: anew(rows[chosen])) if read and anew is not None else None
    return Samples(made, torch.arange(len(samples), device=rows.device), samples.cut, again, samples.owned)


def _stamp(x: Tensor, chosen: Tensor) -> None:
    """A white square, one pixel from the lower right corner."""
    high, wide = x.shape[-2:]
    side = max(2, min(high, wide) // 8)
    x[chosen, :, high - 1 - side : high - 1, wide - 1 - side : wide - 1] = 255


# ---- on one's own upload


@attack("noise", paper="Blanchard et al. 2017")
class Noise(Attack):
    """Attackers send the model they were sent, or the one they trained, with Gaussian noise."""

    s: float = param(1.0, "standard deviation of the noise", gt=0)
    add: bool = param(False, "add the noise to the trained model instead of the one that was sent")

    def own(self, trained: Tensor, sent: Tensor, place: Place) -> Tensor:
        return (trained if self.add else sent) + place.noise(sent, self.s)


@attack("sign-flip", paper="Li et al. 2019 (RSA)")
class SignFlip(Attack):
    """Attackers send the opposite of their update."""

    scale: float = param(1.0, "factor of the opposite update", gt=0)

    def own(self, trained: Tensor, sent: Tensor, place: Place) -> Tensor:
        return sent - self.scale * (trained - sent)


@attack("free-rider", paper="Fraboni et al. 2021")
class FreeRider(Attack):
    """Attackers do not train: they send what they were sent, with noise that fades like real updates."""

    trains = False
    s: float = param(0.0, "standard deviation of the noise in the first round", ge=0)
    decay: float = param(1.0, "how fast the noise fades: its deviation is s * round^-decay", ge=0)

    def own(self, trained: Tensor, sent: Tensor, place: Place) -> Tensor:
        if self.s == 0:
            return sent.clone()
        return sent + place.noise(sent, self.s * place.round**-self.decay)


# ---- together


class Collusion(Attack):
    """An attack that attackers agree on when they know the updates of others."""

    colludes = True
    knows: Literal["all", "own"] = param("all", "the honest updates, or only those the attackers trained themselves")

    def plan(self, updates: Sequence[Tensor], n: int, m: int) -> list[Tensor]:
        """The updates that attackers take turns to send, where m of n uploads are theirs."""
        return []


@attack("ipm", paper="Xie et al. 2020 (inner product manipulation)")
class InnerProduct(Collusion):
    """Attackers send the mean of the honest updates backwards."""

    eps: float = param(0.5, "factor of the mean", ge=0)

    def plan(self, updates: Sequence[Tensor], n: int, m: int) -> list[Tensor]:
        return [-self.eps * _by_blocks(updates, lambda block: block.mean(0))]


@attack("alie", paper="Baruch et al. 2019 (a little is enough)")
class LittleIsEnough(Collusion):
    """Attackers send an update just inside the spread of the honest ones."""

    z: Annotated[float, Ge(0)] | Literal["auto"] = param("auto", "how many deviations from the mean of the honest ones")

    def plan(self, updates: Sequence[Tensor], n: int, m: int) -> list[Tensor]:
        z = alie_z(n, m) if self.z == "auto" else float(self.z)
        return [_by_blocks(updates, lambda block: block.mean(0) - z * block.std(0, correction=0))]


def alie_z(n: int, m: int) -> float:
    """The largest z at which enough honest clients are farther from the mean than the m attackers among n."""
    supporters = n // 2 + 1 - m
    share = (n - m - supporters) / (n - m)
    return NormalDist().inv_cdf(min(max(share, 0.5), 0.99))


@attack("mimic", paper="Karimireddy et al. 2022")
class Mimic(Collusion):
    """Attackers copy an honest update, which then counts too much."""

    target: Literal["first", "spread"] = param("first", "copy the first honest client, or each another one")

    def plan(self, updates: Sequence[Tensor], n: int, m: int) -> list[Tensor]:
        return list(updates[:1] if self.target == "first" else updates[:m])


def _by_blocks(rows: Sequence[Tensor], rule: Any) -> Tensor:
    """Apply a rule, in double precision, to the columns of all coordinates, block by block and on all cores."""
    made = torch.empty_like(rows[0])

    def over(here: slice) -> None:
        made[here] = rule(torch.stack([row[here] for row in rows]).double()).to(made.dtype)

    in_chunks(over, ranges(len(made), BLOCK, len(made)))
    return made
