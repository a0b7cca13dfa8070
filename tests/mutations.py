"""Mutations: one line of the source made wrong at a time, to see whether the tests that mirror it notice (make mutate).

The list is data, in mutations.yaml. Every mutant is a copy of src of its own, on which a process of its own runs the
fast tests named for the file; the working tree is never touched. Verdicts are kept in build/mutations.json, so that a
sitting that was stopped goes on; one is taken again when the mutated file or its tests change.
"""

import argparse
import compileall
import hashlib
import json
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
ENOUGH = 0.95  # of the mutants of each room must be found
LIMIT = 60  # seconds of computing; a mutant that takes longer hangs, and whoever hangs is noticed
FAILS, BREAKS = 1, 2  # pytest's exit codes for a failed test and for tests that cannot even be collected
FORKS = multiprocessing.get_context("forkserver")  # so that slow imports happen once, and those of polyfed every time
WARM = (
    *("torch", "torch.distributed.tensor", "numpy", "pandas", "pydantic", "scipy.stats", "sklearn.cluster"),
    *("sklearn.metrics", "hypothesis", "safetensors.torch", "yaml", "typer"),
)


@dataclass(frozen=True)
class Mutation:
    """One fragment of a file and what is put in its place; no fragment at all is the file as it is."""

    file: str
    tests: tuple[str, ...]
    was: str = ""
    now: str = ""
    equivalent: str = ""  # why no test can notice, if so

    @property
    def room(self) -> str:
        """The part of the source it is in."""
        return self.file.split("/")[0]

    def __str__(self) -> str:
        was, now = (" ".join(text.split()) for text in (self.was, self.now))
        return f"{self.file}: {was}  ->  {now}"


class Project:
    """A source tree with its tests, and what was found out about it so far."""

    def __init__(self, source: Path, tests: Path, kept: Path, limit: int = LIMIT):
        self.source, self.tests, self.kept, self.limit = source, tests, kept, limit
        self.verdicts: dict[str, bool] = json.loads(kept.read_text()) if kept.exists() else {}
        self._writing = threading.Lock()

    def mutated(self, mutation: Mutation) -> str | None:
        """The file with the mutation in it; None if the fragment does not stand there exactly once any more."""
        text = (self.source / mutation.file).read_text(encoding="utf-8")
        if mutation.was == mutation.now:
            return None if mutation.was else text
        return text.replace(mutation.was, mutation.now) if text.count(mutation.was) == 1 else None

    def found(self, mutation: Mutation) -> bool:
        """Whether the tests notice."""
        key = self._key(mutation)
        if key not in self.verdicts:
            verdict = self._tried(mutation)
            if verdict and not mutation.was:  # tests that fail on the file as it is: tried again next time
                return True
            with self._writing:
                self.verdicts[key] = verdict
                self.kept.parent.mkdir(parents=True, exist_ok=True)
                aside = self.kept.with_name(f".{self.kept.name}")
                aside.write_text(json.dumps(self.verdicts, indent=1))
                aside.replace(self.kept)
        return self.verdicts[key]

    def _key(self, mutation: Mutation) -> str:
        tests = ((self.tests / name).read_text(encoding="utf-8") for name in mutation.tests)
        texts = [mutation.file, self.mutated(mutation) or "", *tests]
        return hashlib.sha256("\0".join(texts).encode()).hexdigest()

    def _tried(self, mutation: Mutation) -> bool:
        """One process on a copy of the source."""
        text = self.mutated(mutation) or ""
        with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
            source = Path(folder) / "src" / self.source.name
            shutil.copytree(self.source, source)  # with what is compiled already: that is most of the time of a start
            file = source / mutation.file
            file.write_text(text, encoding="utf-8")
            for compiled in file.parent.glob(f"__pycache__/{file.stem}.*"):
                compiled.unlink()
            return self._fails(mutation.tests, Path(folder))

    def _fails(self, tests: Iterable[str], folder: Path) -> bool:
        """Whether one of these tests fails on the source in a folder, or hangs."""
        paths = [str(self.tests / name) for name in tests]
        process = FORKS.Process(target=run_tests, args=(self.tests.parent, folder, paths, self.limit))
        process.start()
        process.join(20 * self.limit)  # on a busy machine, or where it waits for something
        if process.exitcode is None:
            process.kill()
            process.join()
        if process.exitcode not in (0, FAILS, BREAKS, -signal.SIGKILL):
            raise RuntimeError(f"pytest cannot run {', '.join(tests)}:\n{(folder / 'said').read_text()}")
        return process.exitcode != 0


