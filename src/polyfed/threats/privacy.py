"""Privacy with a budget: noise per example (dp-sgd) or per client (user); or a paper's noise, which guarantees nothing.

A kind of privacy says what it refuses, changes how a client trains (`fits`), what leaves it (`leave`) or how the server
averages (`averaged`), and what a round costs (`cost`). The engine calls these and keeps the accounts.
"""

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import model_validator
from torch import Tensor, nn

from polyfed import params as slices
from polyfed import rng
from polyfed.errors import UsageError
from polyfed.measure.guarantee import NOMINAL
from polyfed.message import Message, Wire
from polyfed.methods.base import Client, Method, Server, Task, Upload
from polyfed.methods.sites import PrivateFits
from polyfed.models.base import bn_modules
from polyfed.params import Layout, Params
from polyfed.parts.fit import sampling_rate
from polyfed.parts.steps import Private, Within
from polyfed.registry import Registry, Spec, contradiction, param
from polyfed.threats.accountant import Accountant, Entry, need_opacus, noise_for

SECRET = "secret noise, bits not reproducible"
PRESENCE = "class presence is not protected"
NORMS = "which mixes samples: set model=resnet8-gn"
ROUNDING = 1e-4  # by which the length of a clipped update may exceed the bound in float32


@dataclass(frozen=True)
class Setting:
    """The run in which privacy is wanted, as every site knows it."""

    method: Method
    wire: Wire
    task: Task
    layout: Layout
    model: nn.Module
    sampling: str
    weighting: str
    appearances: int  # how many rounds any one client takes part in, at most
    secret: bool = False  # between real sites, where noise that others could repeat protects nobody

    def shared_weights(self, name: str) -> int:
        """How many numbers of an uploaded slice are weights: they come first."""
        part = self.wire.up[name].part
        return self.layout.length(part & slices.weights) if part is not None else 0

    def updates(self) -> list[str]:
        """The uploaded fields that are a model, measured against one that was sent down."""
        sent = self.wire.down
        return [
            name
            for name, field in self.wire.up.items()
            if field.part is not None and field.against is not None and sent[field.against].part is not None
        ]


class Privacy(Spec):
    """No privacy, with a default for every question that a run asks."""

    kind: ClassVar[str] = "privacy"
    unit: ClassVar[str] = ""  # what two neighbouring data sets differ by
    hides_counts: ClassVar[bool] = False  # whether a hello tells no class counts
    empty_rounds: ClassVar[bool] = False  # whether a round in which nobody was drawn counts

    @property
    def counts(self) -> bool:
        """Whether there is a budget that an accountant counts."""
        return False

    @property
    def counted_by(self) -> Accountant:
        """The accountant that counts it."""
        return "rdp"

    def check(self, setting: Setting) -> None:
        """Refuse a run that this kind of privacy cannot protect."""

    def fits(self, setting: Setting, client: Client) -> PrivateFits | None:
        """How the client's fits are made private in training; None: they are not changed."""
        return None

    def leave(self, setting: Setting, client: Client, up: Message, down: Message) -> None:
        """Change what leaves the client, in place."""

    def averaged(self, setting: Setting) -> "Callable[[Server, Sequence[Upload]], Params] | None":
        """The average of the server; None: the usual one."""
        return None

    def cost(self, setting: Setting, n: int) -> Entry | None:
        """What a round costs a client with n samples, as (sigma, q, steps); None: nothing is counted per client."""
        return None

    def round_cost(self, setting: Setting) -> Entry | None:
        """What a round costs all clients together; None: nothing is counted for all."""
        return None

    def budget(self) -> float | None:
        """The epsilon that no client may exceed."""
        return None

    def delta_of(self, clients: int) -> float:
        """The delta of the guarantee."""
        return 0.0

    def keeps_reports(self, setting: Setting) -> bool:
        """Whether losses and confusion counts stay at the site, because the guarantee does not cover them."""
        return False

    def facts(self, setting: Setting) -> dict[str, Any]:
        """What the summary, the report and the card say beside the numbers."""
        return {}


