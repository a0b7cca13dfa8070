"""Results on disk: one JSON file per finished cell, so that a run that was stopped goes on where it was."""

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.cells import Cell
from benchmarks.measure import ROOT

Result = dict[str, Any]


class Store:
    """The results of one kind of run; a result counts only for the cell, the rivals and the code it was made with."""

    def __init__(self, folder: Path, rivals: Sequence[str], code: str):
        self.folder, self.rivals, self.code = folder, list(rivals), code

    def path(self, cell: Cell) -> Path:
        """Where a cell's result lies."""
        return self.folder / f"{''.join(c if c.isalnum() or c in '-.' else '_' for c in cell.name)}.json"

    def key(self, cell: Cell) -> str:
        """What the result of a cell depends on."""
        return digest(json.dumps([asdict(cell), self.rivals, self.code]).encode())

    def get(self, cell: Cell) -> Result | None:
        """A finished result, or None."""
        try:
            found = json.loads(self.path(cell).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) and found.get("key") == self.key(cell) else None

    def put(self, cell: Cell, result: Result) -> Result:
        """Keep a result; written aside and renamed, so that it is whole or not there."""
        self.folder.mkdir(parents=True, exist_ok=True)
        made = {"cell": asdict(cell), "key": self.key(cell), **result}
        aside = self.path(cell).with_suffix(".tmp")
        aside.write_text(json.dumps(made, indent=1), encoding="utf-8")
        os.replace(aside, self.path(cell))
        return made

    def drop(self, cell: Cell) -> None:
        """Forget a result."""
        self.path(cell).unlink(missing_ok=True)


def digest(content: bytes) -> str:
    """A short fingerprint."""
    return hashlib.sha256(content).hexdigest()[:16]


def code() -> str:
    """A fingerprint of everything that is measured or measures."""
    files = [*sorted((ROOT / "src").rglob("*.py")), *sorted((ROOT / "benchmarks").rglob("*.py"))]
    return digest(b"".join(file.read_bytes() for file in [*files, ROOT / "constraints.txt"]))


def environment() -> dict[str, Any]:
    """Where the numbers come from."""
    cpu = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), cpu)
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
        "commit": _commit(),
    }


def _commit() -> str:
    """The commit that lies here; nothing where there is no git."""
    try:
        found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return ""
    return found.stdout.strip()
