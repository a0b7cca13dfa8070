"""What every kind of privacy is: the questions that a run asks of it, and a budget that an accountant counts."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import model_validator
from torch import Tensor, nn

from polyfed import params as slices
from polyfed.message import Message, Wire
from polyfed.methods.base import Client, Method, Server, Task, Upload
from polyfed.methods.sites import PrivateFits
from polyfed.params import Layout, Params
from polyfed.registry import Registry, Spec, contradiction, param
from polyfed.threats.accountant import Accountant, Entry, noise_for
from polyfed.threats.updates import start_of

SECRET = "secret noise, bits not reproducible"
NORMS = "which mixes samples: set model=resnet8-gn"


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
        """The uploaded fields that are a model, measured against one of those that were sent down."""
        up = self.wire.up.items()
        return [name for name, field in up if field.part is not None and field.against is not None]

    def start(self, name: str, up: Message, down: Message) -> Tensor:
        """The model that the upload of this field is measured from; of several that were sent, the nearest."""
        return start_of(self.wire.up[name], up[name], down)


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