privacies = Registry("privacy", "polyfed.threats.privacy", Privacy)
privacy = privacies.register


@privacy("none")
class NoPrivacy(Privacy):
    """Nothing is changed."""


class Budgeted(Privacy):
    """A guarantee that an accountant counts: the noise is given, or follows from epsilon."""

    clip: float = param(
        1.0, "the longest a gradient of one example (dp-sgd), or a client's update (user), may be", gt=0
    )
    epsilon: float | None = param(None, "the budget of the whole run; the noise follows from it", gt=0)
    noise: float | None = param(None, "the noise multiplier sigma: the noise has the deviation sigma * clip", gt=0)
    accountant: Accountant = param("rdp", "how steps are added up: rdp, or prv, which is tighter and slower")

    @model_validator(mode="after")
    def _one_of_two(self) -> "Budgeted":
        if (self.epsilon is None) == (self.noise is None):
            raise contradiction(
                f"privacy={self.name} needs either privacy.epsilon (a budget) or privacy.noise (a noise multiplier), "
                "and not both"
            )
        return self

    @property
    def counts(self) -> bool:
        """An accountant counts it."""
        return True

    @property
    def counted_by(self) -> Accountant:
        """The one given."""
        return self.accountant

    def budget(self) -> float | None:
        """The epsilon that was asked for; with a given noise there is no end."""
        return self.epsilon

    def sigma(self, delta: float, q: float, steps: int) -> float:
        """The noise multiplier for so many steps."""
        return self.noise or noise_for(self.epsilon or math.inf, delta, q, steps, self.accountant)

    def facts(self, setting: Setting) -> dict[str, Any]:
        """Kind, unit, neighbours and what is not covered."""
        noise = SECRET if setting.secret else "seeded noise: a simulation, since who knows the seed can subtract it"
        return {
            "kind": self.name,
            "unit": self.unit,
            "neighbours": f"{self.unit} added or removed",
            "clip": self.clip,
            "accountant": self.accountant,
            "noise": noise,
            "outside": self.outside(setting),
        }

    def outside(self, setting: Setting) -> list[str]:
        """What the guarantee does not cover, in words."""
        made_later = ["models tuned after the last round (finish), which are not sent"]
        later = type(setting.method).finish is not Method.finish or setting.method.personal != slices.nothing
        return made_later if later else []


@privacy("dp-sgd", paper="Abadi et al. 2016")
class DPSGD(Budgeted):
    """One example more or less, against whoever sees the uploads: every step clips each example's gradient."""

    unit = "one example"
    hides_counts = True
    delta: float = param(
        1e-5, "the chance with which the bound may fail; below 1 / samples of every client", gt=0, lt=1
    )
    reports: bool = param(False, "whether real sites tell losses and confusion counts, which are not covered")
    classes_known: bool = param(
        False, "whether a method may know which classes a client holds: class presence is then not protected"
    )

    def check(self, setting: Setting) -> None:
        """Refuse what cannot be bounded example by example."""
        need_opacus()
        method = setting.method
        if bn_modules(setting.model):
            raise UsageError(f"privacy=dp-sgd needs a model without BatchNorm, {NORMS}")
        for name, field in setting.wire.up.items():
            if field.sees == "data":
                raise UsageError(
                    f"privacy=dp-sgd cannot bound '{name}' of method '{method.name}': it is computed from samples"
                )
        if method.unbounded:
            raise UsageError(f"privacy=dp-sgd cannot bound method '{method.name}': {method.unbounded}")
        if method.presumes and not self.classes_known:
            raise UsageError(
                f"privacy=dp-sgd cannot bound method '{method.name}', which knows {method.presumes}: "
                f"privacy.classes_known=true accepts that {PRESENCE}"
            )

    def delta_of(self, clients: int) -> float:
        """The one given."""
        return self.delta

    def cost(self, setting: Setting, n: int) -> Entry | None:
        """All private steps that the method may take in a round."""
        if n == 0 or not setting.wire.up:  # nothing is learnt, or nothing is sent
            return None
        if self.delta >= 1 / n:
            raise UsageError(
                f"privacy.delta={self.delta:g} is too large for a client with {n} samples: it must be below 1/{n}"
            )
        steps = setting.method.private_steps(n)
        q = sampling_rate(n, setting.task.train.batch)
        return (self.sigma(self.delta, q, max(1, setting.appearances * steps)), q, steps)

    def fits(self, setting: Setting, client: Client) -> PrivateFits | None:
        """Private steps on Poisson batches, as many as a round may have."""
        cost = self.cost(setting, client.n)
        if cost is None:
            return None
        sigma, _, steps = cost
        draw = _normal(setting.secret, client.task.seed, "dp-noise", client.round, client.id)
        step = Private(self.clip, sigma, draw)
        return PrivateFits(step, steps, _secret_generator if setting.secret else None)

    def keeps_reports(self, setting: Setting) -> bool:
        """Between real sites, unless they are asked for."""
        return setting.secret and not self.reports

    def outside(self, setting: Setting) -> list[str]:
        """Also the reports, and what the method takes for known."""
        told = [] if self.keeps_reports(setting) else ["reports: losses and confusion counts"]
        known = setting.method.presumes
        presumed = [f"{PRESENCE} (the method knows {known})"] if known else []
        return [*told, "the number of samples of each client", *presumed, *super().outside(setting)]