def run_tests(root: Path, folder: Path, paths: list[str], limit: int) -> None:
    """What a mutant's process does."""
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))  # then it is killed
    os.chdir(root)
    os.environ["PYTHONPATH"] = str(folder / "src")
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(folder / "hypothesis")  # else a mutant's examples would stay
    sys.path.insert(0, str(folder / "src"))
    said = os.open(folder / "said", os.O_WRONLY | os.O_CREAT)
    os.dup2(said, 1)
    os.dup2(said, 2)
    options = ["-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", f"--basetemp={folder / 'tmp'}"]
    code = int(pytest.main([*options, "--hypothesis-seed=0", *paths]))
    sys.stdout.flush()
    os._exit(code)


def listed(path: Path) -> Iterator[Mutation]:
    """The mutations of a list."""
    for file, entry in yaml.safe_load(path.read_text(encoding="utf-8")).items():
        for one in entry["mutations"]:
            yield Mutation(file, tuple(entry["tests"]), **one)


def measure(project: Project, mutations: list[Mutation], jobs: int) -> int:
    """Try them all and tell; 0 if every room finds enough and nothing in the list is out of date."""
    stale = [m for m in mutations if project.mutated(m) is None]
    for mutation in mutations:
        compile(project.mutated(mutation) or "", str(mutation), "exec")  # what is no Python is no mutation
    fresh = [m for m in mutations if m not in stale]
    whole = list({m.tests: Mutation(m.file, m.tests) for m in fresh}.values())
    with ThreadPoolExecutor(jobs) as pool:
        failing = [m for m, fails in zip(whole, pool.map(project.found, whole), strict=True) if fails]
        if failing:  # then every mutant of theirs would count as found
            print("\n".join(f"these tests fail without any mutation: {', '.join(m.tests)}" for m in failing))
            return 1
        found = {}
        for mutation, seen in zip(fresh, pool.map(project.found, fresh), strict=True):
            found[mutation] = seen
            print(f"{'found' if seen else 'NOT FOUND':9}  {mutation}", flush=True)
    refuted = [m for m in fresh if m.equivalent and found[m]]
    few = []
    for room in sorted({m.room for m in fresh}):
        count = [found[m] for m in fresh if m.room == room and not m.equivalent]
        few += [room] if sum(count) < ENOUGH * len(count) else []
        same = sum(m.room == room and bool(m.equivalent) for m in fresh)
        print(f"{room}: {sum(count)} of {len(count)} found ({sum(count) / max(len(count), 1):.1%}), {same} equivalent")
    for heading, some in (
        ("not found", [m for m in fresh if not found[m] and not m.equivalent]),
        ("stale, because the fragment does not stand in the file exactly once", stale),
        ("called equivalent, but found", refuted),
    ):
        for mutation in some:
            print(f"{heading}: {mutation}")
    return int(bool(few or stale or refuted))


def list_stale(project: Project, mutations: Iterable[Mutation]) -> int:
    """Name the mutations whose fragment does not stand in its file exactly once; 0 if there are none."""
    stale = [m for m in mutations if project.mutated(m) is None]
    print("\n".join(str(m) for m in stale) or "none is stale")
    return int(bool(stale))


def main() -> int:
    """What `make mutate` calls."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("files", nargs="*", help="only mutations of files whose path contains one of these")
    words.add_argument("--jobs", type=int, default=2, help="how many processes at a time")
    words.add_argument("--stale", action="store_true", help="only list fragments that are out of date; run nothing")
    asked = words.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # as in every process of a run
    FORKS.set_forkserver_preload([*WARM, "pytest"])
    compileall.compile_dir(ROOT / "src", quiet=1)  # once, not in every copy
    project = Project(ROOT / "src" / "polyfed", ROOT / "tests", ROOT / "build" / "mutations.json")
    everything = listed(ROOT / "tests" / "mutations.yaml")
    wanted = [m for m in everything if not asked.files or any(part in m.file for part in asked.files)]
    return list_stale(project, wanted) if asked.stale else measure(project, wanted, asked.jobs)


if __name__ == "__main__":
    sys.exit(main())
