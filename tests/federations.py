"""Federations on loopback, for several test files."""

import os
import socket
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from polyfed.config import read_yaml, write_yaml


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


def make_samples(folder: Path, k: int) -> None:
    """Some digits, of some classes only."""
    digits = load_digits()
    rows = np.random.default_rng(k).permutation(len(digits.target))[:80]
    rows = rows[digits.target[rows] % 3 != k]
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "digits.npz", x=(digits.data[rows] / 16).astype("float32"), y=digits.target[rows])


def change(file: Path, **keys: Any) -> None:
    """Other values in a file of settings."""
    file.write_text(write_yaml(read_yaml(file.read_text(), str(file)) | keys))
