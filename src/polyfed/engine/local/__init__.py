"""The local engine: worker processes on this machine, forked or spawned, or this process alone, with the same bits."""

from polyfed.config import Config
from polyfed.engine.base import Crew, Engine, engine
from polyfed.engine.local.placement import Start, devices_of, placed, way_here
from polyfed.engine.local.serial import Serial
from polyfed.engine.local.workers import Workers
from polyfed.registry import param

__all__ = ["Local", "Serial", "Workers"]


@engine("local")
class Local(Engine):
    """This machine."""

    workers: int | None = param(
        None, "worker processes; 0 works in this process; by default one per core, or per_gpu per GPU", ge=0, le=1024
    )
    start: Start = param("auto", "how workers begin; auto forks on Linux without a GPU and spawns anywhere else")
    per_gpu: int | None = param(None, "workers that may share a GPU, by default 1", ge=1, le=64)

    def check(self, config: Config) -> None:
        """Refuse more workers than a device takes, and a start that is impossible here."""
        if self.workers != 0:
            way_here(self.start, placed(devices_of(config.device), self.workers, self.per_gpu))

    def open(self) -> Crew:
        """Workers, on the devices of the run that begins; or, if there shall be none, this process."""
        return Serial() if self.workers == 0 else Workers(self.workers, self.start, self.per_gpu)
