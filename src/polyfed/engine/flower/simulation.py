"""A simulation of Flower in this process: its server side is held open on a thread, and jobs go over its grid."""

import contextlib
import logging
import os
import queue
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from polyfed.config import Config, write_yaml
from polyfed.engine.flower import SILENT, hush
from polyfed.engine.flower.engine import Flower
from polyfed.engine.flower.grid import PAUSE, WHO, OverGrid, Posted
from polyfed.engine.flower.node import client_app, place, simulated
from polyfed.engine.memory import MemoryStore
from polyfed.engine.work import Job, Outcome, World, sentence
from polyfed.errors import RunFailed

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
STOPPING = 60  # seconds a simulation may take to end


class Simulation(OverGrid):
    """A crew of Ray actors that lives as long as it may; what breaks it starts it anew."""

    tries = 2  # a job whose actor died is done again once, from the same inputs

    def __init__(self, engine: Flower):
        super().__init__()
        self.engine = engine
        self.stage: Stage | None = None
        self.clients = 0
        self.lease: Path | None = None

    def begin(self, config: Config, world: World, store: MemoryStore) -> None:
        """Begin a run; another number of clients needs another simulation."""
        self.engine.check(config)
        if self.stage is not None and self.clients != len(world.federation.clients):
            self.abandon()
        self._end_lease()
        self.clients, self.store = len(world.federation.clients), store
        run = store.folder.path.parent.resolve()
        self.lease = run / f".lease-{uuid.uuid4().hex[:8]}"
        self.common = {"config": write_yaml(config.dump()), "run": str(run), "cwd": os.getcwd()}

    def order(self, job: Job) -> Mapping[str, Any]:
        if job.version is not None:
            self.store.show(job.client, job.version)
        return {**self.common, "lease": str(self.lease)}

    def hello(self) -> Iterator[Outcome]:
        """Ask every client for its hello through an actor, because the worlds of the actors must equal this one."""
        yield from (o for o in self.run([Job("hello", k, 0) for k in range(self.clients)], None, None) if o.client >= 0)

    def grid(self) -> Grid:
        """The grid of a running simulation; started if there is none."""
        if self.stage is not None and not self.stage.thread.is_alive():
            self.abandon()
        if self.lease is not None:
            self.lease.touch()
        if self.stage is None:
            self.stage = Stage(self.engine, self.clients)
            self.nodes = self.stage.places()
        return self.stage.grid

    def missing(self, client: int) -> str:
        """No client can be reached after the simulation itself has ended."""
        return "" if self.stage is None or self.stage.thread.is_alive() else "the simulation ended: " + self.stage.why()

    def abandon(self) -> None:
        """Actors at work end with their lease; Flower would wait for them."""
        self._end_lease()
        if self.stage is not None:
            self.stage.end()
            self.stage = None

    def close(self) -> None:
        """End everything."""
        self.abandon()

    def _end_lease(self) -> None:
        if self.lease is not None:
            self.lease.unlink(missing_ok=True)


class Stage:
    """Ray, and Flower's simulation on a thread of its own, from its start to its end."""

    def __init__(self, engine: Flower, clients: int):
        self.engine, self.clients = engine, clients
        self._ready: queue.Queue[Grid] = queue.Queue()
        self._over = threading.Event()
        self._failure: BaseException | None = None
        start_ray(engine.address)
        need_room(engine, ray.nodes())
        self.thread = threading.Thread(target=self._play, daemon=True, name="flower-simulation")
        self.thread.start()
        self.grid = self._wait_for_grid()

    def places(self) -> dict[int, int]:
        """Partition id -> node id, as the nodes say: Flower draws node ids at random."""
        while self.thread.is_alive():
            found = list(self.grid.get_node_ids())
            if len(found) == self.clients:
                return self._asked(found)
            time.sleep(PAUSE)
        raise RunFailed(f"Flower's simulation could not start: {self.why()}")

    def _asked(self, nodes: list[int]) -> dict[int, int]:
        places: dict[int, int] = {}
        posted = Posted(self.grid, None)
        for node in nodes:
            posted.send(node, node, WHO, "", RecordDict())
        while len(places) < len(nodes) and self.thread.is_alive():
            for node, reply in posted.replies():
                if reply.has_error():
                    raise RunFailed(f"an actor of Flower's simulation could not start: {reply.error.reason}")
                places[int(reply.content.config_records["who"]["place"])] = node  # type: ignore[arg-type]
            time.sleep(PAUSE)
        return places

    def why(self) -> str:
        """The first cause of the simulation's end."""
        error = self._failure
        while error is not None and error.__cause__ is not None:
            error = error.__cause__
        return "no reason was given" if error is None else str(error).strip()

    def end(self) -> None:
        """Stop Flower, then Ray."""
        self._over.set()
        self.thread.join(STOPPING)
        ray.shutdown()

    def _play(self) -> None:
        server = ServerApp()

        @server.main()
        def hold(grid: Grid, context: Context) -> None:
            self._ready.put(grid)
            self._over.wait()

        resources = {"num_cpus": self.engine.cpus, "num_gpus": self.engine.gpus}
        try:
            simulate(server, client_app(place, simulated), self.clients, resources)
        except BaseException as error:
            self._failure = error

    def _wait_for_grid(self) -> Grid:
        while self.thread.is_alive():
            with contextlib.suppress(queue.Empty):
                return self._ready.get(timeout=0.1)
        raise RunFailed(f"Flower's simulation could not start: {self.why()}")


def start_ray(address: str | None) -> None:
    """Start Ray, or join a cluster, unless this process has it; actors compute with one thread, without telemetry."""
    if ray.is_initialized():
        return
    known = {name: os.environ[name] for name in ("POLYFED_DATA",) if name in os.environ}
    around = {**SILENT, **ONE_THREAD, **known, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        with _own_signals():
            ray.init(
                address=address or "local",
                include_dashboard=None if address else False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                runtime_env={"env_vars": around},
            )
    except Exception as error:
        where = f"join the Ray cluster at '{address}'" if address else "start Ray"
        raise RunFailed(f"cannot {where}: {sentence(error)}") from None
    ray._private.worker._worker_logs_enabled = False  # or Ray tells of dead actors on our stdout; we tell ourselves


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Restore the signal handlers afterwards, because Ray installs its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def need_room(engine: Flower, machines: Sequence[Mapping[str, Any]]) -> None:
    """Refuse to start where no machine of the cluster has room for a client."""
    for machine in machines:
        has = machine["Resources"]
        if has.get("CPU", 0) >= engine.cpus and has.get("GPU", 0) >= engine.gpus:
            return
    asked = f"engine.cpus={engine.cpus:g} and engine.gpus={engine.gpus:g}"
    raise RunFailed(f"no machine of this Ray cluster has room for a client that asks for {asked}")


def simulate(server: ServerApp, client: ClientApp, nodes: int, resources: Mapping[str, float]) -> None:
    """Flower's simulation until its server app ends; the one place that knows which function that is."""
    from flwr.simulation import run_simulation

    hush()
    run_simulation(server, client, nodes, backend_config={"client_resources": dict(resources)})
