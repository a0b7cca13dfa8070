"""What lies below a directory: runs and comparisons with how far they are, and by name whatever is neither."""

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock
from typing import Any

from polyfed.comparison.folder import OURS, ComparisonFolder, is_comparison
from polyfed.engine.run_folder import in_use
from polyfed.errors import DataError, PolyfedError
from polyfed.report.runs import Shown, read, records
from polyfed.use.export import is_export

DEPTH = 6  # directories below each other that are looked into
MOST = 200  # of what is neither, named one by one
POINTS = 60  # of a curve
WRITTEN = OURS | {"report.html"}  # what polyfed itself puts beside runs
Facts = dict[str, Any]


def inside(root: Path, word: str) -> Path:
    """A place below a directory, or a refusal: no way up, no way round, and no link in it that leads out."""
    parts = Path(word).parts
    if not word or "\0" in word or "\\" in word or Path(word).is_absolute() or ".." in parts:
        raise DataError(f"{word!r} is not a path below the directory")
    try:
        path = (root / word).resolve()
        there = path.is_relative_to(root) and path.is_dir()
    except (OSError, RuntimeError, ValueError):  # a name that is too long, or links that lead in a circle
        there = False
    if not there:
        raise DataError(f"there is no directory {word[:200]!r} here")
    out = next(_links_out(root, path), None)
    if out is not None:
        raise DataError(f"'{out.relative_to(root)}' is a link that leads out of the directory")
    return path


def _links_out(root: Path, folder: Path, depth: int = DEPTH) -> Iterator[Path]:
    """Links below a directory that end outside of the root."""
    for entry in os.scandir(folder):
        path = folder / entry.name
        if entry.is_symlink():
            if not _ends_in(path, root):
                yield path
        elif entry.is_dir() and depth:
            yield from _links_out(root, path, depth - 1)


def _ends_in(link: Path, root: Path) -> bool:
    try:
        return link.resolve().is_relative_to(root)
    except (OSError, RuntimeError):  # links that lead in a circle end nowhere
        return False


class Listing:
    """Looks at a directory again and again; what has not changed since is not read again."""

    def __init__(self, root: Path):
        self.root = root
        self._kept: dict[Path, tuple[Any, Any]] = {}
        self._lock = Lock()

    def now(self) -> Facts:
        """Everything there is at this moment, as plain data."""
        with self._lock:
            runs: list[Facts] = []
            comparisons: list[Facts] = []
            named: list[Facts] = []
            self._look(self.root, None, DEPTH, runs, comparisons, named)
        for one in comparisons:
            _count(one, [run for run in runs if run["comparison"] == one["path"]])
        return {
            "root": self.root.name,
            "time": time.strftime("%H:%M:%S"),
            "runs": runs,
            "comparisons": comparisons,
            "named": named[:MOST],
            "more": max(0, len(named) - MOST),
        }

    def _look(
        self, path: Path, above: str | None, depth: int, runs: list[Facts], comparisons: list[Facts], named: list[Facts]
    ) -> None:
        """A directory: a run, a comparison, or a folder of them."""

        def name(at: Path, why: Any) -> None:
            named.append({"path": self._word(at), "why": str(why).replace(f"{self.root}{os.sep}", "")})

        try:
            out = next(_links_out(self.root, path, 0), None)
            if (path / "config.yaml").exists() or (path / "environment.json").exists():
                if out is not None:
                    raise DataError(f"its {out.name} is a link that leads out of the directory")
                runs.append(self._run(path, above))
                return
            if is_comparison(path):
                above = self._word(path)
                comparisons.append(self._comparison(path))
            elif is_export(path):
                name(path, "an exported model")
                return
            entries = sorted(os.scandir(path), key=lambda entry: entry.name)
        except (PolyfedError, OSError) as error:
            name(path, error)
            return
        except Exception as error:  # whatever a damaged run holds, the others are shown
            name(path, f"damaged: {type(error).__name__}: {error}")
            return
        for entry in entries:
            at = path / entry.name
            if entry.name.startswith(".") or (entry.is_file() and entry.name in WRITTEN):
                continue
            if entry.is_symlink():
                name(at, "a link; links are not followed")
            elif not entry.is_dir():
                name(at, "no run and no comparison")
            elif depth:
                self._look(at, above, depth - 1, runs, comparisons, named)
            else:
                name(at, "too deep to be looked into")

    # ---- one by one

    def _run(self, path: Path, above: str | None) -> Facts:
        shown = self._unchanged(path, _signature(path, "config.yaml", "summary.json"), lambda: read(path))
        written = _signature(path, "rounds.csv", "spent.csv", "summary.json")
        facts = self._unchanged(path / "rounds.csv", written, lambda: _numbers(shown))
        state = "finished" if shown.finished else "live" if in_use(path) else "stopped"
        told = {"path": self._word(path), "comparison": above, "state": state, **_about(shown), **facts}
        json.dumps(told, allow_nan=False)  # what cannot be told is found here, and not when all are
        return told

    def _comparison(self, path: Path) -> Facts:
        folder = self._unchanged(path, _signature(path, "comparison.yaml"), lambda: ComparisonFolder.existing(path))
        began = (path / "comparison.yaml").stat().st_mtime
        facts = {"methods": folder.grid.rows, "cells": len(folder.grid.cells), "began": began}
        return {"path": self._word(path), "name": path.name, **facts}

    def _unchanged(self, key: Path, signature: Any, make: Callable[[], Any]) -> Any:
        """What was made of some files when they were last different."""
        known = self._kept.get(key)
        if known is None or known[0] != signature:
            known = self._kept[key] = signature, make()
        return known[1]

    def _word(self, path: Path) -> str:
        return str(path.relative_to(self.root))


