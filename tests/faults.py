"""Faults on purpose: the n-th write, sync, rename, send or receive of a command fails, is cut short, or ends it.

`python tests/faults.py` walks every call of a small run and of what is made from it, and prints how many there were.
Each case is a fork of this process, in which the functions that change files or talk to workers are replaced. What is
replaced lies as low as Python allows: below its buffers, so that a write that fails is a write to the disk.
"""

import argparse
import builtins
import contextlib
import errno
import io
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from polyfed import cli
from polyfed.engine.threads import threads
from whole import LEFT, differences

FILES = ("open", "write", "sync", "rename", "mkdir", "remove", "truncate")
TALK = ("send", "receive", "worker send", "worker receive")  # of the server, and of all its workers together
KINDS = (*FILES, *TALK)
WAYS = {kind: ("error", "short", "crash") if kind in ("write", *TALK) else ("error", "crash") for kind in KINDS}
CRASHED = 77  # the exit code of a process that was ended in the middle of a call
PATIENCE = 60.0  # seconds; whoever needs more hangs, for a case takes a fraction of one
ENOUGH = 5  # cases that were not survived: whoever sees so many looks at them before trying more
FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Fault:
    """Which call fails, and how.

    error: nothing is done and an error is raised. short: half is done, then an error is raised, and a disk stays full.
    crash: half is done, then the process is gone, and nothing cleans up.
    """

    kind: str
    nth: int  # from 1 on
    way: str

    def __str__(self) -> str:
        return f"{self.kind} {self.nth}: {self.way}"


class Tally:
    """Counts the calls of a process and its workers by kind, and says which of them must fail."""

    def __init__(self, fault: Fault | None = None):
        self.fault, self.server = fault, os.getpid()
        self._counts = FORK.Array("q", len(KINDS))
        self._full = FORK.Value("b", 0)

    @property
    def counts(self) -> dict[str, int]:
        """Calls so far."""
        return dict(zip(KINDS, self._counts[:], strict=True))

    @property
    def met(self) -> bool:
        """Whether the call that was to fail came."""
        return self.fault is not None and self.counts[self.fault.kind] >= self.fault.nth

    def next(self, kind: str) -> str:
        """One more call: how it must fail, or nothing."""
        kind = kind if kind in FILES or os.getpid() == self.server else f"worker {kind}"
        with self._counts.get_lock():
            place = KINDS.index(kind)
            self._counts[place] += 1
            number = self._counts[place]
        if self._full.value and kind == "write":
            return "error"
        if (kind, number) != (self.fault.kind, self.fault.nth) if self.fault else True:
            return ""
        self._full.value = kind == "write" and self.fault.way == "short"
        return self.fault.way

    def call(self, kind: str, do: Callable[[], Any], half: Callable[[], Any] = lambda: None) -> Any:
        """Do something that may have to fail."""
        way = self.next(kind)
        if not way:
            return do()
        if way != "error":
            half()
        if way == "crash":
            os._exit(CRASHED)
        number = errno.ENOSPC if self._full.value else errno.EIO
        raise OSError(number, os.strerror(number))


def install(tally: Tally) -> None:
    """From now on this process meets faults; there is no way back, so it should be a fork."""
    _replace_open(tally)
    for kind, names in {
        "sync": ("fsync", "fdatasync"),
        "rename": ("rename", "replace", "link"),
        "mkdir": ("mkdir",),
        "remove": ("unlink", "remove", "rmdir"),
        "truncate": ("truncate", "ftruncate"),
    }.items():
        for name in names:
            setattr(os, name, _failing(tally, kind, getattr(os, name)))
    write = os.write

    def write_some(file: int, data: Any) -> int:
        return tally.call("write", lambda: write(file, data), lambda: write(file, _half(data)))

    os.write = write_some
    _replace_pipes(tally)


