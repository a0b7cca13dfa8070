"""The programs of a server and of a site, and calls of Flower's command line to the SuperLink."""

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from base64 import b64encode
from pathlib import Path
from typing import Any

from polyfed.config import write_yaml
from polyfed.engine.flower.deploy.layout import (
    ANYWHERE,
    LOOPBACK,
    SECRET,
    TOKEN,
    Server,
    Site,
    at_port,
    bind_address,
    flower_environment,
    is_loopback,
)
from polyfed.engine.flower.deploy.private import read_private, write_private
from polyfed.errors import DataError, RunFailed

STARTING = 120.0  # seconds the SuperLink may take to listen
AGAIN = 10.0  # seconds between tries of a site whose last connection Flower still thinks alive
REFUSED = 150.0  # seconds after which a refusal is final: Flower forgets a dead node after 60
CALL = 120.0  # seconds a call to the SuperLink may take


def serve(server: Server) -> int:
    """The server in the foreground: the SuperLink, its SuperExec, and the guard once the sites are registered."""
    for host, port, what in ((bind_address(server), server.port, "guard"), (LOOPBACK, server.link, "SuperLink")):
        if listens_at(host, port):
            raise DataError(f"port {port}, where the {what} should listen, is in use: does the federation already run?")
    write_connection(server)
    with Children(server.path) as children:
        children.start("SuperLink", _wrapped("superlink", server.path))
        children.wait_for_port("SuperLink", LOOPBACK, server.link)
        children.start("SuperExec", _superexec(server.path, LOOPBACK, server.link))
        register(server)
        children.start("guard", _wrapped("guard", server.path))
        children.wait_for_port("guard", bind_address(server), server.port)
        sys.stderr.write(f"polyfed: the guard listens on {server.address}; {len(server.sites)} sites may join\n")
        return abs(children.wait())


def join(site: Site) -> int:
    """The site in the foreground: a SuperNode, let in again after a crash once Flower forgot it, and a SuperExec."""
    with Presence(site) as presence:
        while True:
            started = time.monotonic()
            with Children(site.path) as children:
                children.start("SuperNode", _wrapped("supernode", site.path))
                children.start("SuperExec", _superexec(site.path, "localhost", site.port))
                code = children.wait()
            refused = code > 0 and not children.asked_to_stop and time.monotonic() - started < 60
            if not refused:
                presence.killed = code < 0 and not children.asked_to_stop
                return abs(code)
            if not presence.may_be_remembered:
                who = f"site '{site.name}': its key is not registered there, or another node uses it"
                raise DataError(f"the server at {site.server} refuses {who}")
            time.sleep(AGAIN)


def _wrapped(part: str, home: Path) -> list[str]:
    """The command that starts a part of Flower through our wrapper, which first closes what must stay closed."""
    return [sys.executable, "-m", "polyfed.cli", "deploy", part, str(home)]


def _superexec(home: Path, host: str, port: int) -> list[str]:
    """The command of the SuperExec, which fetches tasks and runs them, and so must authenticate whom it asks."""
    known = ["--runtime-api-address", at_port(host, port), "--root-certificates", str(home / "ca.crt")]
    return [_program("flower-superexec"), "--superexec-auth-secret-file", str(home / SECRET), *known]


class Presence:
    """A mark that a site's node runs here; one that was left behind tells that the last node died."""

    def __init__(self, site: Site):
        self.mark, self.name = site.path / "running.json", site.name
        self.died = 0.0
        self.killed = False  # the node died, and Flower does not know yet

    def __enter__(self) -> "Presence":
        with contextlib.suppress(OSError, ValueError, KeyError):  # no mark, or half of one
            left = json.loads(self.mark.read_text())
            if alive(left["pid"]):
                raise DataError(f"site '{self.name}' already runs here (process {left['pid']})")
            self.died = time.time()
        self.mark.write_text(json.dumps({"pid": os.getpid()}))
        return self

    @property
    def may_be_remembered(self) -> bool:
        """Whether Flower may still take the dead node for alive, and so refuse this one."""
        return time.time() - self.died < REFUSED

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        if not self.killed:
            self.mark.unlink(missing_ok=True)


