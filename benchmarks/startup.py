"""Start-up: `polyfed run` on digits up to its first round, against `import torch`."""

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from benchmarks.cells import Cell
from benchmarks.measure import TIMEOUT, Failed, Numbers, Side, ended, interleaved, last_words, listening, paired, spread
from benchmarks.measure import started as start
from benchmarks.results import Result
from benchmarks.whole import polyfed, seconds

PAUSE = 0.002  # seconds between looks
BEGINS = "begins: method"  # a run's log says so when all is ready for the first round
TORCH = Side([sys.executable, "-c", "import torch; print('here', flush=True)"])


def measure(cell: Cell, folder: Path, rivals: Sequence[str], say: Callable[[str], None]) -> Result:
    """Both take turns in fresh processes; what comes after the moment that counts is not waited for."""
    sides = {"torch": TORCH, "polyfed": polyfed("run")}
    found = interleaved(sides, cell.repeats, say, lambda side: first_word(side) if side is TORCH else first_round(side))
    if None in [*found["torch"], *found["polyfed"]]:
        raise Failed("a start could not be measured")
    return {"sides": found, "ratios": {"torch": spread(paired(found["polyfed"], found["torch"], seconds))}}


def first_word(side: Side) -> Numbers:
    """Seconds until a process says something."""
    with listening() as words:
        begun = time.perf_counter()
        with ended(process := start(side, words)):
            assert process.stdout is not None
            if not process.stdout.readline():
                raise _failure(words)
            return {"seconds": time.perf_counter() - begun}


def first_round(side: Side) -> Numbers:
    """Seconds until a run's log says that its rounds begin."""
    with tempfile.TemporaryDirectory() as folder, listening() as words:
        log, begun = Path(folder) / "run" / "log.txt", time.perf_counter()
        with ended(process := start(Side([*side.command, "--out", str(log.parent)], side.env), words)):
            while not (log.is_file() and BEGINS in log.read_text(encoding="utf-8")):
                if process.poll() is not None or time.perf_counter() - begun > TIMEOUT:
                    raise _failure(words)
                time.sleep(PAUSE)
            return {"seconds": time.perf_counter() - begun}


def _failure(words: IO[str]) -> Failed:
    words.seek(0)
    return Failed(last_words(words.read()))