def _normal(secret: bool, seed: int, purpose: str, *key: int) -> Callable[[Tensor], Tensor]:
    """Standard normal noise: keyed by purpose, round and client in a simulation, secret between real sites.

    Secret noise never comes from torch's generator, which keeps 32 bits of its seed: all of them could be tried.
    """
    if secret:
        return _secret_normal
    generator = torch.Generator().manual_seed(rng.number(seed, purpose, *key))
    return lambda like: torch.randn(like.shape, generator=generator).to(like.device)


def _secret_normal(like: Tensor) -> Tensor:
    generator, shape = _secret_generator(), tuple(like.shape)
    # four draws hide the holes that floating-point numbers leave in one (Holohan and Braghin 2021)
    values = sum(generator.standard_normal(shape) for _ in range(4)) / 2
    return torch.as_tensor(values, dtype=like.dtype, device=like.device)


def _secret_generator() -> np.random.Generator:
    """A generator with a key of 128 bits that nobody has seen."""
    return np.random.Generator(np.random.Philox(key=secrets.randbits(128)))


@privacy("user", paper="McMahan et al. 2018 (DP-FedAvg)")
class User(Budgeted):
    """One client's whole data more or less, with a trusted server: clipped updates and noise on their sum."""

    unit = "one client"
    empty_rounds = True

    def check(self, setting: Setting) -> None:
        """Refuse what the accountant does not know: other sampling, weights by samples, further fields."""
        need_opacus()
        method, up = setting.method, setting.wire.up
        if setting.sampling == "fixed":
            raise UsageError("privacy=user needs clients that are drawn independently: set sampling=bernoulli")
        if method.everyone:
            raise UsageError(f"privacy=user needs clients that are drawn, and '{method.name}' asks everybody")
        if setting.weighting != "uniform":
            raise UsageError("privacy=user needs clients that count alike: set weighting=uniform")
        if len(up) > 1:
            raise UsageError(
                f"privacy=user cannot bound method '{method.name}': it sends {len(up)} fields, which need a joint bound"
            )
        if setting.updates() != list(up) or not all(field.summed for field in up.values()):
            name = next(iter(up), "nothing")
            raise UsageError(
                f"privacy=user cannot bound method '{method.name}': its server needs more of '{name}' than a sum"
            )
        part = up["w"].part
        if part is not None and any(part.test(entry) and entry.bn for entry in setting.layout.entries):
            raise UsageError(f"privacy=user needs a shared model without BatchNorm, {NORMS} or method=fedbn")

    def delta_of(self, clients: int) -> float:
        """K^-1.1."""
        return float(clients**-1.1) if clients > 1 else 0.5

    def round_cost(self, setting: Setting) -> Entry | None:
        """One step, in which each client is included with the probability `participation`."""
        task = setting.task
        q = task.participation
        return (self.sigma(self.delta_of(task.clients), q, task.rounds), q, 1)

    def leave(self, setting: Setting, client: Client, up: Message, down: Message) -> None:
        """Clip the update."""
        for name in setting.updates():
            sent = down[str(setting.wire.up[name].against)]
            up[name] = sent + clipped(up[name] - sent, self.clip)[0]

    def averaged(self, setting: Setting) -> "Callable[[Server, Sequence[Upload]], Params] | None":
        """model + (sum of clipped updates + N(0, (z S)^2)) / (q K): an upload that is missing is zero."""

        def mean(server: Server, uploads: Sequence[Upload]) -> Params:
            sent, integers = server.shared.get(server.slice)
            total, longer = torch.zeros_like(sent), 0
            for upload in uploads:
                update, too_long = clipped(upload.message["w"] - sent, self.clip)
                total, longer = total + update, longer + too_long
            if longer:
                server.say(f"{longer} updates were longer than privacy.clip={self.clip:g} and were clipped again")
            cost = self.round_cost(setting)
            assert cost is not None
            z, q, _ = cost
            draw = _normal(setting.secret, server.task.seed, "user-noise", server.round)
            noise = draw(sent) * (z * self.clip)
            made = server.shared.copy()
            made.put(server.slice, sent + (total + noise) / (q * setting.task.clients), integers)
            return made

        return mean

    def outside(self, setting: Setting) -> list[str]:
        """Also the reports, and what a hello tells the server."""
        told = ["reports: losses and confusion counts", "numbers of samples and classes in the records"]
        return [*told, "the server, which is trusted", *super().outside(setting)]


