"""What every defence is: a rule that sees the uploads of one average as a `Case` and gives a `Verdict`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Ge, Lt
from torch import Tensor

from polyfed import rng
from polyfed.message import State
from polyfed.params import Layout, Slice
from polyfed.parts.cluster import inner_products
from polyfed.registry import Registry, Spec, param
from polyfed.threats import robust
from polyfed.threats.robust import Array

Assumed = Annotated[int, Ge(0)] | Annotated[float, Ge(0), Lt(0.5)]


@dataclass
class Case:
    """The uploads of one average, in the order of client ids.

    Attributes:
        rows: What each client sent, weights first, float buffers after them.
        sent: What each client was sent, to measure updates from.
        n_weights: How many numbers of a row are weights.
        p: The weight of each client in a plain average.
        f: How many of the clients are assumed to be malicious.
        call: The number of this average in its round.
        draw: Gives a keyed random generator for a purpose.
        state: What the server keeps between rounds.
        layout: Where the tensors of a model lie.
        part: The slice of the model that the rows hold.
        own_update: Trains the shared model on the server's own samples and gives the update of the weights.
        say: Writes a line to the log.
        round: The number of the round.
        mix: A matrix by which the rows are mixed before anything else; None where they are not.
    """

    rows: Sequence[Tensor]
    sent: Sequence[Tensor]
    n_weights: int
    p: Array
    f: int = 0
    call: int = 0
    draw: Callable[..., np.random.Generator] = field(default=lambda purpose, *where: rng.generator(0, purpose, *where))
    state: State = field(default_factory=State)
    layout: Layout | None = None
    part: Slice | None = None
    own_update: Callable[[], Tensor] | None = None
    say: Callable[[str], None] = field(default=lambda text: None)
    round: int = 1
    mix: Array | None = None

    @property
    def n(self) -> int:
        """How many uploads there are."""
        return len(self.rows)

    @property
    def weights(self) -> list[Tensor]:
        """The weights of each row."""
        return [row[: self.n_weights] for row in self.rows]

    @property
    def starts(self) -> list[Tensor]:
        """The weights that each client was sent."""
        return [row[: self.n_weights] for row in self.sent]

    @property
    def buffers(self) -> list[Tensor]:
        """The float buffers of each row."""
        return [row[self.n_weights :] for row in self.rows]

    @cached_property
    def plain_gram(self) -> Array:
        """The Gram matrix of the rows as they came, relative to what the first was sent, so that no digits are lost."""
        return inner_products(self.weights, less=[self.starts[0]] * self.n).numpy()

    @property
    def gram(self) -> Array:
        """The Gram matrix of the rows, after mixing if they are mixed."""
        return self._mixed(self.plain_gram)

    def update_gram(self, *more: Tensor) -> Array:
        """The Gram matrix of further vectors and of the updates, after mixing if these are mixed."""
        none = [torch.zeros(())] * len(more)
        less = [*(zero.expand(self.n_weights) for zero in none), *self.starts]
        return self._mixed(inner_products([*more, *self.weights], less=less).numpy())

    def _mixed(self, gram: Array) -> Array:
        if self.mix is None:
            return gram
        mix = np.eye(len(gram))
        mix[-self.n :, -self.n :] = self.mix
        return mix @ gram @ mix.T

    def unmixed(self, weights: Array) -> Array:
        """The weights of the original rows that correspond to these weights of mixed rows."""
        return weights if self.mix is None else weights @ self.mix

    def median_buffers(self) -> Tensor:
        """The coordinate median of the float buffers."""
        return robust.by_blocks(self.buffers, robust.median, self.mix)


@dataclass
class Verdict:
    """What a defence makes of some uploads: their mean, and what it thinks of each."""

    mean: Tensor
    weights: Array | None = None  # None where a rule gives the clients no weights
    suspects: Sequence[int] | None = None  # positions of rows that have no say; None where a rule names none
    idle: bool = False  # whether it was a plain average


def without_say(weights: Array) -> list[int]:
    """Whose weight is zero."""
    return np.flatnonzero(weights == 0).tolist()


def mean_start(case: Case) -> Tensor:
    """The weights that the clients were sent; where these differ, their mean."""
    return robust.weighted(case.starts, np.full(case.n, 1 / case.n))


def mean_update(case: Case, coefficients: Array, *more: Tensor) -> Tensor:
    """A linear combination of further vectors and of the updates."""
    rows, zero = [*more, *case.weights], torch.zeros(()).expand(case.n_weights)
    less = [*([zero] * len(more)), *case.starts]
    return robust.average(rows, torch.from_numpy(coefficients), less)


class Defence(Spec):
    """A rule that takes the place of the plain average of models."""

    kind: ClassVar[str] = "defence"
    approximate: ClassVar[bool] = False  # whether it is rebuilt from a description, without the authors' text or code
    by_count: ClassVar[bool] = False  # whether a rule that assumes no attacker is a plain average
    f: Assumed = param(0.2, "how many of the clients averaged together are assumed to be malicious; below 0.5: a share")
    pre: Literal["none", "nnm"] = param("none", "nnm: every upload is first averaged with the n - f nearest it")

    def most(self, n: int) -> int:
        """The largest number of attackers among n for which the rule is made."""
        return (n - 1) // 2

    def assumed(self, n: int) -> int:
        """How many attackers are assumed among n."""
        return self.f if isinstance(self.f, int) else int(self.f * n)

    def judge(self, case: Case) -> Verdict:
        """The robust mean of a case whose f is legal and whose rows are mixed if `pre` asks for it."""
        return Verdict(robust.weighted(case.rows, case.p))

    def average(self, case: Case) -> Verdict:
        """The robust mean of a case, or the plain average where there are too few rows for anything else."""
        f = max(0, min(self.assumed(case.n), self.most(case.n)))
        if case.n <= 2 or (self.by_count and f == 0):
            return Verdict(robust.weighted(case.rows, case.p), case.p, idle=True)
        case.f = f
        case.mix = robust.nearest_neighbours(case.plain_gram, f) if self.pre == "nnm" else None
        return self.judge(case)

    def lowered(self, n: int) -> bool:
        """Whether more attackers are assumed than the rule is made for."""
        return n > 2 and self.assumed(n) > self.most(n)


defences = Registry("defence", "polyfed.threats.defences", Defence)
defence = defences.register


@defence("none", paper="the plain average")
class NoDefence(Spec):
    """The plain average, by the weights of the method."""


defences.base = Spec  # "none" is no rule and has no keys


class Weighted(Defence):
    """A rule in which the clients' own weights may count."""

    weights: Literal["uniform", "method"] = param("uniform", "what uploads weigh: alike, or as the method weighs them")


class Weighing(Defence):
    """A rule that gives every upload a weight."""

    names_suspects: ClassVar[bool] = True

    def weigh(self, gram: Array, case: Case) -> Array:
        """The weights of the rows, which add up to 1."""
        return case.p

    def judge(self, case: Case) -> Verdict:
        """The mean with these weights; a client whose weight is zero is suspect."""
        weights = case.unmixed(self.weigh(case.gram, case))
        suspects = without_say(weights) if self.names_suspects else None
        return Verdict(robust.weighted(case.rows, weights), weights, suspects)
