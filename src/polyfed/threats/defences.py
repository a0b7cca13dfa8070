"""Defences: what takes the place of the plain average, so that a few malicious uploads cannot decide the model.

The rules are pure functions in `robust`; here each has a name, its keys and the range in which it is legal. A rule sees
the uploads of one average as a `Case`. docs/threats.md says which rule helps against which attack.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from polyfed import rng
from polyfed.message import State
from polyfed.params import Layout, Slice, head
from polyfed.parts.chunks import in_chunks, ranges
from polyfed.parts.cluster import embedding, group_fixed, inner_products
from polyfed.registry import Registry, Spec, param
from polyfed.threats import robust
from polyfed.threats.robust import Array

Assumed = Annotated[int, Ge(0)] | Annotated[float, Ge(0), Lt(0.5)]
Tau = Annotated[float, Gt(0)] | Literal["median"]


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


def _without_say(weights: Array) -> list[int]:
    """Whose weight is zero."""
    return np.flatnonzero(weights == 0).tolist()


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
        suspects = _without_say(weights) if self.names_suspects else None
        return Verdict(robust.weighted(case.rows, weights), weights, suspects)


# ---- on coordinates


@defence("median", paper="Yin et al. 2018")
class Median(Defence):
    """The median of every coordinate."""

    def judge(self, case: Case) -> Verdict:
        return Verdict(robust.by_blocks(case.rows, robust.median, case.mix))


@defence("trimmed-mean", paper="Yin et al. 2018")
class TrimmedMean(Defence):
    """The mean of every coordinate without its f smallest and f largest values."""

    by_count = True

    def judge(self, case: Case) -> Verdict:
        return Verdict(robust.by_blocks(case.rows, lambda columns: robust.trimmed_mean(columns, case.f), case.mix))


# ---- by distances


@defence("krum", paper="Blanchard et al. 2017")
class Krum(Weighing):
    """The one upload that is nearest its n - f - 2 nearest neighbours."""

    by_count = True

    def most(self, n: int) -> int:
        return (n - 3) // 2

    def weigh(self, gram: Array, case: Case) -> Array:
        return robust.krum(gram, case.f)


@defence("multi-krum", paper="Blanchard et al. 2017")
class MultiKrum(Krum, Weighted):
    """The mean of the m uploads that Krum scores best."""

    m: Annotated[int, Ge(1)] | None = param(None, "how many uploads are averaged; by default all but f")

    def weigh(self, gram: Array, case: Case) -> Array:
        m = case.n - case.f if self.m is None else min(self.m, case.n)
        return robust.share_among(np.flatnonzero(robust.multi_krum(gram, case.f, m)).tolist(), case.p)


@defence("bulyan", paper="El Mhamdi et al. 2018")
class Bulyan(Defence):
    """The uploads that Krum chooses one by one; of each coordinate, the mean of the values nearest the median."""

    by_count = True

    def most(self, n: int) -> int:
        return (n - 3) // 4

    def judge(self, case: Case) -> Verdict:
        chosen = robust.bulyan_choice(case.gram, case.f)
        mix = None if case.mix is None else case.mix[chosen]
        rows = case.weights if mix is not None else [case.weights[i] for i in chosen]
        mean = robust.by_blocks(rows, lambda columns: robust.nearest_median(columns, case.f), mix)
        weights = case.unmixed(robust.share_among(chosen, np.ones(case.n)))
        return Verdict(torch.cat([mean, case.median_buffers()]), weights, _without_say(weights))


@defence("geometric-median", paper="Pillutla et al. 2022 (RFA)")
class GeometricMedian(Weighing, Weighted):
    """The point with the smallest sum of distances to the uploads."""

    names_suspects = False
    nu: float = param(1e-6, "distances are taken to be at least this", gt=0)

    def weigh(self, gram: Array, case: Case) -> Array:
        return robust.geometric_median(gram, case.p, self.nu)


@defence("dnc", paper="Shejwalkar and Houmansadr 2021")
class DivideAndConquer(Weighted):
    """The mean of the uploads that never stick out along the direction in which random coordinates vary most."""

    by_count = True
    times: int = param(5, "how often coordinates are drawn", ge=1)
    coordinates: int = param(10_000, "how many coordinates are drawn each time", ge=1)
    drops: float = param(1.0, "how many uploads are dropped each time, in multiples of f", gt=0)

    def judge(self, case: Case) -> Verdict:
        kept = set(range(case.n))
        for time in range(self.times):
            kept -= set(robust.outlying(self.columns(case, time), int(self.drops * case.f)))
        if not kept:
            case.say("defence=dnc dropped every upload: the coordinate median is taken")
            return Verdict(robust.by_blocks(case.rows, robust.median, case.mix))
        weights = case.unmixed(robust.share_among(sorted(kept), case.p))
        return Verdict(robust.weighted(case.rows, weights), weights, _without_say(weights))

    def columns(self, case: Case, time: int) -> Array:
        """Some coordinates of the updates, or all if there are few."""
        chosen = slice(None)
        if case.n_weights > self.coordinates:
            drawn = case.draw("dnc", case.call, time).choice(case.n_weights, self.coordinates, replace=False)
            chosen = torch.from_numpy(np.sort(drawn))  # type: ignore[assignment]
        rows = [(row[chosen] - start[chosen]).numpy() for row, start in zip(case.weights, case.starts, strict=True)]
        found = np.stack(rows).astype(np.float64)
        return found if case.mix is None else case.mix @ found


# ---- by clipping


class Clipping(Weighted):
    """A rule that shortens updates; their length does not reveal forged buffers, so these take their median."""

    tau: Tau = param("median", "the length that updates keep; median: that of the lengths of the round's updates")

    def moved(self, case: Case, update: Tensor) -> Tensor:
        """The model sent, moved by an update of its weights; buffers are the median."""
        return torch.cat([_mean_start(case).add_(update), case.median_buffers()])


def _mean_start(case: Case) -> Tensor:
    """The weights that the clients were sent; where these differ, their mean."""
    return robust.weighted(case.starts, np.full(case.n, 1 / case.n))


def _mean_update(case: Case, coefficients: Array, *more: Tensor) -> Tensor:
    """A linear combination of further vectors and of the updates."""
    rows, zero = [*more, *case.weights], torch.zeros(()).expand(case.n_weights)
    less = [*([zero] * len(more)), *case.starts]
    return robust.average(rows, torch.from_numpy(coefficients), less)


@defence("norm-clip", paper="Sun et al. 2019")
class NormClip(Clipping):
    """The mean of updates, each of which is shortened to tau; it bounds how far each can pull, but excludes nobody."""

    def judge(self, case: Case) -> Verdict:
        weights = case.unmixed(robust.norm_clip(case.update_gram(), case.p, self.tau))
        return Verdict(self.moved(case, _mean_update(case, weights)), weights)


@defence("centred-clipping", paper="Karimireddy et al. 2021")
class CentredClipping(Clipping):
    """Updates are shortened to tau around a centre, which starts where the last round's ended."""

    steps: int = param(3, "how often the centre moves in a round", ge=1)

    def judge(self, case: Case) -> Verdict:
        key = f"defence.centre{case.call}"
        before = case.state.get(key)
        if before is None or len(before) != case.n_weights:
            before = torch.zeros(case.n_weights)
        found = robust.centred_clipping(case.update_gram(before), case.p, self.tau, self.steps)
        coefficients = np.concatenate([found[:1], case.unmixed(found[1:])])
        case.state[key] = centre = _mean_update(case, coefficients, before)
        return Verdict(self.moved(case, centre), coefficients[1:])


