"""Runs of a federation, from the server's machine: start one, go on with one, see how it stands."""

import json
import time
from pathlib import Path
from typing import Any

from polyfed.config import Tree, make_config, merge, named_sections, read_config
from polyfed.engine.flower.deploy import processes
from polyfed.engine.flower.deploy.check import check_server
from polyfed.engine.flower.deploy.layout import Server, check_disclose
from polyfed.engine.flower.deploy.probes import prove_closed
from polyfed.engine.flower.deploy.schema import refuse_attack
from polyfed.engine.memory import write_file
from polyfed.engine.run_folder import RunFolder
from polyfed.errors import DataError, Interrupted, PolyfedError, RunFailed, UsageError

STARTING = 180.0  # seconds a server app may take to start
DEADLINE = 600.0  # seconds a round waits for a site, unless the config says otherwise
ASKED = "deploy.json"


def begin(server: Server, changes: Tree, follow: bool = True) -> Path:
    """A new run of the federation's config; its directory, when it is finished."""
    changes = dict(changes)
    asked = changes.pop("deploy", {})
    if not isinstance(asked, dict) or set(asked) - {"disclose"}:
        raise UsageError("the section deploy has one key, disclose: n or counts")
    check_disclose(asked.get("disclose", "counts"), "deploy.disclose")
    tree = merge(named_sections(read_config(server.config)), named_sections(changes))
    config = make_config({"engine": {"name": "flower", "deadline": DEADLINE}}, tree)
    if config.engine.name != "flower":
        raise UsageError("a federation runs on the flower engine; leave out engine.name")
    refuse_attack(config)
    if config.engine.secagg:
        from polyfed.engine.flower.engine import refuse_secagg

        refuse_secagg(config.method)
    _need_link(server)
    folder = RunFolder.create(config, server.runs / time.strftime("run-%Y%m%d-%H%M%S"))
    write_file(folder.path / ASKED, json.dumps({"disclose": asked.get("disclose", "counts")}).encode())
    return _submit(server, folder.path, follow)


def go_on(server: Server, follow: bool = True) -> Path:
    """The newest run from its checkpoint; a finished one just gives its directory."""
    found = sorted(path for path in server.runs.glob("run-*") if (path / "config.yaml").is_file())
    if not found:
        raise DataError(f"there is no run to go on with in '{server.runs}': polyfed deploy run")
    if RunFolder(found[-1]).result() is not None:
        return found[-1]
    _need_link(server)
    return _submit(server, found[-1], follow)


def status(server: Server) -> dict[str, Any]:
    """Who is connected, and how far the newest run is."""
    said: dict[str, Any] = {"server": server.address, "listening": processes.listens(server), "sites": {}}
    if said["listening"]:
        nodes = processes.call(server, "supernode", "list", "polyfed").get("nodes", [])
        said["online"] = sum(node["status"] == "online" for node in nodes)
    last = _last(server)
    if last:
        run = server.runs / last["run"]
        rounds = read_config(run / "config.yaml")["rounds"]
        done = sorted(path.name for path in (run / "checkpoints").glob("at-*"))
        state = "killed" if last["state"] == "running" and not processes.alive(last["pid"]) else last["state"]
        said["run"] = {"path": str(run), "state": state, "why": last["why"], "rounds": rounds}
        said["run"]["round"] = int(done[-1].split("-")[1]) if done else 0
        hello = run / "hello.json"
        if hello.exists():
            said["sites"] = {name: told.get("n") for name, told in json.loads(hello.read_text()).items()}
    said["sites"] = said["sites"] or dict.fromkeys(server.sites)
    return said


def _need_link(server: Server) -> None:
    """Refuse to go on unless the server runs and keeps strangers out."""
    if not processes.listens(server):
        raise RunFailed(f"nobody listens on {server.address}: start the server with {server.path / 'start.sh'}")
    check_server(server)
    prove_closed(server)


def _submit(server: Server, run: Path, follow: bool) -> Path:
    before = _last(server)
    if before and before["state"] == "running" and processes.alive(before["pid"]):
        raise DataError(f"the run '{before['run']}' is under way; polyfed deploy status tells how far it is")
    (server.path / "last.json").unlink(missing_ok=True)
    keys = f'home="{server.path}" run="{run.name}"'
    processes.call(server, "run", str(server.path / "app"), "polyfed", "--run-config", keys)
    if follow:
        _follow(server, run)
    return run


def _follow(server: Server, run: Path) -> None:
    """Wait until the server app has reported its end, or has died without doing so."""
    end = time.monotonic() + STARTING
    while True:
        last = _last(server)
        if last is None and time.monotonic() > end:
            raise RunFailed(f"the server app did not start within {STARTING:g} s; see the output of start.sh")
        if last is not None and last["state"] == "finished":
            return
        hint = f"go on with: polyfed deploy resume {server.path.parent}"
        if last is not None and last["state"] == "failed":
            kinds: dict[int, type[PolyfedError]] = {2: UsageError, 3: DataError, 130: Interrupted}
            raise kinds.get(last["code"], RunFailed)(f"{last['why']} ({hint})")
        if last is not None and not processes.alive(last["pid"]):
            raise RunFailed(f"the server app of run '{run.name}' ended without a word; {hint}")
        time.sleep(0.5)


def _last(server: Server) -> dict[str, Any] | None:
    try:
        return json.loads((server.path / "last.json").read_text())
    except (OSError, ValueError):
        return None
