"""Federations on loopback, for several test files."""

import os
import socket
from pathlib import Path
from typing import Any


def free_ports(count: int) -> int:
    """The first of so many neighbouring free ports."""
    for first in range(21000 + os.getpid() % 900 * 10, 32000, 10):
        with_all = []
        try:
            for port in range(first, first + count):
                with_all.append(socket.create_server(("127.0.0.1", port)))
            return first
        except OSError:
            continue
        finally:
            for each in with_all:
                each.close()
    raise RuntimeError("no free ports")


def make_federation(path: Path, cli: Any, sites: str, *words: str) -> Path:
    """A federation on disk, with mutual TLS and ports of its own."""
    count = 2 + len(sites.split(","))
    said = cli("deploy", "init", str(path), "--sites", sites, "--port", str(free_ports(count)), "--mutual-tls", *words)
    assert said.code == 0, said.err
    return path