# ---- with knowledge of the server's own


@defence("fltrust", paper="Cao et al. 2021")
class FLTrust(Defence):
    """Updates weigh by their cosine with an update that the server itself trains on `split.public` samples."""

    def judge(self, case: Case) -> Verdict:
        assert case.own_update is not None
        own = case.own_update()
        gram = case.update_gram(own)
        lengths = np.sqrt(gram.diagonal())
        trusted = robust.trust(gram[0, 1:], lengths[1:], float(lengths[0]))
        if not trusted.any():
            case.say("defence=fltrust trusts no upload: the model stays as it was")
            return Verdict(robust.weighted(case.sent, case.p), trusted, _without_say(trusted))
        weights = case.unmixed(trusted / trusted.sum())
        scaled = trusted * np.divide(lengths[0], lengths[1:], out=np.zeros_like(trusted), where=lengths[1:] > 0)
        update = _mean_update(case, case.unmixed(scaled / trusted.sum()))
        buffers = robust.weighted(case.buffers, weights)
        return Verdict(torch.cat([_mean_start(case).add_(update), buffers]), weights, _without_say(weights))


# ---- the three of DistFL's comparison


@defence("irls", paper="Fu et al. 2019")
class IRLS(Defence):
    """Values far from a line through the sorted values move onto it, and their clients weigh less."""

    lam: float = param(2.0, "how far from the line a value is trusted", gt=0)

    def judge(self, case: Case) -> Verdict:
        if case.n < 4:
            return Verdict(robust.by_blocks(case.rows, robust.median, case.mix))
        mean, found = robust.irls(case.rows, case.n_weights, self.lam, case.mix)
        weights = case.unmixed(found)
        return Verdict(mean, weights, np.flatnonzero(weights < 0.1 * weights.max()).tolist())


