"""Flower's own programs, started with the right options: the SuperLink, a SuperNode, and calls to the SuperLink."""

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
from pathlib import Path
from typing import Any

from polyfed.engine.deploy.layout import Server, Site, around, is_loopback
from polyfed.engine.flower import need_flower
from polyfed.errors import DataError, RunFailed

STARTING = 120.0  # seconds the SuperLink may take to listen
AGAIN = 10.0  # seconds between tries of a site whose last connection Flower still thinks alive
REFUSED = 150.0  # seconds after which a refusal is final: Flower forgets a dead node after 60
CALL = 120.0  # seconds a call to the SuperLink may take


def serve(server: Server) -> int:
    """The SuperLink in the foreground; the sites' keys are registered as soon as it listens."""
    need_flower()
    bind = "127.0.0.1" if is_loopback(server.host) else "0.0.0.0"
    command = ["--host", bind, "--port", str(server.port), "--database", str(server.path / "superlink.db")]
    command += ["--disable-runtime-dependency-installation"]
    if server.insecure:
        command += ["--insecure"]
    else:
        files = [f"--ssl-{what}file={server.path / name}" for what, name in _FILES]
        command += [*files, "--enable-supernode-auth"]
    write_connection(server)
    with Child([_program("flower-superlink"), *command], server.path) as link:
        _wait_for_port(server, link)
        if not server.insecure:
            register(server)
        sys.stderr.write(f"polyfed: the SuperLink listens on {server.address}; {len(server.sites)} sites may join\n")
        return link.wait()


_FILES = (("cert", "server.crt"), ("key", "server.key"), ("ca-cert", "ca.crt"))


def join(site: Site) -> int:
    """The SuperNode in the foreground; a site that died is let in again once Flower has forgotten it."""
    need_flower()
    command = ["--superlink", site.server, "--port", str(site.port), "--node-config", f'home="{site.path}"']
    if site.insecure:
        command += ["--insecure"]
    else:
        command += [f"--root-certificates={site.path / 'ca.crt'}", f"--auth-supernode-private-key={site.path / 'key'}"]
    with Presence(site) as presence:
        while True:
            started = time.monotonic()
            with Child([_program("flower-supernode"), *command], site.path) as node:
                code = node.wait()
            refused = code > 0 and not node.asked_to_stop and time.monotonic() - started < 60
            if not refused:
                presence.killed = code < 0 and not node.asked_to_stop
                return abs(code)
            if not presence.may_be_remembered:
                who = f"site '{site.name}': its key is not registered there, or another node uses it"
                raise DataError(f"the SuperLink at {site.server} refuses {who}")
            time.sleep(AGAIN)


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


class Child:
    """A program in the foreground: who asks us to stop asks it, and it never outlives us."""

    def __init__(self, command: list[str], home: Path):
        self.command, self.home, self.asked_to_stop = command, home, False

    def __enter__(self) -> "Child":
        self.process = subprocess.Popen(
            self.command, env=around(self.home), stdin=subprocess.DEVNULL, preexec_fn=_end_with_parent
        )
        self.before = {n: signal.signal(n, self._pass_on) for n in (signal.SIGINT, signal.SIGTERM)}
        return self

    def _pass_on(self, number: int, frame: Any) -> None:
        self.asked_to_stop = True
        self.process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """Until it ends; its exit code."""
        return self.process.wait()

    def __exit__(self, *raised: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()


def _end_with_parent() -> None:
    """On Linux a child gets SIGTERM when its parent dies, however that dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def write_connection(server: Server) -> None:
    """Where Flower's command line finds the SuperLink."""
    lines = ["[superlink]", 'default = "polyfed"', "", "[superlink.polyfed]", f'address = "{server.address}"']
    lines += ["insecure = true" if server.insecure else f'root-certificates = "{server.path / "ca.crt"}"']
    (server.path / "flower").mkdir(exist_ok=True)
    (server.path / "flower" / "config.toml").write_text("\n".join(lines) + "\n")


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
    """Flower's command line, asked for JSON."""
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
    return subprocess.Popen(command, env=around(server.path), stdout=pipe, stderr=subprocess.STDOUT, text=True)


def _said(process: "subprocess.Popen[str]") -> str:
    try:
        return process.communicate(timeout=CALL)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        return f"no answer within {CALL:g} s"


def listens(server: Server) -> bool:
    """Whether anything listens where the SuperLink should."""
    host = "127.0.0.1" if is_loopback(server.host) else server.host
    try:
        with socket.create_connection((host, server.port), 2):
            return True
    except OSError:
        return False


def _wait_for_port(server: Server, link: Child) -> None:
    end = time.monotonic() + STARTING
    while not listens(server):
        if link.process.poll() is not None:
            raise RunFailed(f"the SuperLink ended at once (exit code {link.process.returncode})")
        if time.monotonic() > end:
            raise RunFailed(f"the SuperLink does not listen on {server.address} after {STARTING:g} s")
        time.sleep(0.2)


def _program(name: str) -> str:
    """Flower's program of this very environment."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        raise DataError(f"the program '{name}' is missing: pip install 'polyfed[flower]'")
    return found
