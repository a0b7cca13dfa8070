"""The engine `flower`, and what it refuses."""

from polyfed.config import Config
from polyfed.engine.base import Crew, Engine, engine
from polyfed.engine.flower import need_flower
from polyfed.errors import UsageError
from polyfed.methods.base import Method
from polyfed.registry import param


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


def refuse_secagg(method: Method) -> None:
    """Why secure aggregation cannot be had, in one sentence."""
    more = [name for name, field in method.wire().up.items() if not field.summed]
    own = f", and method '{method.name}' needs more than sums ({', '.join(more)})" if more else ""
    raise UsageError(f"engine.secagg=true is refused: the pinned Flower has SecAgg+ only for its legacy fit API{own}")
