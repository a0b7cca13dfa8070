"""One measurement: a command in a fresh process that prints one JSON line, watched for its memory."""

import compileall
import contextlib
import json
import os
import re
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT = 1200  # seconds after which a measurement has failed
LOOK = 0.5  # seconds between looks at the memory
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
# as polyfed sets it for itself (engine/heap.py), written again: rivals import this and have no polyfed
HEAP = {"MALLOC_MMAP_THRESHOLD_": str(1 << 25), "MALLOC_TRIM_THRESHOLD_": str(1 << 29)}
IMPORTED = "polyfed.api, polyfed.report.page, scipy.stats, scipy.cluster.hierarchy"  # by commands, sooner or later
Numbers = dict[str, Any]


class Failed(Exception):
    """A side could not be measured; its last words."""


@dataclass(frozen=True)
class Side:
    """Something that can be measured: a command, and what it needs around it."""

    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def python(module: str, *arguments: str, interpreter: str = sys.executable, **env: str) -> "Side":
        """A module of this package, with the allocator as polyfed sets it for its own processes."""
        return Side([interpreter, "-m", f"benchmarks.{module}", *arguments], {**HEAP, **env})


def around(side: Side) -> dict[str, str]:
    """The environment a side runs in."""
    sources = os.pathsep.join([str(ROOT), str(ROOT / "src")])  # what is measured is what lies here
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**outside, **QUIET, "PYTHONPATH": sources, **side.env}


def compile_all() -> None:
    """Write the bytecode of what is measured and of what it imports, as an installation has it.

    Where that was forbidden, every process would compile a thousand files of torch, scipy and pandas anew, which takes
    more than a second and makes whole runs look more alike than they are.
    """
    compileall.compile_dir(ROOT / "src", quiet=2)
    subprocess.run([sys.executable, "-c", f"import {IMPORTED}"], env=around(Side([])), cwd=ROOT, capture_output=True)


def started(side: Side, words: IO[str], stdin: int | None = None) -> "subprocess.Popen[str]":
    """A side's process, the head of a group of its own."""
    try:
        return subprocess.Popen(
            side.command,
            env=around(side),
            cwd=ROOT,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=words,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise Failed(f"{side.command[0]} cannot be started: {error.strerror or error}") from None


@contextlib.contextmanager
def listening() -> Iterator[IO[str]]:
    """A file for what a side says on stderr."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as words:
        yield words


def finished(side: Side) -> tuple[str, Numbers]:
    """Run a side to its end: what it printed, its seconds by the clock and by the processors, and its peak memory."""
    with listening() as words:
        begun, computed = time.perf_counter(), children_time()
        process = started(side, words)
        with ended(process), memory_of(process.pid) as peak:
            try:
                said, _ = process.communicate(timeout=TIMEOUT)
            except subprocess.TimeoutExpired:
                raise Failed(f"no answer after {TIMEOUT} seconds") from None
            seconds, computed = time.perf_counter() - begun, children_time() - computed
        words.seek(0)
        complaint = last_words(words.read())
    if process.returncode:
        raise Failed(complaint)
    return said, {"seconds": seconds, "processor": computed, "memory": peak()}


def children_time() -> float:
    """Seconds that all processes we waited for have computed, and those they waited for."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def once(side: Side) -> Numbers:
    """Run a side to its end; what it printed last, and the peak memory of all its processes in bytes."""
    said, took = finished(side)
    lines = said.strip().splitlines() or ["nothing"]
    try:
        return {**json.loads(lines[-1]), "memory": took["memory"]}
    except (ValueError, TypeError):
        raise Failed(f"no numbers but: {lines[-1][:300]}") from None


def last_words(text: str) -> str:
    """The last line that names an error, or the last one at all."""
    lines = [line.strip() for line in text.splitlines() if line.strip(" =-")]
    errors = [line for line in lines if re.match(r"[\w.\[\]: ]*(Error|Exit|Exception)\b", line)]
    return (errors or lines or ["no word"])[-1][:300]


@contextlib.contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[None]:
    """Whatever happens, nothing of the process and its family stays."""
    try:
        yield
    finally:
        tell(process.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # those whose parent is gone
        process.wait()


def tell(process: int, number: int) -> None:
    """Send a signal to a process and all under it; some of them have groups of their own."""
    for one in family(process):
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, number)


@contextlib.contextmanager
def memory_of(process: int) -> Iterator[Callable[[], int | None]]:
    """Looks at a process and all under it while inside; gives the peak in bytes, or None where there is no /proc."""
    peak, over = 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not over.wait(LOOK):
            peak = max(peak, memory(process))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield lambda: peak or None
    finally:
        over.set()
        watcher.join()


def memory(process: int) -> int:
    """Bytes of a process and all under it, now."""
    return sum(map(proportional, family(process)))


def family(process: int) -> list[int]:
    """A process and everything it started, by /proc."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    found = [process]
    for one in found:
        found.extend(children.get(one, []))
    return found


def proportional(process: int) -> int:
    """Bytes of a process, where what several share is divided among them."""
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:  # it just ended, or this is not Linux
        return 0
    return next((1024 * int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")), 0)


def processor_time(processes: Sequence[int]) -> float:
    """Seconds that these processes have computed, by /proc: what a busy machine does not stretch."""
    spent = 0
    for process in processes:
        with contextlib.suppress(OSError):
            spent += sum(map(int, Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]))
    return spent / os.sysconf("SC_CLK_TCK")


def interleaved(
    sides: Mapping[str, Side],
    repeats: int,
    say: Callable[[str], None],
    measured: Callable[[Side], Numbers] = lambda side: once(side),
) -> dict[str, list[Numbers | None]]:
    """Every side so often in fresh processes, to and fro: neighbours stay so. Who fails is not tried again."""
    found: dict[str, list[Numbers | None]] = {name: [] for name in sides}
    names = list(sides)
    for i in range(repeats):
        for name in reversed(names) if i % 2 else names:
            if found[name] and found[name][-1] is None:
                continue
            try:
                found[name].append(measured(sides[name]))
                say(f"{name}: {brief(found[name][-1])}")
            except Failed as failure:
                found[name].append(None)
                say(f"{name} failed: {failure}")
    return found


def brief(numbers: Numbers | None) -> str:
    """A measurement in a line."""
    return ", ".join(f"{k} {v:.4g}" for k, v in (numbers or {}).items() if isinstance(v, int | float))


def paired(
    over: Sequence[Numbers | None], under: Sequence[Numbers | None], value: Callable[[Numbers], float]
) -> list[float]:
    """The ratio of two sides, measurement by measurement."""
    return [value(a) / value(b) for a, b in zip(over, under, strict=False) if a is not None and b is not None]


def spread(ratios: Sequence[float]) -> Numbers | None:
    """Median, least and most of some ratios."""
    if not ratios:
        return None
    return {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios), "count": len(ratios)}


def answer(work: Callable[[Any], Any]) -> None:
    """Do the work that stands on the command line as JSON, and print what came of it as one JSON line."""
    print(json.dumps(work(json.loads(sys.argv[1]))))
