"""Sides that take turns: each lives in a process of its own, does a turn when it is told to and says what it took.

A machine that others use changes its speed within seconds, so what is compared must lie close together in time. This
module also runs in the rivals' environments and imports nothing of polyfed.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import IO

from benchmarks.measure import (
    TIMEOUT,
    Failed,
    Numbers,
    Side,
    brief,
    ended,
    family,
    last_words,
    listening,
    memory,
    memory_of,
    processor_time,
    started,
    tell,
)

MARK = "turn: "
PATIENCE = 20  # seconds a side has to end by itself

# ---- in a side's process


def my_turn(numbers: Numbers | None = None) -> bool:
    """Say what the last turn took (at first, that all is ready) and wait for the next one; False when there is none."""
    print(f"\n{MARK}{json.dumps(numbers or {})}", flush=True)
    return sys.stdin.readline() == "go\n"


class Rounds:
    """Turns of a side whose loop over rounds is not ours: it only tells when a round is over."""

    def __init__(self, per_turn: int, samples: Callable[[int], int]):
        self.per_turn, self.samples = per_turn, samples  # the number of samples in a turn, counted from 1
        self.seconds = self.cpu = 0.0

    def over(self, done: int, **ready: float) -> bool:
        """So many rounds are done, the first of them to warm up; whether to go on, after waiting for the next turn."""
        if (done - 1) % self.per_turn:
            return True
        turn, seconds, cpu = (done - 1) // self.per_turn, time.perf_counter(), _computed()
        took = {"seconds": seconds - self.seconds, "cpu": cpu - self.cpu}
        more = my_turn({"samples": self.samples(turn), **took} if turn else ready)
        self.cpu, self.seconds = _computed(), time.perf_counter()
        return more


def _computed() -> float:
    return processor_time(family(os.getpid()))


# ---- who tells them


class Player:
    """A side at work; between its turns it is stopped, because some compute while they wait."""

    def __init__(self, process: "subprocess.Popen[str]", words: IO[str]):
        self.process, self.words = process, words
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()
        self.ready = self._hear()

    def turn(self) -> Numbers:
        """Let it do a turn; what that took."""
        assert self.process.stdin is not None
        tell(self.process.pid, signal.SIGCONT)
        try:
            self.process.stdin.write("go\n")
            self.process.stdin.flush()
        except OSError:
            raise self._failure() from None
        return self._hear()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(MARK):
                self._lines.put(line.removeprefix(MARK))
        self._lines.put(None)

    def _hear(self) -> Numbers:
        try:
            line = self._lines.get(timeout=TIMEOUT)
        except queue.Empty:
            raise Failed(f"no answer after {TIMEOUT} seconds") from None
        if line is None:
            raise self._failure()
        tell(self.process.pid, signal.SIGSTOP)
        return json.loads(line)

    def _failure(self) -> Failed:
        self.words.seek(0)
        return Failed(last_words(self.words.read()))


@contextmanager
def playing(side: Side) -> Iterator[tuple[Player, Callable[[], int | None]]]:
    """A side that is ready, and the most memory it was seen with; in the end nothing of it stays."""
    with listening() as words:
        process = started(side, words, stdin=subprocess.PIPE)
        with ended(process):
            with memory_of(process.pid) as peak:  # while it warms up: looking on would slow its turns down
                player = Player(process, words)
            yield player, lambda: _most(peak(), memory(process.pid))
            assert process.stdin is not None
            tell(process.pid, signal.SIGCONT)
            with suppress(subprocess.TimeoutExpired, OSError):
                process.stdin.close()
                process.wait(PATIENCE)  # it cleans up after itself


def _most(*sizes: int | None) -> int | None:
    return max((size for size in sizes if size), default=None)


def take_turns(
    sides: Mapping[str, Side], turns: int, say: Callable[[str], None], late: Sequence[str] = (), host: str = "ours"
) -> dict[str, list[Numbers | None]]:
    """Every side so many turns, to and fro, so that neighbours stay so; a side that fails takes no further turn.

    Late sides are so slow, or so restless while they wait, that each takes one turn at the end, with one of the host's.
    """
    found: dict[str, list[Numbers | None]] = {name: [] for name in sides}
    with ExitStack() as stack:
        players: dict[str, Player] = {}
        peaks: dict[str, Callable[[], int | None]] = {}

        def attempt(name: str) -> None:
            try:
                if name not in players:
                    players[name], peaks[name] = stack.enter_context(playing(sides[name]))
                    return
                numbers = {**players[name].ready, **players[name].turn()}
                say(f"{name}: {brief(numbers)}")
                found[name].append(numbers)
            except Failed as failure:
                found[name].append(None)
                say(f"{name} failed: {failure}")

        def alive(names: Sequence[str]) -> list[str]:
            return [name for name in names if not found[name] or found[name][-1] is not None]

        early = [name for name in sides if name not in late]
        for name in early:
            attempt(name)
        for turn in range(turns):
            for name in alive(early if turn % 2 else early[::-1]):
                attempt(name)
        for name in late:
            found[name] += [None] * (len(found[host]) - len(found[name]))
            attempt(name)
            if name in players:
                attempt(name)
                attempt(host)
        return {name: _with_memory(numbers, peaks.get(name)) for name, numbers in found.items()}


def _with_memory(numbers: list[Numbers | None], peak: Callable[[], int | None] | None) -> list[Numbers | None]:
    return [None if one is None or peak is None else {**one, "memory": peak()} for one in numbers]
