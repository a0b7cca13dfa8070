"""The client side over Flower: a message becomes a job, the job is done here, its memory stays here."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from polyfed.config import make_config, read_yaml
from polyfed.engine.flower.records import job_from_records, outcome_to_records
from polyfed.engine.memory import MemoryStore
from polyfed.engine.threads import threads
from polyfed.engine.work import Job, Outcome, World, device_of, sentence, unsendable
from polyfed.errors import DataError, PolyfedError
from polyfed.files import Place
from polyfed.message import digest_of

Work = Callable[[Job, dict[str, Any], Context], Outcome]
Who = Callable[[dict[str, Any], Context], dict[str, Any]]
_world: tuple[str, World] | None = None  # built once per process, kept while the config stays the same


def client_app(who: Who, work: Work) -> ClientApp:
    """A ClientApp that says whose node it is, and does every kind of job the same way."""
    app = ClientApp()

    @app.query("who")
    def introduce(message: Message, context: Context) -> Message:
        try:
            with threads(1):
                said = who(dict(message.content.config_records.get("order", {})), context)
        except Exception as error:
            said = {"error": str(error) if isinstance(error, PolyfedError) else sentence(error)}
        return Message(RecordDict({"who": ConfigRecord(said)}), reply_to=message)

    def answer(message: Message, context: Context) -> Message:
        return Message(outcome_to_records(_answered(work, message, context)), reply_to=message)

    for register in (app.query, app.train, app.evaluate):
        register()(answer)
    return app


def _answered(work: Work, message: Message, context: Context) -> Outcome:
    """The outcome of a message's job; whatever goes wrong is an outcome too."""
    client = -1
    try:
        job, order = job_from_records(message.content)
        client = job.client
        with threads(1):
            outcome = work(job, order, context)
    except Exception as error:
        return unsendable(Outcome(client), error)
    try:
        outcome_to_records(outcome)
        return outcome
    except Exception as error:
        return unsendable(outcome, error)


def do(world: World, job: Job, store: MemoryStore) -> Outcome:
    """A job on a memory store of this machine: the new memory is written here, only its digest is told."""
    outcome = world.do(job, store.get(job.client, job.version))
    if outcome.memory is not None:
        store.write(job.client, job.round, outcome.memory)
        outcome.memory = None
    return outcome


# ---- in simulation


def place(order: dict[str, Any], context: Context) -> dict[str, Any]:
    """In simulation a node is its partition id."""
    return {"place": int(context.node_config["partition-id"])}


def simulated(job: Job, order: dict[str, Any], context: Context) -> Outcome:
    """A job in an actor: config and run directory come with it, the memory lies in the run directory."""
    run, lease = Path(order["run"]), Path(order["lease"])
    if not (run / "config.yaml").is_file():
        here = os.uname().nodename
        raise DataError(f"the run directory '{run}' is not there on {here}: a Ray cluster needs it on a shared path")
    with _until_gone(lease):
        return do(_world_of(order), job, MemoryStore(Place(run) / "memory"))


def _world_of(order: dict[str, Any]) -> World:
    global _world
    key = digest_of((order["config"] + order["cwd"]).encode())
    if _world is None or _world[0] != key:
        if os.path.isdir(order["cwd"]):
            os.chdir(order["cwd"])  # paths in a config are meant from where the run was started
        config = make_config(read_yaml(order["config"], "the config of the run"))
        _world = key, World(config, device=device_of(config.device))
    return _world[1]


_lease: Path | None = None


@contextmanager
def _until_gone(lease: Path) -> Iterator[None]:
    """Inside, this process ends as soon as the file is gone: its job is not wanted any more."""
    global _lease
    if _lease is None:
        threading.Thread(target=_watch, daemon=True).start()
    _lease = lease
    try:
        yield
    finally:
        _lease = Path("/")  # always there


def _watch() -> None:
    while True:
        time.sleep(0.3)
        if _lease is not None and not _lease.exists():
            os._exit(1)
