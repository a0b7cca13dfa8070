"""`make fuzz`: hostile pieces for an hour, or MINUTES; stopped, it goes on where it was.

Everything is kept in build/fuzz: counts.json (tried, clean, failed, bad, seconds), corpus/ with one piece for every
different answer polyfed ever gave, tried first the next time, and bad/ with the smallest piece for every fault found.
A try is bad if it ends in a traceback or a fault of polyfed (code 4), takes more than ten seconds, or is the last thing
the process does.
"""

import argparse
import contextlib
import faulthandler
import hashlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECONDS = 10.0  # what takes longer hangs
BATCH = 60  # pieces of one target before the next has its turn
ROOM = 12 << 30  # bytes of address space: whoever wants more is told that there is none
STOPPED = (0, -signal.SIGINT, -signal.SIGTERM)  # it came to its end, or somebody ended it
FAULT = "a fault in polyfed"


@dataclass(frozen=True)
class Verdict:
    """What became of a piece: clean, failed (a run that could not go on and said why) or bad; and its answer."""

    kind: str
    answer: str

    @property
    def shape(self) -> str:
        """The answer without what differs from piece to piece."""
        plain = re.sub(
            r"'[^']*'|\"[^\"]*\"|/\S+|-?\d[\d.e+-]*", "_", self.answer.splitlines()[-1] if self.answer else ""
        )
        return f"{self.kind}: {plain[:160]}"


class Hang(BaseException):
    """A try took too long."""


@contextlib.contextmanager
def limit(seconds: float) -> Iterator[None]:
    """Raise `Hang` inside after some time."""

    def ring(number: int, frame: Any) -> None:
        raise Hang(f"more than {seconds:g} seconds")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def judge(ground: Any, name: str, piece: Any) -> Verdict:
    """Try a piece; one that is slow is tried again with patience, for the machine may be busy."""
    first = _tried(ground, name, piece, SECONDS)
    if not first.answer.startswith("Hang"):
        return first
    started = time.process_time()
    again = _tried(ground, name, piece, 6 * SECONDS)
    return first if time.process_time() - started > SECONDS else again


def _tried(ground: Any, name: str, piece: Any, seconds: float) -> Verdict:
    from hostile import TARGETS

    try:
        with ground.folder() as folder, limit(seconds):
            said = TARGETS[name].attempt(ground, folder, piece)
    except (Hang, Exception) as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return Verdict("bad", f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})")
    text = said.text.strip()
    if said.code == 4 and FAULT not in text:
        return Verdict("failed", text)
    good = said.code in (0, 2, 3) and "Traceback" not in text
    return Verdict("clean" if good else "bad", text if good else f"code {said.code}: {text}")


class Store:
    """What fuzzing found so far, on disk."""

    def __init__(self, home: Path):
        self.home = home
        for name in ("corpus", "bad"):
            (home / name).mkdir(parents=True, exist_ok=True)
        self.counts: dict[str, Any] = {"seconds": 0.0, "seed": 0, "targets": {}}
        with contextlib.suppress(OSError, ValueError):
            self.counts = json.loads((home / "counts.json").read_text())
        self._seen = {path.stem for name in ("corpus", "bad") for path in (home / name).glob("*.json")}

    def save(self) -> None:
        """Write the counts aside and rename."""
        aside = self.home / ".counts.json"
        aside.write_text(json.dumps(self.counts, indent=1))
        aside.replace(self.home / "counts.json")

    def count(self, name: str, verdict: Verdict, piece: Any) -> None:
        """One more try; a new answer's piece is kept, and so is a smaller one for a fault."""
        counts = self.counts["targets"].setdefault(name, {"tried": 0, "clean": 0, "failed": 0, "bad": 0})
        counts["tried"] += 1
        counts[verdict.kind] += 1
        stem = f"{name}-{hashlib.sha256(verdict.shape.encode()).hexdigest()[:12]}"
        path = self.home / ("bad" if verdict.kind == "bad" else "corpus") / f"{stem}.json"
        text = json.dumps({"target": name, "answer": verdict.answer[-2000:], "piece": piece}, indent=1)
        new = stem not in self._seen
        if new or (verdict.kind == "bad" and path.exists() and len(text) < path.stat().st_size):
            path.write_text(text)
            self._seen.add(stem)
        if new and verdict.kind == "bad":
            print(f"bad: {verdict.answer[-300:]}\n  again with: python tests/fuzz.py --again {path}", flush=True)

    def kept(self) -> list[tuple[str, Any]]:
        """The pieces of before, by target."""
        found = [json.loads(path.read_text()) for path in sorted(self.home.glob("*/*.json"))]
        return [(one["target"], one["piece"]) for one in found]

    def total(self) -> dict[str, int]:
        """Tried, clean, failed and bad over all targets."""
        each = self.counts["targets"].values()
        return {key: sum(counts[key] for counts in each) for key in ("tried", "clean", "failed", "bad")}


