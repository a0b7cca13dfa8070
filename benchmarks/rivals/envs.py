"""The rivals' environments: made once under build/bench/envs, with the same torch as ours."""

import re
import subprocess
import sys
from pathlib import Path

from benchmarks.measure import ROOT, Failed

ENVS = ROOT / "build" / "bench" / "envs"
CONSTRAINTS = ROOT / "constraints.txt"
# pfl's privacy accountants want older versions of what our constraints pin, so only what computes is held the same
WANTED = {
    "pfl": (["pfl[pytorch]==0.6.*"], ["torch", "numpy"]),
    "flower": (["flwr[simulation]==1.41.*"], ["torch", "numpy", "flwr", "ray"]),
}


def pin(package: str) -> str:
    """What our constraints say of a package."""
    found = re.search(rf"^{package}==\S+", CONSTRAINTS.read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise Failed(f"constraints.txt does not pin {package}")
    return found.group()


_hopeless: dict[str, str] = {}  # why a rival could not be installed in this sitting: it is not tried for every cell


def environment(rival: str) -> Path:
    """The folder of a rival's programs; installed from the registry if it is not there yet."""
    if rival in _hopeless:
        raise Failed(_hopeless[rival])
    try:
        return _installed(rival)
    except Failed as failure:
        _hopeless[rival] = str(failure)
        raise


def _installed(rival: str) -> Path:
    packages, same = WANTED[rival]
    wanted = " ".join([*packages, *map(pin, same)])
    folder, stamp = ENVS / rival, ENVS / rival / "ready"
    python = folder / "bin" / "python"
    if not python.exists() or not stamp.is_file() or stamp.read_text(encoding="utf-8") != wanted:
        _run([sys.executable, "-m", "venv", "--clear", str(folder)])  # what a stopped sitting left behind goes
        _run([str(python), "-m", "pip", "install", "--quiet", "--retries", "1", *wanted.split()])
        stamp.write_text(wanted, encoding="utf-8")
    return folder / "bin"


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
    except OSError as error:
        raise Failed(f"cannot be installed: {error}") from None
    if done.returncode:
        raise Failed(f"cannot be installed: {(done.stderr.strip().splitlines() or ['no word'])[-1][:300]}")
