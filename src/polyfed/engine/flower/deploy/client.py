"""A site at work: its own data, its own memories, its own model; only uploads, digests and counts leave it."""

import json
import os
import threading
from functools import cache
from pathlib import Path
from typing import Any

from flwr.app import Context

from polyfed import outside
from polyfed.config import Config, make_config, read_yaml
from polyfed.data.sources.base import Dataset
from polyfed.engine.flower.deploy.insisted import ACCOUNT, check_privacy, check_total
from polyfed.engine.flower.deploy.layout import RUN, Site, check_disclose
from polyfed.engine.flower.deploy.schema import COUNTS, own_data, own_federation, schema_of
from polyfed.engine.flower.node import client_app, do
from polyfed.engine.ledger import charge_site
from polyfed.engine.memory import MemoryStore, write_file
from polyfed.engine.parent import end_with
from polyfed.engine.work import Job, Outcome, World, device_of
from polyfed.errors import DataError, UsageError
from polyfed.files import Place
from polyfed.message import digest_of

KEPT = "job.safetensors"  # the last message for an evaluation; with the site's memory it makes the site's model


def introduce(order: dict[str, Any], context: Context) -> dict[str, Any]:
    """A site's hello: who it is, what its data look like, how many there are, and where its model starts."""
    _end_with_superexec()
    site = _site(context)
    config = _config(site, order)
    check_privacy(site, config)
    dataset = own_data(config, site)
    told = "n" if config.privacy.hides_counts else disclosed(site, order)
    said = {"site": site.name, **schema_of(dataset, told).to_record()}
    if site.name not in order["sites"]:
        return said  # the server tells it that it does not belong
    world = World(config, own_federation(config, dataset, site.name, order), device_of(config.device), secret=True)
    hello = world.do(Job("hello", order["sites"].index(site.name), 0), None)
    if hello.error:
        raise DataError(hello.error)
    numbers = {key: hello.numbers[key] for key in ("n", "tests", "vals", "params", "layout")}
    counts = {key: hello.counts[name].tolist() if told == "counts" else [] for name, key in COUNTS.items()}
    return {**said, **numbers, **counts, "disclosed": told}


def disclosed(site: Site, order: dict[str, Any]) -> str:
    """How much is told: what the site allows and the server asks for, whichever is less."""
    check_disclose(order.get("disclose"), "what the server asks for, disclose,")
    return "n" if "n" in (site.disclose, order["disclose"]) else "counts"


def work(job: Job, order: dict[str, Any], context: Context) -> Outcome:
    """A job on this site; the order names the memory it starts from and those that may be wanted again."""
    _end_with_superexec()
    site = _site(context)
    check_privacy(site, _config(site, order))
    world, store = world_of(site, order), store_of(site, order)
    if list(order["sites"]).index(site.name) != job.client:
        raise DataError(f"this is site '{site.name}', and the job is for client {job.client}")
    if world.origin_of(job.client) != {key: order[key] for key in ("params", "layout")}:
        raise DataError(f"site '{site.name}' builds another model than the server: are the versions the same?")
    _check_memory(store, job, order["digest"])
    if job.kind == "train":
        n = len(world.federation.clients[job.client].train)
        check_total(site, world.privacy.cost(world.setting, n))
        charge_site(world.privacy, world.setting, n, job.client, _account(site, order))
    outcome = do(world, job, store)
    store.prune({job.client: job.round}, *({job.client: version} for version in order["keep"]))
    if job.kind == "evaluate" and not outcome.error:
        _keep(site, job, order)
    return outcome


def _account(site: Site, order: dict[str, Any]) -> Place:
    """Where this site keeps what a run's privacy has cost it; beside its memories, which come and go."""
    store = store_of(site, order)
    site.memory.mkdir(exist_ok=True)  # it is charged before it has anything to remember
    return Place.of(site.memory) / f"{store.folder.name}{ACCOUNT}"


def _check_memory(store: MemoryStore, job: Job, digest: str) -> None:
    blob = store.get(job.client, job.version)
    if blob is not None and digest_of(blob) != digest:
        raise DataError(f"the memory of version {job.version} on this site is not the one the server accepted")


def _keep(site: Site, job: Job, order: dict[str, Any]) -> None:
    """What answers for this site from now on: the message and the memory it was just measured with."""
    site.model.mkdir(exist_ok=True)
    about = {"client": job.client, "round": job.round, "version": job.version, "order": order}
    write_file(site.model / KEPT, job.down.encode())
    write_file(site.model / "job.json", json.dumps(about).encode())
    store, memory = store_of(site, order), site.model / "memory.safetensors"
    blob = store.get(job.client, job.version)
    if blob is None:
        memory.unlink(missing_ok=True)
    else:
        write_file(memory, blob)


def world_of(site: Site, order: dict[str, Any]) -> World:
    """The world of this site: its own data, under the config that the order names."""
    config = _config(site, order)
    dataset: Dataset = own_data(config, site)
    federation = own_federation(config, dataset, site.name, order)
    return World(config, federation, device_of(config.device), secret=True)


def store_of(site: Site, order: dict[str, Any]) -> MemoryStore:
    """This site's memories of a run."""
    run = str(order["run"])
    if not RUN.fullmatch(run):
        raise DataError(f"'{run}' is not the name of a run")
    return MemoryStore(site.memory / run)


@cache
def _end_with_superexec() -> None:
    """Flower asks us to stop when the SuperExec dies, but its own calls would go on trying to reach it for ever."""
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()


def _site(context: Context) -> Site:
    return Site.at(Path(str(context.node_config["home"])))


def _config(site: Site, order: dict[str, Any]) -> Config:
    """What the server wants trained; code outside polyfed runs only if this site's own settings name it."""

    def permit(kind: str, name: str, files: outside.Files) -> None:
        if name not in site.allow:
            raise UsageError(f"the {kind} '{name}' lies outside polyfed, and this site does not allow it")

    tree = read_yaml(order["config"], "the config of the run")
    with outside.asking(permit):
        return make_config({**tree, "engine": {"name": "flower"}, "init": None})


app = client_app(introduce, work)
