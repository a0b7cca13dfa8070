"""Runs in processes of their own, for tests that kill them: a real kill -9, looked at through /proc."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from polyfed import cli

PATIENCE = 60.0


def wait_for(what: Callable[[], object], seconds: float = PATIENCE, step: float = 0.002) -> bool:
    """Look again and again; whether it came true in time."""
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            return False
        time.sleep(step)
    return True


def _stat(pid: int) -> list[str]:
    """State, parent and so on of a process; nothing if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _running(pid: int, born: str) -> bool:
    """Whether this very process, not another under its number, still runs."""
    found = _stat(pid)
    return bool(found) and found[0] not in "ZX" and found[19] == born


@dataclass(frozen=True)
class Watched:
    """Processes as they were at one moment, and what they held in shared memory."""

    born: dict[int, str]
    shared: frozenset[str]

    def alive(self) -> list[int]:
        """Those that still run."""
        return [pid for pid, born in self.born.items() if _running(pid, born)]

    def left_in_shared_memory(self) -> list[str]:
        """Names these processes used that are still there, and names made after one of them."""
        names = os.listdir("/dev/shm")
        return [n for n in names if n in self.shared or any(str(pid) in n.split("_") for pid in self.born)]


def children(pid: int) -> list[int]:
    """The direct children of a process."""
    everybody = [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit()]
    return [p for p in everybody if (found := _stat(p)) and int(found[1]) == pid and found[0] not in "ZX"]


def descendants(pid: int) -> list[int]:
    """The children of a process, and theirs."""
    return [below for child in children(pid) for below in (child, *descendants(child))]


def watch(pid: int) -> Watched:
    """A process and its workers, or its cells and theirs."""
    pids = [pid, *descendants(pid)]
    born = {p: found[19] for p in pids if (found := _stat(p))}
    return Watched(born, frozenset(name for p in pids for name in _shared_names(p)))


def _shared_names(pid: int) -> list[str]:
    try:
        maps = Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return []
    return [line.split("/dev/shm/")[1].split()[0] for line in maps.splitlines() if "/dev/shm/" in line]


class Process:
    """A `polyfed` command in a process of its own."""

    def __init__(self, out: Path, pid: int, reap: Callable[[], int]):
        self.out, self.pid, self._reap = out, pid, reap

    def kill(self, number: int = signal.SIGKILL) -> Watched:
        """Send a signal; what was running just before."""
        seen = watch(self.pid)
        os.kill(self.pid, number)
        return seen

    def end(self) -> int:
        """Wait for it: its exit code, negative for a signal."""
        return self._reap()

    def reaches(self, round: int) -> bool:
        """Wait until a round is in the records."""
        return wait_for(lambda: last_round(self.out) >= round)


def last_round(out: Path) -> int:
    """The last round in rounds.csv; 0 if there is none."""
    path = out / "rounds.csv"
    lines = path.read_text().splitlines()[1:] if path.exists() else []
    return int(lines[-1].split(",")[0]) if lines else 0


def command(out: Path, words: Sequence[str]) -> Process:
    """`polyfed ...` as a user starts it."""
    log = (out.parent / f"{out.name}.out").open("ab")
    process = subprocess.Popen([sys.executable, "-m", "polyfed.cli", *words, "--quiet"], stdout=log, stderr=log)
    log.close()
    return Process(out, process.pid, process.wait)


def forked(out: Path, words: Sequence[str]) -> Process:
    """The same command line in a fork of this process: it starts at once."""
    pid = os.fork()
    if pid == 0:
        _become_quiet(out.parent / f"{out.name}.out")
        code = 99
        try:
            code = cli.call([*words, "--quiet"])
        finally:
            os._exit(code)
    return Process(out, pid, lambda: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def _become_quiet(path: Path) -> None:
    sys.stdout = sys.stderr = path.open("a", buffering=1)
    for standard in (1, 2):
        os.dup2(sys.stdout.fileno(), standard)