@defence("gra", paper="Yu and Wu 2020")
class GRA(Defence):
    """Uploads are grouped by k-means; each group gives its median, and the groups are combined. Approximate."""

    approximate = True
    groups: int = param(2, "number of groups", ge=1)
    combine: Literal["size", "largest"] = param("size", "groups count by their size, or only the largest does")

    def judge(self, case: Case) -> Verdict:
        points, seed = embedding(torch.from_numpy(case.gram)), int(case.draw("gra", case.call).integers(2**32))
        members = group_fixed(points, self.groups, seed).members()
        members.sort(key=lambda group: (-len(group), group[0]))
        if self.combine == "largest":
            members = members[:1]
        medians = [self.median_of(case, group) for group in members]
        sizes = np.array([len(group) for group in members], dtype=np.float64)
        return Verdict(robust.weighted(medians, sizes / sizes.sum()))

    def median_of(self, case: Case, group: list[int]) -> Tensor:
        """The coordinate median of a group."""
        if case.mix is None:
            return robust.by_blocks([case.rows[i] for i in group], robust.median)
        return robust.by_blocks(case.rows, robust.median, case.mix[group])


@defence("credit", paper="Li et al. 2019")
class Credit(Weighted):
    """Uploads that an autoencoder of clean rounds cannot reconstruct weigh less, or nothing. Approximate."""

    approximate = True
    rule: Literal["hard", "credit"] = param("hard", "hard: nothing above the mean error; credit: p_k over the error")
    clean: int = param(3, "the first rounds, whose uploads are assumed to be honest", ge=1)
    width: int = param(512, "numbers in the surrogate of an upload", ge=1)
    hidden: int = param(100, "width of the autoencoder", ge=1)
    epochs: int = param(100, "passes in which it is fitted", ge=1)

    def judge(self, case: Case) -> Verdict:
        surrogates = self.surrogates(case)
        if case.round <= self.clean:
            self.learn_from(case, surrogates)
            return Verdict(robust.weighted(case.rows, case.p), case.p, idle=True)
        if "defence.autoencoder" not in case.state:
            self.fit(case)
        errors = self.errors(case, surrogates)
        if self.rule == "hard":
            weights = robust.share_among(np.flatnonzero(errors <= errors.mean()).tolist(), case.p)
        else:
            weights = case.p / np.maximum(errors, np.finfo(np.float64).tiny)
            weights = weights / weights.sum()
        weights = case.unmixed(weights)
        return Verdict(robust.weighted(case.rows, weights), weights, _without_say(weights))

    def surrogates(self, case: Case) -> Tensor:
        """The last convolution of every upload, or its last linear layer below the head, projected if it is long."""
        assert case.layout is not None
        assert case.part is not None
        here = surrogate_range(case.layout, case.part)
        rows = torch.stack([row[here] for row in case.rows])
        if rows.shape[1] > self.width:
            rows = projected(rows, self.width, self.seed_of(case))
        return rows if case.mix is None else (torch.from_numpy(case.mix) @ rows.double()).float()

    @staticmethod
    def seed_of(case: Case) -> int:
        """The seed of projection and autoencoder, drawn in the first round and kept, so that all rounds have it."""
        if "defence.seed" not in case.state:
            case.state["defence.seed"] = int(case.draw("credit").integers(2**62))
        return int(case.state["defence.seed"])

    def learn_from(self, case: Case, surrogates: Tensor) -> None:
        """Keep the surrogates of a clean round; a client that is averaged twice in it counts once."""
        if case.call == 0:
            kept = case.state.get("defence.clean")
            case.state["defence.clean"] = surrogates if kept is None else torch.cat([kept, surrogates])

    def fit(self, case: Case) -> None:
        """Fit the autoencoder to the standardised surrogates of the clean rounds."""
        rows = case.state.get("defence.clean")
        if rows is None:
            raise ValueError("defence=credit saw no upload in its clean rounds")
        mean, spread = rows.mean(0), rows.std(0, correction=0).clamp(min=1e-12)
        model = self.autoencoder(case, rows.shape[1])
        steps, inputs = torch.optim.Adam(model.parameters(), lr=1e-3), (rows - mean) / spread
        with torch.enable_grad():
            for _ in range(self.epochs):
                steps.zero_grad()
                nn.functional.mse_loss(model(inputs), inputs).backward()
                steps.step()
        case.state["defence.autoencoder"] = parameters_to_vector(model.parameters()).detach().clone()
        case.state["defence.mean"], case.state["defence.spread"] = mean, spread
        del case.state["defence.clean"]

    def errors(self, case: Case, surrogates: Tensor) -> Array:
        """A_k: the squared error with which each surrogate is reconstructed."""
        model = self.autoencoder(case, surrogates.shape[1])
        vector_to_parameters(case.state["defence.autoencoder"], model.parameters())
        inputs = (surrogates - case.state["defence.mean"]) / case.state["defence.spread"]
        with torch.no_grad():
            return (model(inputs) - inputs).double().square().sum(1).numpy()

    def autoencoder(self, case: Case, width: int) -> nn.Module:
        """d - 100 - d with a ReLU, at its keyed start."""
        with rng.seeded(self.seed_of(case), "autoencoder"):
            return nn.Sequential(nn.Linear(width, self.hidden), nn.ReLU(), nn.Linear(self.hidden, width))


def projected(rows: Tensor, width: int, seed: int) -> Tensor:
    """Rows under a random Gaussian projection to this width, which is made again block by block."""

    def part(here: slice) -> Tensor:
        draw = rng.torch_generator(seed, "projection", here.start)
        return rows[:, here] @ torch.randn(here.stop - here.start, width, generator=draw)

    return torch.stack(in_chunks(part, ranges(rows.shape[1], 1 << 12, rows.shape[1]))).sum(0) / width**0.5


def surrogate_range(layout: Layout, part: Slice) -> slice:
    """Where in a slice the last convolution's weights lie; without one, the last matrix below the head, or any."""
    found: dict[str, slice] = {}
    at = 0
    for entry in layout.floats:
        if not part.test(entry):
            continue
        size = entry.stop - entry.start
        if entry.kind == "weight" and len(entry.shape) >= 2:
            kind = "head" if head.test(entry) else "linear" if len(entry.shape) == 2 else "convolution"
            found[kind] = slice(at, at + size)
        at += size
    return next((found[kind] for kind in ("convolution", "linear", "head") if kind in found), slice(0, at))