def _signature(path: Path, *names: str) -> list[tuple[int, int] | None]:
    """Whether files may have changed."""
    made: list[tuple[int, int] | None] = []
    for name in names:
        try:
            stat = (path / name).stat()
            made.append((stat.st_mtime_ns, stat.st_size))
        except OSError:
            made.append(None)
    return made


def _about(run: Shown) -> Facts:
    config = run.config
    return {
        "name": run.path.name,
        "method": str(config["method"]["name"]),
        "data": str(config["data"].get("name", "?")),
        "model": str(config["model"].get("name", "?")),
        "tag": str(config.get("tag", "")),
        "seed": run.seed,
        "rounds": run.rounds,
        "began": (run.path / "config.yaml").stat().st_mtime,
    }


def _numbers(run: Shown) -> Facts:
    """How far a run is, its last numbers with what they are, and its curves."""
    rounds, spent = records(run.path, "rounds"), records(run.path, "spent")  # not the run's own, which reads them once
    curves = {}
    for measure in ("global", "personal"):
        rows = rounds[(rounds["measure"] == measure) & rounds["accuracy"].notna()]
        points = [[int(at), float(value)] for at, value in zip(rows["round"], rows["accuracy"], strict=True)]
        curves[measure] = points[:: -(-len(points) // POINTS) or 1][:-1] + points[-1:]
    last = {measure: points[-1][1] if points else None for measure, points in curves.items()}
    when = "before finish"
    if run.summary is not None:
        final = run.summary.get("personal") or {}
        last["personal"], when = final.get("accuracy"), "after finish"
    done = [int(table["round"].max()) for table in (spent, rounds) if len(table)]
    return {"round": min([run.rounds, *done[:1]]) if done else 0, "curves": curves, **last, "when": when}


def _count(comparison: Facts, cells: list[Facts]) -> None:
    """How far a comparison is, and what its runs have in common."""
    for state in ("finished", "live", "stopped"):
        comparison[state] = sum(cell["state"] == state for cell in cells)
    for key in ("data", "tag"):
        comparison[key] = ", ".join(sorted({cell[key] for cell in cells if cell[key]}))
    comparison["state"] = (
        "live" if comparison["live"] else "finished" if comparison["finished"] == comparison["cells"] else "stopped"
    )