def clipped(update: Tensor, longest: float) -> tuple[Tensor, bool]:
    """An update of at most this length, and whether it had been longer."""
    length = float(torch.linalg.vector_norm(update))
    if length <= longest:
        return update, False
    return update * (longest / length), length > longest * (1 + ROUNDING)


@privacy("nominal", paper="Liu et al. (DistFL), figures 3 and 4")
class Nominal(Privacy):
    """Noise on clipped updates as a paper has it: a nominal noise level, no privacy guarantee."""

    epsilon: float = param(1.0, "the nominal noise level of the figures; no privacy budget", gt=0)
    delta: float = param(1e-5, "the delta of the formula", gt=0, lt=1)
    clip: float = param(0.1, "the longest update S", gt=0)
    scale_by_n: bool = param(True, "whether the noise is divided by the client's samples")
    per_step: bool = param(False, "whether the update is kept below S after every step, not only at the end")

    def deviation(self, n: int) -> float:
        """s = S sqrt(2 ln(1.25 / delta)) / (epsilon n_k)."""
        scale = self.epsilon * (n if self.scale_by_n else 1)
        return self.clip * math.sqrt(2 * math.log(1.25 / self.delta)) / max(scale, 1e-12)

    def fits(self, setting: Setting, client: Client) -> PrivateFits | None:
        """Every step ends within S of what was sent, where `per_step` asks for it."""
        part = setting.wire.up["w"].part if "w" in setting.wire.up else None
        if not self.per_step or part is None:
            return None
        return PrivateFits(Within(client.shared, part & slices.weights, self.clip), None, None, poisson=False)

    def leave(self, setting: Setting, client: Client, up: Message, down: Message) -> None:
        """Clip the weights of the update and add noise to them; buffers stay as trained."""
        generator = rng.torch_generator(client.task.seed, "nominal-noise", client.round, client.id)
        for name in setting.updates():
            count = setting.shared_weights(name)
            sent = down[str(setting.wire.up[name].against)][:count]
            update, _ = clipped(up[name][:count] - sent, self.clip)
            noise = torch.randn(count, generator=generator).to(sent.device) * self.deviation(client.n)
            up[name] = torch.cat([sent + update + noise, up[name][count:]])

    def facts(self, setting: Setting) -> dict[str, Any]:
        """The nominal level, and that it is no guarantee."""
        return {"kind": self.name, "nominal": self.epsilon, "clip": self.clip, "outside": [NOMINAL]}
