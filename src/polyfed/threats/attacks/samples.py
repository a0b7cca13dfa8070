"""Attacks on the attacker's own samples: changed labels, stamped images; the update may be boosted."""

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Gt
from torch import Tensor

from polyfed import rng
from polyfed.data.samples import Pool, Samples
from polyfed.errors import UsageError
from polyfed.registry import param
from polyfed.threats.attacks.base import Attack, Place, attack

Boost = Annotated[float, Gt(0)] | Literal["auto"]
DISTFL = {0: 4, 1: 5, 2: 6, 3: 7, 4: 0, 5: 1, 6: 2, 7: 3}  # classes 8 and 9 of CIFAR-10 stay


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
        made = own_pool(samples, read=True)
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
        made = own_pool(samples)
        _stamp(made.pool.x, chosen)
        made.pool.y[chosen] = self.target
        return made

    def stamp(self, samples: Samples) -> Samples | None:
        made = own_pool(samples)
        _stamp(made.pool.x, torch.arange(len(made)))
        return made

    def success(self, counts: np.ndarray, stamped: np.ndarray | None, seed: int) -> float | None:
        """The share of stamped samples of other classes that are answered with the target."""
        if stamped is None:
            return None
        others = np.arange(len(stamped)) != self.target
        total = stamped[others].sum()
        return float(stamped[others, self.target].sum() / total) if total else None


def own_pool(samples: Samples, read: bool = False) -> Samples:
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