class Fuzzer:
    """Tries pieces until the time is over; its parent starts another one when it dies."""

    def __init__(self, home: Path, minutes: float, ground: Any, only: str | None = None):
        from hostile import TARGETS

        self.home, self.store, self.left, self.ground = home, Store(home), minutes * 60, ground
        self.targets = {name: target for name, target in TARGETS.items() if only in (None, name)}

    def go(self) -> None:
        """The pieces of before, then new ones from each target in turn."""
        self.last = time.monotonic()
        if not self.store.counts["seed"]:
            for name, piece in self.store.kept():
                self.one(name, piece)
        while self.store.counts["seconds"] < self.left:
            self.store.counts["seed"] += 1  # other pieces than in any batch before, in an earlier sitting too
            for name in self.targets:
                self._batch(name, self.store.counts["seed"])
                self.store.save()

    def _batch(self, name: str, number: int) -> None:
        from hypothesis import HealthCheck, Phase, given, seed, settings

        @seed(number)
        @settings(
            max_examples=BATCH,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(self.targets[name].pieces)
        def try_one(piece: Any) -> None:
            if self.store.counts["seconds"] < self.left:
                self.one(name, piece)

        try_one()

    def one(self, name: str, piece: Any) -> None:
        """Try and count one piece; what is being tried is on disk, in case it is the last one."""
        (self.home / "now.json").write_text(json.dumps({"target": name, "piece": piece}))
        faulthandler.dump_traceback_later(12 * SECONDS, exit=True)
        verdict = judge(self.ground, name, piece)
        faulthandler.cancel_dump_traceback_later()
        now = time.monotonic()
        self.store.counts["seconds"] += now - self.last
        self.last = now
        self.store.count(name, verdict, piece)


def work(home: Path, minutes: float, only: str | None) -> None:
    """A process that tries."""
    import torch

    sys.path.insert(0, str(Path(__file__).parent))
    resource.setrlimit(resource.RLIMIT_AS, (ROOM, ROOM))
    torch.set_num_threads(1)
    with prepared() as ground:
        fuzzer = Fuzzer(home, minutes, ground, only)
        with contextlib.suppress(KeyboardInterrupt):
            fuzzer.go()
        fuzzer.store.save()


@contextlib.contextmanager
def prepared() -> Iterator[Any]:
    """What tries start from, in a folder that is gone afterwards."""
    from hostile import Ground

    with tempfile.TemporaryDirectory() as base:
        os.environ["POLYFED_OUT"] = base
        yield Ground(Path(base) / "ground")


def watch(home: Path, minutes: float, only: str | None) -> int:
    """Start a process that tries, again if it died; then the figures."""
    if Store(home).counts["seconds"] >= minutes * 60:  # an earlier call came to its end: this one starts anew
        (home / "counts.json").unlink()
    words = [sys.executable, __file__, "--work", "--minutes", str(minutes), "--home", str(home)]
    words += ["--only", only] if only else []
    while _ended(words) not in STOPPED:
        store = Store(home)
        now = json.loads((home / "now.json").read_text())
        store.count(now["target"], Verdict("bad", "the process died or hung beyond help"), now["piece"])
        store.counts["seconds"] += SECONDS  # so that it ends even if it dies again and again
        store.save()
    return show(home)


def _ended(words: list[str]) -> int:
    """How a process that tries ended."""
    with subprocess.Popen(words) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:  # it hears it too, and saves what it has
            process.wait()
            return 0


def show(home: Path) -> int:
    """The figures of everything tried since it began."""
    store = Store(home)
    lines = {**store.counts["targets"], "all": store.total()}
    for name, counts in lines.items():
        print(f"{name:8} " + "  ".join(f"{key} {count:>7}" for key, count in counts.items()))
    print(f"{store.counts['seconds'] / 60:.1f} minutes; pieces for {len(store.kept())} different answers in {home}")
    return 1 if store.total()["bad"] else 0


def again(file: Path) -> int:
    """Try a kept piece and tell everything."""
    sys.path.insert(0, str(Path(__file__).parent))
    kept = json.loads(file.read_text())
    os.environ["POLYFED_DEBUG"] = "1"
    with prepared() as ground:
        verdict = judge(ground, kept["target"], kept["piece"])
    print(f"{json.dumps(kept['piece'])[:2000]}\n{verdict.kind}: {verdict.answer}")
    return int(verdict.kind == "bad")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--home", type=Path, default=Path("build/fuzz"))
    parser.add_argument("--only", help="one target alone")
    parser.add_argument("--again", type=Path, help="a kept piece, to be tried once")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.again:
        return again(given.again)
    if given.work:
        work(given.home, given.minutes, given.only)
        return 0
    return watch(given.home, given.minutes, given.only)


if __name__ == "__main__":
    sys.exit(main())
