"""dp-sgd: one example more or less, against whoever sees the uploads."""

from polyfed.errors import UsageError
from polyfed.methods.base import Client
from polyfed.methods.sites import PrivateFits
from polyfed.models.base import bn_modules
from polyfed.parts.fit import sampling_rate
from polyfed.parts.steps import Private
from polyfed.registry import param
from polyfed.threats.accountant import Entry, need_opacus
from polyfed.threats.privacy.base import NORMS, Budgeted, Setting, privacy
from polyfed.threats.privacy.noise import normal, secret_generator

PRESENCE = "class presence is not protected"


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
        draw = normal(setting.secret, client.task.seed, "dp-noise", client.round, client.id)
        step = Private(self.clip, sigma, draw)
        return PrivateFits(step, steps, secret_generator if setting.secret else None)

    def keeps_reports(self, setting: Setting) -> bool:
        """Between real sites, unless they are asked for."""
        return setting.secret and not self.reports

    def outside(self, setting: Setting) -> list[str]:
        """Also the reports, and what the method takes for known."""
        told = [] if self.keeps_reports(setting) else ["reports: losses and confusion counts"]
        known = setting.method.presumes
        presumed = [f"{PRESENCE} (the method knows {known})"] if known else []
        return [*told, "the number of samples of each client", *presumed, *super().outside(setting)]