def _failing(tally: Tally, kind: str, real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **keys: tally.call(kind, lambda: real(*args, **keys))


def _half(data: Any) -> bytes:
    whole = memoryview(data).cast("B")
    return bytes(whole[: len(whole) // 2])


def _replace_open(tally: Tally) -> None:
    """Files opened to be written are Python's own, on a lowest layer whose writes may fail."""
    real = io.open

    class Disk(io.FileIO):
        def write(self, data: Any) -> int:
            return tally.call("write", lambda: io.FileIO.write(self, data), lambda: io.FileIO.write(self, _half(data)))

        def truncate(self, size: int | None = None) -> int:
            return tally.call("truncate", lambda: io.FileIO.truncate(self, size))

    def opened(
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        if not set(mode) & set("wax+"):
            return real(file, mode, buffering, encoding, errors, newline, closefd, opener)
        plain = mode.replace("b", "").replace("t", "")
        raw = tally.call("open", lambda: Disk(file, plain, closefd, opener))
        if buffering == 0:
            return raw
        binary = (io.BufferedRandom if "+" in mode else io.BufferedWriter)(raw)
        if "b" in mode:
            return binary
        text = io.TextIOWrapper(binary, encoding, errors, newline, line_buffering=buffering == 1)
        text.mode = mode
        return text

    builtins.open = io.open = opened


def _replace_pipes(tally: Tally) -> None:
    send, receive = Connection._send, Connection._recv  # type: ignore[attr-defined]

    def send_some(self: Connection, buffer: Any, *others: Any) -> None:
        tally.call("send", lambda: send(self, buffer), lambda: send(self, _half(buffer)))

    def receive_some(self: Connection, size: int, *others: Any) -> Any:
        return tally.call("receive", lambda: receive(self, size), lambda: receive(self, size // 2))

    Connection._send, Connection._recv = send_some, receive_some  # type: ignore[attr-defined]


@dataclass
class Ended:
    """How a command ended."""

    code: int
    said: str

    def complaint(self, codes: Sequence[int]) -> str:
        """What is wrong with it, if anything: a failure must be one sentence and a code a user can act on."""
        lines = [line for line in self.said.splitlines() if line.startswith("polyfed: ")]
        if self.code not in codes:
            return f"exit code {self.code}: {self.said[-300:]}"
        if "Traceback" in self.said or "Exception ignored" in self.said:
            return f"a traceback: {self.said[-600:]}"
        if self.code in (2, 3) and len(lines) != 1:
            return f"not one sentence but {len(lines)}: {self.said[-300:]}"
        return ""


def forked(words: Sequence[str], tally: Tally | None = None) -> Ended:
    """A `polyfed` command in a fork of this process, with the faults of a tally."""
    with tempfile.TemporaryFile("w+") as said:
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            _become(words, tally, said)
        code = _awaited(pid)
        said.seek(0)
        return Ended(code, said.read())


def _awaited(pid: int) -> int:
    """The exit code of a child, which is killed if it hangs."""
    end = time.monotonic() + PATIENCE
    while not (found := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
            found = os.waitpid(pid, 0)
            break
        time.sleep(0.005)
    return os.waitstatus_to_exitcode(found[1])


def _become(words: Sequence[str], tally: Tally | None, said: Any) -> None:
    """This process is the command from here on."""
    code = 99
    try:
        for standard in (1, 2):
            os.dup2(said.fileno(), standard)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
        torch.set_num_threads(1)
        if tally:
            tally.server = os.getpid()
            install(tally)
        code = cli.call([*words, "--quiet"])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


# ---- what is tried

RUN = {
    "method": "fedper",
    "data.limit": 20,
    "split.clients": 3,
    "split.alpha": 1.0,
    "rounds": 2,
    "train.batch": 16,
    "model.width": 0.1,
    "eval.classes": "false",
}


@dataclass(frozen=True)
class Scene:
    """A command that meets a fault, and what a user does next."""

    name: str
    kinds: tuple[str, ...]
    command: Callable[[Path], list[str]]  # writes to a path
    again: Callable[[Path], list[str]]
    start: Path | None = None  # what lies at that path before


def scenes(finished: Path, stopped: Path) -> list[Scene]:
    """A run alone, its resumption, the same with a worker, and what is made from a finished run."""

    def run(workers: int) -> Callable[[Path], list[str]]:
        words = [f"{key}={value}" for key, value in {**RUN, "engine.workers": workers}.items()]
        return lambda out: ["run", *words, "--out", str(out)]

    def resume(out: Path) -> list[str]:
        return ["resume", str(out), "--workers", "0"]

    def report(out: Path) -> list[str]:
        return ["report", str(finished), "--out", str(out)]

    def export(out: Path) -> list[str]:
        return ["export", str(finished), "--client", "0", "--out", str(out)]

    return [
        Scene("run", FILES, run(0), resume),
        Scene("resume", FILES, resume, resume, stopped),
        Scene("workers", TALK, run(1), resume),
        Scene("export", FILES, export, export),
        Scene("report", FILES, report, report),
    ]


class Walk:
    """Every call of every scene, failed once in every way; or some of them, drawn."""

    def __init__(self, base: Path):
        self.base, self.made, self.survived = base, 0, 0
        self.whole: dict[str, Path] = {}  # what each scene leaves when nothing fails
        finished, stopped = base / "finished", base / "stopped"
        self.scenes = scenes(finished, stopped)
        run, _, *others = self.scenes
        # in this process, so that forks have everything imported; with one thread, for a fork has no others
        with threads(1), contextlib.redirect_stdout(io.StringIO()):
            for words in (run.command(finished), *(scene.command(self.fresh(scene)) for scene in others)):
                assert cli.call([*words, "--quiet"]) == 0, f"without faults it failed: {words}"
        self.counts = {"run": self._count(run)}
        middle = Fault("write", self.counts["run"]["write"] * 6 // 10, "crash")
        assert forked(run.command(stopped), Tally(middle)).code == CRASHED
        self.counts |= {scene.name: self._count(scene) for scene in self.scenes[1:]}

    def _count(self, scene: Scene) -> dict[str, int]:
        """The calls of a scene in which nothing fails."""
        out, tally = self.fresh(scene), Tally()
        ended = forked(scene.command(out), tally)
        assert ended.code == 0, ended.said
        self.whole[scene.name] = out
        return {kind: count for kind, count in tally.counts.items() if kind in scene.kinds}

    def fresh(self, scene: Scene) -> Path:
        """A path nobody has used, with what a scene starts from."""
        self.made += 1
        folder = self.base / f"{scene.name}-{self.made}"
        folder.mkdir()
        if scene.start:
            shutil.copytree(scene.start, folder / "out")
        return folder / "out"

    def cases(self, draw: random.Random | None = None, most: int = 0) -> list[tuple[Scene, Fault]]:
        """All of them, or as many as are drawn, from every scene and kind in turn."""
        every = [
            [(scene, Fault(kind, n, way)) for way in WAYS[kind] for n in range(1, self.counts[scene.name][kind] + 1)]
            for scene in self.scenes
            for kind in scene.kinds
        ]
        if draw is None:
            return [case for group in every for case in group]
        for group in every:
            draw.shuffle(group)
        longest = max(map(len, every))
        return [group[place] for place in range(longest) for group in every if place < len(group)][:most]

    def complaints(self, scene: Scene, fault: Fault) -> Iterator[str]:
        """What goes wrong beyond the fault itself."""
        out, tally = self.fresh(scene), Tally(fault)
        ended = forked(scene.command(out), tally)
        if not tally.met:
            yield "the call never came"
        in_server = fault.way == "crash" and not fault.kind.startswith("worker")
        yield ended.complaint([CRASHED] if in_server else [0, 2, 3])
        if scene.again(out)[0] == "resume" and not (out / "config.yaml").exists():
            yield forked(scene.again(out)).complaint([3])
            out = self.fresh(scene)
            yield forked(scene.command(out)).complaint([0])
        elif ended.code != 0 or scene.again(out)[0] == "resume":
            yield forked(scene.again(out)).complaint([0])
        stays = (LEFT,) if (fault.kind, fault.way) == ("remove", "error") else ()  # older than what counts
        yield from (said for said in differences(out, self.whole[scene.name]) if not said.endswith(stays))

    def bad(self, cases: Sequence[tuple[Scene, Fault]], tell: Callable[[str], None] = lambda text: None) -> list[str]:
        """Walk these cases: a line for each that was not survived."""
        found: list[str] = []
        for scene, fault in cases:
            if len(found) >= ENOUGH:
                break
            said = [each for each in self.complaints(scene, fault) if each]
            found += [f"{scene.name}, {fault}: {'; '.join(said)}"] if said else []
            self.survived += not said
            tell(found[-1] if said else "")
        return found


def main() -> None:
    """Walk everything, or some cases that are drawn, and print the figures."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--cases", type=int, help="how many cases are drawn; all by default")
    asked.add_argument("--seed", default="0", help="which ones")
    args = asked.parse_args()
    with tempfile.TemporaryDirectory() as base:
        walk = Walk(Path(base))
        for name, counts in walk.counts.items():
            print(f"{name}: " + ", ".join(f"{count} {kind}" for kind, count in counts.items() if count))
        cases = walk.cases(random.Random(args.seed), args.cases) if args.cases else walk.cases()
        bad = walk.bad(cases, lambda text: print(text, flush=True) if text else None)
        calls = sum(sum(counts.values()) for counts in walk.counts.values())
        print(f"{calls} calls, in {len(cases)} cases: {walk.survived} survived, {len(bad)} bad")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
