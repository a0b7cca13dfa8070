"""The server app of a federation: it collects the hellos of the sites, then the one round loop runs over them."""

import json
import os
import queue
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, RecordDict
from flwr.app import Message as Reply
from flwr.serverapp import Grid, ServerApp

from polyfed.config import Config, write_yaml
from polyfed.engine import statements
from polyfed.engine.flower import hush
from polyfed.engine.flower.deploy import schema
from polyfed.engine.flower.deploy.layout import Server
from polyfed.engine.flower.grid import WHO, OverGrid, Posted
from polyfed.engine.memory import MemoryStore, write_file
from polyfed.engine.parent import end_with
from polyfed.engine.rounds import Run
from polyfed.engine.run_folder import RunFolder
from polyfed.engine.work import Job, Outcome, World, sentence
from polyfed.errors import DataError, PolyfedError, RunFailed
from polyfed.measure.watch import Silent
from polyfed.message import Message

HELLO_TIMEOUT = 300.0  # seconds within which every site must connect and say hello
REFRESH = 5.0  # seconds after which the list of connected nodes is asked for again
PAUSE = 0.5  # seconds between two checks for replies
HELLO = "hello.json"  # what the sites said, for a restart in which one is absent
ASKED = "deploy.json"  # what the operator asked for beside the config

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Do one run, new or resumed; whether it finished or failed is written to `last.json`."""
    hush()
    # Flower asks us to stop when the SuperLink dies, but its own calls would go on trying to reach it for ever
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    server = Server.at(Path(str(context.run_config["home"])))
    path = server.runs / str(context.run_config["run"])
    tell(server, path, "running")
    try:
        folder = RunFolder.existing(path)
        asked = json.loads((path / ASKED).read_text())
        crew = Sites(grid, server, path, asked["disclose"])
        SitesRun(folder.made_of(), folder, crew, Silent()).go()
        tell(server, path, "finished")
    except PolyfedError as error:
        tell(server, path, "failed", str(error), error.exit_code)
    except BaseException as error:
        tell(server, path, "failed", sentence(error) if isinstance(error, Exception) else repr(error), 4)
        raise


def tell(server: Server, run: Path, state: str, why: str = "", code: int = 0) -> None:
    """Write the state of a run to `last.json`, for commands that wait for it on this machine."""
    said = {"run": run.name, "state": state, "why": why, "code": code, "pid": os.getpid()}
    write_file(server.path / "last.json", json.dumps(said).encode())


class SitesRun(Run):
    """The round loop where data and memories are elsewhere."""

    crew: "Sites"

    def make_world(self) -> World:
        self.crew.collect_hellos(self.config, self.say)
        return self.crew.world(self.config)

    def make_store(self) -> MemoryStore:
        return Elsewhere(self.folder.path / "memory")


class Elsewhere(MemoryStore):
    """Memories that stay with the sites: the server knows only which version counts, and its digest."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.kept: list[Mapping[int, int]] = []  # the tables of the checkpoints from which a run may resume

    def get(self, client: int, version: int | None) -> bytes | None:
        """Return nothing, because no memory is stored here."""
        return None

    def persist(self) -> None:
        """Do nothing: the sites write their memories themselves."""

    def prune(self, *tables: Mapping[int, int]) -> None:
        """Keep the tables; the next job tells each site which versions it must keep."""
        self.kept = [dict(table) for table in tables]

    def restore(self, table: Mapping[int, int], digests: Mapping[int, str]) -> None:
        """Go back to these versions; each site checks the digest of its own."""
        self.table, self.digests = dict(table), dict(digests)
        self.kept = [dict(table)]

    def wanted(self, client: int) -> list[int]:
        """Return the versions of a client's memory that a resumed run may ask for."""
        return sorted({table[client] for table in (*self.kept, self.table) if client in table})