def alive(pid: int) -> bool:
    """Whether a process of this machine still runs."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except ProcessLookupError:
        return False
    except OSError:  # another's process, or a system without /proc
        return True


class Children:
    """Programs in the foreground: a request to stop reaches all, one that ends ends the others, none outlives us."""

    def __init__(self, home: Path):
        self.home, self.asked_to_stop = home, False
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Children":
        self.before = {n: signal.signal(n, self._pass_on) for n in (signal.SIGINT, signal.SIGTERM)}
        return self

    def start(self, name: str, command: list[str]) -> None:
        """Start one more program."""
        self.processes[name] = subprocess.Popen(
            command, env=flower_environment(self.home), stdin=subprocess.DEVNULL, preexec_fn=_end_with_parent
        )

    def _pass_on(self, number: int, frame: Any) -> None:
        self.asked_to_stop = True
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """Wait until one of them ends; return its exit code."""
        while True:
            for name, process in self.processes.items():
                code = process.poll()
                if code is not None:
                    if not self.asked_to_stop:
                        sys.stderr.write(f"polyfed: the {name} ended (exit code {code})\n")
                    return code
            time.sleep(0.2)

    def wait_for_port(self, name: str, host: str, port: int) -> None:
        """Wait until a program listens."""
        end = time.monotonic() + STARTING
        while not listens_at(host, port):
            if self.processes[name].poll() is not None:
                raise RunFailed(f"the {name} ended at once (exit code {self.processes[name].returncode})")
            if time.monotonic() > end:
                raise RunFailed(f"the {name} does not listen on {at_port(host, port)} after {STARTING:g} s")
            time.sleep(0.2)

    def __exit__(self, *raised: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
        for process in self.processes.values():
            if process.poll() is None:
                process.terminate()
        for process in self.processes.values():
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()


def _end_with_parent() -> None:
    """On Linux a child gets SIGTERM when its parent dies, however that dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def write_connection(server: Server) -> None:
    """Where Flower's command line finds the SuperLink, and the token that opens it."""
    address, home = at_port(LOOPBACK, server.link), server.path / "flower"
    home.mkdir(exist_ok=True)
    lines = ["[superlink]", 'default = "polyfed"', "", "[superlink.polyfed]", f'address = "{address}"']
    lines += [f'root-certificates = "{server.path / "ca.crt"}"']
    (home / "config.toml").write_text("\n".join(lines) + "\n")
    told = {
        "authn-type": b"oidc",
        "oidc-access-token": read_private(server.path / TOKEN),
        "oidc-refresh-token": b"none",
    }
    stored = {f"flower.account-auth.{address}.{key}": b64encode(value).decode() for key, value in told.items()}
    aside = home / f"credentials.{os.getpid()}.tmp"
    aside.unlink(missing_ok=True)
    write_private(aside, write_yaml(stored).encode())
    aside.replace(home / "credentials.yaml")


def register(server: Server) -> None:
    """The SuperLink lets in the sites' keys, and no others; who was let in before stays."""
    calls = {
        name: _start(server, "supernode", "register", str(server.path / "keys" / f"{name}.pub"), "polyfed")
        for name in server.sites
    }
    for name, process in calls.items():
        said = _said(process)
        if process.returncode and "already" not in said:
            raise RunFailed(f"the SuperLink did not take the key of site '{name}': {' '.join(said.split())[-300:]}")


def call(server: Server, *words: str) -> dict[str, Any]:
    """Call Flower's command line and read its JSON output."""
    process = _start(server, *words, "--format", "json")
    said = _said(process)
    for line in (said[said.find("{") :], *reversed(said.splitlines())):
        try:
            return json.loads(line)
        except ValueError:
            continue
    raise RunFailed(f"flwr {words[0]} failed: {' '.join(said.split())[-300:]}")


def _start(server: Server, *words: str) -> "subprocess.Popen[str]":
    write_connection(server)
    command = [_program("flwr"), *words]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, env=flower_environment(server.path), stdout=pipe, stderr=subprocess.STDOUT, text=True
    )


def _said(process: "subprocess.Popen[str]") -> str:
    try:
        return process.communicate(timeout=CALL)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        return f"no answer within {CALL:g} s"


def listens(server: Server) -> bool:
    """Whether anything listens where the guard should."""
    return listens_at(bind_address(server) if is_loopback(server.host) else server.host, server.port)


def listens_at(host: str, port: int) -> bool:
    """Whether anything listens there."""
    try:
        with socket.create_connection((LOOPBACK if host == ANYWHERE else host, port), 2):
            return True
    except OSError:
        return False


def _program(name: str) -> str:
    """Flower's program of this very environment."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        raise DataError(f"the program '{name}' is missing: pip install 'polyfed[flower]'")
    return found
