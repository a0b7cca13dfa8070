"""A trial: whether the sources of today give a stale cell's experiment the bits that its own sources give it.

A cell is stale once its sources have changed, and most changes of sources change no number. So the first rounds of its
experiment are run twice on this machine, each in a process of its own: with the sources of the commit that made the
cell, taken from git, and with those of today. Where both have the same bits and the same numbers, the cell is renewed.
It may have been made on any machine, because it is not compared with what was measured there.
"""

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polyfed
from polyfed.config import Tree, merge
from polyfed.engine.run_folder import RunFolder, environment
from polyfed.errors import DataError
from polyfed.papers.cell import PaperCell, digest
from polyfed.papers.sources import sources_of
from polyfed.papers.store import StoredCell, from_run

PART, LEAST = 20, 3  # a trial has one in PART of the rounds, and LEAST at least
TODAY = Path(polyfed.__file__).parents[1]
RUN = "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); runpy.run_module('polyfed.cli', run_name='__main__')"


def differs(cell: PaperCell, stored: StoredCell) -> str:
    """How the first rounds of today's sources differ from those of the sources that made a cell; empty if they agree.

    Raises:
        DataError: The two cannot be compared, and why.
    """
    if cell.item.demo:
        raise DataError("a demo has no rounds")
    with sources_at(stored.commit) as before:
        then, now = (_trial(cell, sources) for sources in (before, TODAY))
    return "" if then == now else f"its first rounds have other bits than at commit {str(stored.commit)[:8]}"


def renewed(cell: PaperCell, stored: StoredCell) -> StoredCell:
    """A stale cell as one of today's sources; it says who had made it."""
    note = {"sources": stored.sources, "commit": stored.commit}
    now = {"sources": sources_of(cell), "commit": environment()["commit"]}
    return stored.model_copy(update={**now, "made_by": stored.made_by or note})


@contextmanager
def sources_at(commit: str | None) -> Iterator[Path]:
    """A folder with the sources of a commit, out of the repository that polyfed runs from."""
    with tempfile.TemporaryDirectory() as folder:
        packed = _git("archive", "--format=tar", str(commit), "src")
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")
        yield Path(folder) / "src"


def _git(*words: str) -> bytes:
    try:
        done = subprocess.run(["git", *words], cwd=TODAY.parent, capture_output=True, check=False)
    except OSError as error:
        raise DataError(f"git cannot be run: {error}") from None
    if done.returncode:
        raise DataError(f"git does not have its sources: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def _trial(cell: PaperCell, sources: Path) -> str:
    """A digest of the fingerprint and the shown numbers of a cell's first rounds, and of its finish."""
    with tempfile.TemporaryDirectory() as aside:
        file, out = Path(aside) / "trial.yaml", Path(aside) / "run"
        file.write_text(json.dumps(_short(cell)), encoding="utf-8")
        command = [sys.executable, "-c", RUN, str(sources), "run", str(file), "--out", str(out), "--quiet"]
        paths = {"PYTHONPATH": str(sources)}  # for the workers that it starts
        done = subprocess.run(command, cwd=aside, env={**os.environ, **paths}, capture_output=True, check=False)
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            raise DataError(
                f"its first rounds fail with the sources in '{sources}': {said[-1] if said else 'silently'}"
            )
        made = from_run(cell, RunFolder.existing(out))
    return digest([made.fingerprint, [made.last(cell.item.of(cell.row, column)) for column in cell.item.columns]])


def _short(cell: PaperCell) -> Tree:
    """A cell's keys with few rounds; on how many samples GA is measured in between is left to each version."""
    rounds = cell.config.rounds
    few = {"rounds": min(rounds, max(LEAST, rounds // PART)), "engine": {"workers": 0}, "seed": cell.seed}
    tree = merge(cell.tree, few)
    return {**tree, "eval": {key: value for key, value in tree.get("eval", {}).items() if key != "ga"}}