class Fetched(Posted):
    """Fetches each reply on a thread of its own: Flower may wait for hours for the rest of a reply that broke off."""

    def __init__(self, grid: Grid, deadline: float | None):
        super().__init__(grid, deadline)
        self._arrived: queue.SimpleQueue[Reply] = queue.SimpleQueue()

    def send(self, node: int, client: int, kind: str, group: str, content: RecordDict) -> None:
        before = set(self.waiting)
        super().send(node, client, kind, group, content)
        for key in set(self.waiting) - before:
            threading.Thread(target=self._fetch, args=(key,), daemon=True).start()

    def replies(self) -> Iterator[tuple[int, Reply]]:
        while not self._arrived.empty():
            reply = self._arrived.get()
            client = self.waiting.pop(reply.metadata.reply_to_message_id, None)
            if client is not None:
                yield client, reply

    def _fetch(self, key: str) -> None:
        while key in self.waiting:
            for reply in self.grid.pull_messages([key]):
                self._arrived.put(reply)
                return
            time.sleep(PAUSE)


class Sites(OverGrid):
    """The crew of a federation of real sites: it knows which node belongs to which site, and which are connected."""

    pause = PAUSE
    broken = "vanished"
    mail = Fetched

    def __init__(self, grid: Grid, server: Server, run: Path, disclose: str):
        super().__init__()
        self._grid, self.server, self.path = grid, server, run
        self.names = server.sites
        self.common: dict[str, Any] = {"sites": list(self.names), "run": run.name, "disclose": disclose}
        self.origins: list[dict[str, str]] = []  # where the model of each site starts, as digests
        self.said: dict[str, dict[str, Any]] = {}
        self._online: dict[str, int] = {}
        self._since: dict[int, str] = {}  # node -> when it connected
        self._before: dict[int, str] = {}  # the same at the time when the jobs were sent
        self._looked = 0.0

    # ---- before the first round

    def collect_hellos(self, config: Config, say: Any) -> None:
        """Collect the hello of every site; after a restart, an absent site's earlier hello is used."""
        self.common["config"] = write_yaml(config.dump())
        known = self.path / HELLO
        before = json.loads(known.read_text()) if known.exists() else {}
        fresh = self._ask_for_hellos(config, set(before), say)
        self.said = {name: self._as_first_told(name, before.get(name), fresh.get(name), say) for name in self.names}
        faults = {name: statements.fault_of_statement(statements.Hello, self._named(name)) for name in self.names}
        honest = [name for name, fault in faults.items() if not fault]
        if not honest:
            raise RunFailed(f"no site's hello can be true; that of '{self.names[0]}': {faults[self.names[0]]}")
        self.schema = schema.agreed({name: schema.Schema.from_record(self.said[name]) for name in honest})
        self.common |= schema.statistics(self.schema)
        if any(not self.said[name]["counts"] for name in honest):
            say("class counts are not told (disclose: n): there are no head, mid and tail numbers")
        write_file(known, json.dumps(self.said).encode())

    @staticmethod
    def _as_first_told(
        name: str, before: dict[str, Any] | None, now: dict[str, Any] | None, say: Any
    ) -> dict[str, Any]:
        """Return a site's hello, with what its first one said of its data, which holds for the whole run."""
        if before is None or now is None:
            return now or before or {}
        held = {key: before[key] for key in schema.FIXED if key in before}
        differing = [key for key, value in held.items() if now.get(key) != value]
        if differing:
            say(f"site '{name}' tells otherwise of its {differing[0]} than at first; what it told at first holds")
        return {**now, **held}

    def _named(self, name: str) -> dict[str, Any]:
        """Return a site's hello under the name that its key belongs to."""
        return {**self.said[name], "name": name}

    def _ask_for_hellos(self, config: Config, known: set[str], say: Any) -> dict[str, dict[str, Any]]:
        patience = config.engine.deadline or HELLO_TIMEOUT
        end = time.monotonic() + patience
        said: dict[str, dict[str, Any]] = {}
        asked: set[str] = set()
        posted = Fetched(self._grid, patience)
        order = RecordDict({"order": ConfigRecord(dict(self.common))})
        while len(said) < len(self.names) and time.monotonic() < end:
            for name, node in self._connected().items():
                if name not in asked:
                    asked.add(name)
                    posted.send(node, node, WHO, "hello", order)
            for node, reply in posted.replies():
                name, told = self._identified(node, reply)
                if told is not None:
                    said[name] = told
                else:
                    asked.discard(name)
            if known and not posted.waiting and said.keys() | known == set(self.names):
                break
            time.sleep(self.pause)
        absent = [name for name in self.names if name not in said]
        if any(name not in known for name in absent):
            there = ", ".join(sorted(said)) or "nobody"
            raise RunFailed(f"site '{absent[0]}' did not say hello within {patience:g} s; there: {there}")
        for name in absent:
            say(f"site '{name}' is not there; what it said in its last hello holds")
        return said

    def _identified(self, node: int, reply: Any) -> tuple[str, dict[str, Any] | None]:
        """Return the site that a node's key belongs to and its hello, which must name that site and report no error."""
        name = next((site for site, at in self._online.items() if at == node), f"node {node}")
        if reply.has_error():
            return name, None  # its app could not start, or it went away: it may come back
        said = dict(reply.content.config_records["who"])
        if "error" in said:
            raise DataError(f"site '{name}': {said['error']}")
        if said.get("site") != name or name not in self.names:
            raise DataError(f"a node with the key of site '{name}' says that it is {said.get('site')!r:.60}: refused")
        return name, said

    def world(self, config: Config) -> World:
        """Build the world as the server sees it: the model and the names, but no data."""
        world = World(config, schema.server_federation(config, self.schema, self.names), secret=True)
        self.origins = [world.origin_of(client) for client in range(len(self.names))]
        return world

    def hello(self) -> Iterator[Outcome]:
        """Yield the collected hellos as outcomes, for the round loop."""
        for client, name in enumerate(self.names):
            said = self._named(name)
            counts = {}
            if not statements.fault_of_statement(statements.Hello, said):
                counts = {which: np.array(said[key], np.int64) for which, key in schema.COUNTS.items() if said.get(key)}
            yield Outcome(client, Message(), numbers=said, counts=counts)

    # ---- rounds

    def begin(self, config: Config, world: World, store: MemoryStore) -> None:
        """Begin a run with this store."""
        assert isinstance(store, Elsewhere)
        self.store = store

    def order(self, job: Job) -> Mapping[str, Any]:
        keep, digest = self.store.wanted(job.client), self.store.digests.get(job.client, "")
        return {
            **self.common,
            **self.origins[job.client],
            "keep": keep,
            "digest": digest if job.version is not None else "",
        }

    def grid(self) -> Grid:
        self._looked = 0.0
        online = self._connected()
        self.nodes = {client: online[name] for client, name in enumerate(self.names) if name in online}
        self._before = dict(self._since)
        return self._grid

    def missing(self, client: int) -> str:
        """Say whether a site was absent when the jobs were sent, or has vanished since and its job with it."""
        node = self.nodes.get(client)
        if node is None:
            return "absent"
        self._connected()
        return "" if self._since.get(node) == self._before[node] else "vanished"

    def close(self) -> None:
        """Do nothing: the connection belongs to Flower."""

    def _connected(self) -> dict[str, int]:
        """Return the connected sites by name with their nodes, identified by the keys that Flower has verified."""
        if time.monotonic() - self._looked > REFRESH or not self._looked:
            self._looked = time.monotonic()
            nodes = list(self._grid.get_nodes())
            self._since = {n.node_id: n.last_activated_at for n in nodes}
            keys = {self.server.key_of(site): site for site in self.names}
            self._online = {keys[n.public_key]: n.node_id for n in nodes if n.public_key in keys}
        return self._online
