"""The server app of a federation: it greets the sites, then the one round loop runs over them."""

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

GREETING = 300.0  # seconds every site has to come and say hello
LOOK = 5.0  # seconds between looks at who is connected
PAUSE = 0.5  # seconds between looks for replies
HELLO = "hello.json"  # what the sites said, for a restart in which one is absent
ASKED = "deploy.json"  # what was asked for beside the config

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """One run, new or resumed; its end, good or bad, is told in `last.json`."""
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
    """How it stands, for whoever waits on this machine."""
    said = {"run": run.name, "state": state, "why": why, "code": code, "pid": os.getpid()}
    write_file(server.path / "last.json", json.dumps(said).encode())


class SitesRun(Run):
    """The round loop where data and memories are elsewhere."""

    crew: "Sites"

    def make_world(self) -> World:
        self.crew.greet(self.config, self.say)
        return self.crew.world(self.config)

    def make_store(self) -> MemoryStore:
        return Elsewhere(self.folder.path / "memory")


class Elsewhere(MemoryStore):
    """Memories that stay with their owners: only which version counts, and its digest, are known here."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.kept: list[Mapping[int, int]] = []  # tables of the checkpoints one may go back to

    def get(self, client: int, version: int | None) -> bytes | None:
        """Nothing of it is here."""
        return None

    def persist(self) -> None:
        """Owners write their memories themselves."""

    def prune(self, *tables: Mapping[int, int]) -> None:
        """Owners are told with the next job what may be wanted again."""
        self.kept = [dict(table) for table in tables]

    def restore(self, table: Mapping[int, int], digests: Mapping[int, str]) -> None:
        """Go back to these versions; each owner checks the digest of its own."""
        self.table, self.digests = dict(table), dict(digests)
        self.kept = [dict(table)]

    def wanted(self, client: int) -> list[int]:
        """The versions of a client's memory that may be named again."""
        return sorted({table[client] for table in (*self.kept, self.table) if client in table})


class Fetched(Posted):
    """Each reply is fetched on a thread of its own: Flower may wait for hours for the rest of one that broke off."""

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
    """The crew of a federation: who is connected, who is whose, who is late."""

    pause = PAUSE
    broken = "vanished"
    mail = Fetched

    def __init__(self, grid: Grid, server: Server, run: Path, disclose: str):
        super().__init__()
        self._grid, self.server, self.path = grid, server, run
        self.names = server.sites
        self.common: dict[str, Any] = {"sites": list(self.names), "run": run.name, "disclose": disclose}
        self.said: dict[str, dict[str, Any]] = {}
        self._online: dict[str, int] = {}
        self._since: dict[int, str] = {}  # node -> when it connected
        self._before: dict[int, str] = {}  # the same when the jobs went out
        self._looked = 0.0

    # ---- before the first round

    def greet(self, config: Config, say: Any) -> None:
        """Every site's hello; after a restart what an absent one said before holds."""
        self.common["config"] = write_yaml(config.dump())
        known = self.path / HELLO
        before = json.loads(known.read_text()) if known.exists() else {}
        fresh = self._ask(config, set(before), say)
        self.said = {name: self._first_word(name, before.get(name), fresh.get(name), say) for name in self.names}
        faults = {name: statements.fault_of_statement(statements.Hello, self._named(name)) for name in self.names}
        honest = [name for name, fault in faults.items() if not fault]
        if not honest:
            raise RunFailed(f"no site's hello can be true; that of '{self.names[0]}': {faults[self.names[0]]}")
        self.schema = schema.agreed({name: schema.Schema.heard(self.said[name]) for name in honest})
        self.common |= schema.statistics(self.schema)
        if any(not self.said[name]["counts"] for name in honest):
            say("class counts are not told (disclose: n): there are no head, mid and tail numbers")
        write_file(known, json.dumps(self.said).encode())

    @staticmethod
    def _first_word(name: str, before: dict[str, Any] | None, now: dict[str, Any] | None, say: Any) -> dict[str, Any]:
        """What a site said of its data in its first hello holds for the whole run."""
        if before is None or now is None:
            return now or before or {}
        held = {key: before[key] for key in schema.FIXED if key in before}
        differing = [key for key, value in held.items() if now.get(key) != value]
        if differing:
            say(f"site '{name}' tells otherwise of its {differing[0]} than at first; what it told at first holds")
        return {**now, **held}

    def _named(self, name: str) -> dict[str, Any]:
        """A site's hello under the name its key belongs to."""
        return {**self.said[name], "name": name}

    def _ask(self, config: Config, known: set[str], say: Any) -> dict[str, dict[str, Any]]:
        patience = config.engine.deadline or GREETING
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
                name, told = self._introduced(node, reply)
                if told is not None:
                    said[name] = told
                asked.discard(name) if told is None else None
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

    def _introduced(self, node: int, reply: Any) -> tuple[str, dict[str, Any] | None]:
        """What a node said of itself: it must be the site its key belongs to, and its data must be in order."""
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
        """What the server builds: the model, the names, no data."""
        world = World(config, schema.server_federation(config, self.schema, self.names))
        self.common |= {"params": world.resident.initial.digest(), "layout": world.resident.layout.digest()}
        return world

    def hello(self) -> Iterator[Outcome]:
        """What the sites said, for the round loop."""
        for client, name in enumerate(self.names):
            said = self._named(name)
            counts = {}
            if not statements.fault_of_statement(statements.Hello, said):
                counts = {which: np.array(said[key], np.int64) for which, key in schema.COUNTS.items() if said.get(key)}
            yield Outcome(client, Message(), numbers=said, counts=counts)

    # ---- rounds

    def begin(self, config: Config, world: World, store: MemoryStore) -> None:
        """Work for this run from now on."""
        assert isinstance(store, Elsewhere)
        self.store = store

    def order(self, job: Job) -> Mapping[str, Any]:
        keep, digest = self.store.wanted(job.client), self.store.digests.get(job.client, "")
        return {**self.common, "keep": keep, "digest": digest if job.version is not None else ""}

    def grid(self) -> Grid:
        self._looked = 0.0
        online = self._connected()
        self.nodes = {client: online[name] for client, name in enumerate(self.names) if name in online}
        self._before = dict(self._since)
        return self._grid

    def missing(self, client: int) -> str:
        """A site that was not there when the jobs went out, or has left since: its job is lost with its process."""
        node = self.nodes.get(client)
        if node is None:
            return "absent"
        self._connected()
        return "" if self._since.get(node) == self._before[node] else "vanished"

    def close(self) -> None:
        """Nothing here is ours to end."""

    def _connected(self) -> dict[str, int]:
        """Sites by name with their nodes, by the keys Flower has verified."""
        if time.monotonic() - self._looked > LOOK or not self._looked:
            self._looked = time.monotonic()
            nodes = list(self._grid.get_nodes())
            self._since = {n.node_id: n.last_activated_at for n in nodes}
            keys = {self.server.key_of(site): site for site in self.names}
            self._online = {keys[n.public_key]: n.node_id for n in nodes if n.public_key in keys}
        return self._online
