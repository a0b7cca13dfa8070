"""Flower's simulation on Ray: the same jobs in actors, on this machine or on a cluster."""

import importlib.util
import logging
import os
import sys

from polyfed.config import Config
from polyfed.engine.base import Crew, Engine, engine
from polyfed.errors import UsageError
from polyfed.methods.base import Method
from polyfed.registry import param

SILENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # Ray's way to silence a warning
}


@engine("flower")
class Flower(Engine):
    """Flower's simulation on Ray; `polyfed deploy` runs the same between real nodes."""

    address: str | None = param(None, "a Ray cluster to join (host:port or auto); by default Ray starts here")
    cpus: float = param(1, "CPUs per client at work", gt=0)
    gpus: float = param(0, "GPUs per client at work", ge=0)
    secagg: bool = param(False, "secure aggregation: refused, the pinned Flower has it only for its legacy API")

    def reaches(self) -> str | None:
        """A cluster executes what its members send each other."""
        return self.address

    def check(self, config: Config) -> None:
        """Refuse what cannot reach an actor, secure aggregation, and every run where Flower is not installed."""
        need_flower()
        if self.secagg:
            refuse_secagg(config.method)
        for section in (config.data, *config.model.architectures):
            if "key" in type(section).model_fields:  # arrays and modules that were given as Python objects
                raise UsageError(f"{section.kind} given as a Python object is in this process only: use engine=local")

    def open(self) -> Crew:
        """A crew that starts its simulation with the first run."""
        need_flower()
        from polyfed.engine.flower.simulation import Simulation

        return Simulation(self)


def need_flower() -> None:
    """Refuse to go on where Flower or Ray is missing; switch their telemetry off."""
    for package in ("flwr", "ray"):
        if importlib.util.find_spec(package) is None:
            raise UsageError(f"the flower engine needs the package '{package}': pip install 'polyfed[flower]'")
    hush()


def hush() -> None:
    """Flower's and Ray's telemetry off, here and in every process started from here; their chatter too."""
    os.environ.update(SILENT)
    telemetry = sys.modules.get("flwr.supercore.telemetry")
    if telemetry is not None:  # imported before us: it read the variable then
        telemetry.FLWR_TELEMETRY_ENABLED = "0"  # type: ignore[attr-defined]
    logging.getLogger("flwr").setLevel(logging.CRITICAL)


def refuse_secagg(method: Method) -> None:
    """Why secure aggregation cannot be had, in one sentence."""
    more = [name for name, field in method.wire().up.items() if not field.summed]
    own = f", and method '{method.name}' needs more than sums ({', '.join(more)})" if more else ""
    raise UsageError(f"engine.secagg=true is refused: the pinned Flower has SecAgg+ only for its legacy fit API{own}")
