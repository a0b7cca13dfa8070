"""The store: one small JSON file for each finished cell of a paper's table, by which it can be shown and verified."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from pydantic import ValidationError

from polyfed.comparison.folder import accuracies
from polyfed.comparison.standing import own_seconds
from polyfed.engine.run_folder import RunFolder, environment
from polyfed.errors import DataError
from polyfed.files import Place, write_file
from polyfed.measure.metrics import recalls
from polyfed.measure.stored import Stored
from polyfed.papers.cell import PaperCell, digest
from polyfed.papers.demos import Demo
from polyfed.papers.sources import sources_of
from polyfed.report.kinds.clusters import memberships
from polyfed.report.runs import read, records

DIGITS = 6
MOST = 40  # evaluations that are kept of a run, counted from its end
FIELDS = ("accuracy", "balanced", "miou", "worst10", "tail")
WHOLE = ("threats", "oracle")  # parts of a summary that are kept as a whole
KEPT = ("clients", "classes", "clusters")  # what a figure may ask to be kept of a run


class StoredCell(Stored):
    """A file of the store."""

    item: str
    scale: str
    panel: str
    row: str
    seed: int
    identity: str
    sources: str
    fingerprint: str
    final: dict[str, float | None]
    third: dict[str, float]
    evaluations: dict[str, list[float | None]]
    versions: dict[str, str]
    cpu: str
    minutes: float
    commit: str | None = None
    made_by: dict[str, str | None] = {}  # its first sources and commit, where a trial showed that later ones agree
    kept: dict[str, list[float | None]] = {}
    numbers: dict[str, dict[str, float | None]] = {}  # of a demo
    arrays: dict[str, Any] = {}  # of a demo

    def demo(self) -> Demo:
        """What a demo had found."""
        found = {
            row: {name: math.nan if value is None else value for name, value in one.items()}
            for row, one in self.numbers.items()
        }
        return Demo(found, {name: np.array(values, dtype=float) for name, values in self.arrays.items()})

    def last(self, path: str) -> float | None:
        """A number after the last round."""
        return self.final.get(path)

    def mean_of_third(self, path: str) -> float | None:
        """A number's mean over the evaluations in the last third; after the end where it is measured only then."""
        return self.third.get(path, self.final.get(path))

    def only_at_end(self, path: str) -> bool:
        """Whether finishing changed a number, so that the evaluations before are of another model."""
        curve, end = self.curve(path), self.last(path)
        before = curve[-1][1] if curve else None
        return end is not None and (path not in self.third or _changed(before, end))

    def curve(self, path: str) -> list[tuple[int, float]]:
        """A number at every evaluation that was kept, by round."""
        pairs = zip(self.evaluations.get("round", []), self.evaluations.get(path, []), strict=False)
        return [(int(r), v) for r, v in pairs if r is not None and v is not None]


@dataclass
class Store:
    """A folder of cells; what is in it is read once."""

    path: Path
    found: dict[str, StoredCell] = field(default_factory=dict)  # by file
    by_identity: dict[tuple[str, str], list[StoredCell]] = field(default_factory=dict)  # and sources

    @staticmethod
    def open(path: Path) -> "Store":
        """The store in a folder, which need not be there yet."""
        made = Store(path)
        for file in sorted(path.glob("*/*/*/*/*.json")) if path.is_dir() else []:
            made._enter(file.relative_to(path).as_posix(), read_cell(file))
        return made

    def _enter(self, file: str, cell: StoredCell) -> None:
        self.found[file] = cell
        self.by_identity.setdefault((cell.identity, cell.sources), []).append(cell)

    def current(self, cell: PaperCell) -> StoredCell | None:
        """A cell that was finished with today's recipe and sources, in whichever table; None where there is none."""
        same = self.by_identity.get((cell.identity, sources_of(cell)), [])
        wanted = wanted_of(cell)
        return next((one for one in same if wanted <= set(one.kept)), None)

    def stale(self, cell: PaperCell) -> StoredCell | None:
        """What was finished in its place with another recipe or other sources."""
        return self.found.get(cell.file) if self.current(cell) is None else None

    def put(self, cell: PaperCell, made: StoredCell) -> None:
        """Write a finished cell, at once; a stale one in its place is kept under the hash of its sources."""
        before = self.found.get(cell.file)
        if before is not None and (before.identity, before.sources) != (made.identity, made.sources):
            self._write(cell.file.removesuffix(".json") + f".{before.identity[:4]}{before.sources[:4]}.json", before)
        self._write(cell.file, made)

    def replace(self, before: StoredCell, after: StoredCell) -> None:
        """Write a cell anew where it lies."""
        file = next(file for file, cell in self.found.items() if cell is before)
        self.by_identity[before.identity, before.sources].remove(before)
        self._write(file, after)

    def _write(self, file: str, made: StoredCell) -> None:
        target = self.path / file
        target.parent.mkdir(parents=True, exist_ok=True)
        write_file(target, (json.dumps(_without_nothing(made), separators=(",", ":")) + "\n").encode())
        self._enter(file, made)


def _without_nothing(made: StoredCell) -> dict[str, Any]:
    return {key: value for key, value in made.model_dump(mode="json").items() if value not in ({}, None, "")}


def read_cell(file: Path) -> StoredCell:
    """A file of a store, checked."""
    try:
        tree = json.loads((Place(file.parent) / file.name).read_text())
        return StoredCell.model_validate({"evaluations": {}, "third": {}, "final": {}, **tree})
    except (ValueError, TypeError, RecursionError) as error:
        first = error.errors(include_url=False)[0] if isinstance(error, ValidationError) else None
        said = f"{'.'.join(map(str, first['loc']))}: {first['msg']}" if first else str(error)
        raise DataError(f"'{file}' is no cell of a store: {said}") from None


def wanted_of(cell: PaperCell) -> set[str]:
    """What a cell's picture needs beside its numbers."""
    if cell.item.demo:
        return set()
    kept = cell.item.figure.options.get("keeps", []) if cell.item.figure else []
    return {*kept, *cell.item.rows[cell.row].keeps} & set(KEPT)


# ---- from a finished run


def from_run(cell: PaperCell, run: RunFolder) -> StoredCell:
    """A finished run as the store keeps it."""
    summary = run.result()
    if summary is None:
        raise DataError(f"the run at '{run.path}' is not finished")
    final = dict(_finals(summary, cell))
    series, rounds = _series(run)
    for path, values, end in _parts(cell, run):
        series[path], final[path] = values, end
    final |= dict(_derived(cell, series, rounds)) | _clusters(run)
    return StoredCell(
        **_place(cell),
        fingerprint=summary["fingerprint"],
        final={path: _short(value) for path, value in final.items()},
        third=_thirds(series, rounds, final, cell.config.rounds),
        evaluations=_thinned(series, rounds),
        kept=_kept(cell, run),
        minutes=round(own_seconds(summary) / 60, 3),
    )


def from_demo(cell: PaperCell, found: Demo, minutes: float) -> StoredCell:
    """A finished demo as the store keeps it."""
    numbers = {row: {name: _short(value) for name, value in one.items()} for row, one in found.numbers.items()}
    arrays = {name: _four(np.asarray(array, dtype=float)).tolist() for name, array in found.arrays.items()}
    return StoredCell(
        **_place(cell),
        fingerprint=digest([without_clock(numbers), arrays]),
        final={},
        third={},
        evaluations={},
        numbers=numbers,
        arrays=arrays,
        minutes=round(minutes, 3),
    )


def _four(values: np.ndarray) -> np.ndarray:
    """Four digits of each value, and none beyond the fourth after the point."""
    short = [float(f"{value:.4g}") for value in values.ravel().tolist()]
    return np.round(np.array(short).reshape(values.shape), 4)


def without_clock(numbers: Mapping[str, Mapping[str, float | None]]) -> dict[str, dict[str, float | None]]:
    """The numbers of a demo but for those whose names begin with "seconds": time is no result."""
    return {row: {n: v for n, v in one.items() if not n.startswith("seconds")} for row, one in numbers.items()}


def _place(cell: PaperCell) -> dict[str, Any]:
    here = environment()
    return {
        "item": cell.item.id,
        "scale": cell.scale,
        "panel": cell.panel,
        "row": cell.row,
        "seed": cell.seed,
        "identity": cell.identity,
        "sources": sources_of(cell),
        "versions": {name: str(here[name]) for name in ("polyfed", "torch", "python")},
        "cpu": here["cpu"],
        "commit": here["commit"],
    }


def _finals(summary: Mapping[str, Any], cell: PaperCell) -> Iterator[tuple[str, float | None]]:
    """The numbers that are kept: the usual ones of every measure, and what the table shows."""
    shown = {cell.item.of(cell.row, column) for column in cell.item.columns}
    for path, value in _leaves(summary):
        usual = path.rpartition(".")[2] in FIELDS and path.split(".")[0] not in ("personal_before", "validation")
        if usual or path in shown or path.split(".")[0] in WHOLE:
            yield path, value


def _leaves(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, float | None]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{above}{key}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{above}{key}", float(value)


def _series(run: RunFolder) -> tuple[dict[str, dict[int, float]], list[int]]:
    """Every number by round, and the rounds that were evaluated."""
    series: dict[str, dict[int, float]] = {}
    found = records(run.path, "rounds")
    for name in ("accuracy", "miou"):
        if name in found:
            for number, measure, value in zip(found["round"], found["measure"], found[name], strict=True):
                if not math.isnan(value):
                    series.setdefault(f"{measure}.{name}", {})[int(number)] = float(value)
    if len(threats := records(run.path, "threats")):
        for name in ("acc", "asr"):
            pairs = zip(threats["round"], threats[name], strict=True)
            series[f"threats.{name}"] = {int(r): float(v) for r, v in pairs if not math.isnan(v)}
    ends = {path for path in series if path.split(".")[0].endswith("_final")}
    kept = {path: values for path, values in series.items() if path not in ends}
    return kept, sorted({number for values in kept.values() for number in values})


def _derived(
    cell: PaperCell, series: Mapping[str, Mapping[int, float]], rounds: list[int]
) -> Iterator[tuple[str, float | None]]:
    """Numbers made of curves: `rounds_to:personal.accuracy:0.7` is the first evaluated round that has so much."""
    for column in cell.item.columns:
        path = cell.item.of(cell.row, column)
        if path.startswith("rounds_to:"):
            _, of, least = path.split(":")
            reached = [number for number in rounds if series.get(of, {}).get(number, -math.inf) >= float(least)]
            yield path, float(reached[0]) if reached else None


def _clusters(run: RunFolder) -> dict[str, float | None]:
    """How many clusters the clients were in after the last round, where the method makes any."""
    found = memberships(read(run.path))
    return {"clusters": float(len(set(found[max(found)].values())))} if found else {}


def _parts(cell: PaperCell, run: RunFolder) -> Iterator[tuple[str, dict[int, float], float | None]]:
    """Personal accuracy of some clients, by round and at the end: `part:2/5` is the mean of the second fifth."""
    wanted = {cell.item.of(cell.row, column) for column in cell.item.columns}
    found, ends = records(run.path, "clients"), accuracies(run)
    for path in sorted(path for path in wanted if path.startswith("part:")):
        number, of = map(int, path.removeprefix("part:").split("/"))
        chosen = np.array_split(sorted(found["client"].unique()), of)[number - 1]
        here = found[(found["measure"] == "personal") & found["client"].isin(chosen)]
        means = here.groupby("round")["accuracy"].mean().dropna()
        done = [ends[client] for client in chosen.tolist() if client in ends]
        yield path, {int(r): float(v) for r, v in means.items()}, fmean(done) if done else None


def _thirds(
    series: Mapping[str, Mapping[int, float]], rounds: list[int], final: Mapping[str, float | None], all_rounds: int
) -> dict[str, float]:
    """The mean of each number over the last third; where finishing changed a number, only the end counts."""
    late = [number for number in rounds if number > all_rounds * 2 / 3]
    made = {}
    for path, values in series.items():
        there = [values[number] for number in late if number in values]
        end, before = final.get(path), values.get(max(values, default=0))
        if there:
            made[path] = round(end if end is not None and _changed(before, end) else fmean(there), DIGITS)
    return made


def _changed(before: float | None, end: float | None) -> bool:
    """Whether finishing changed a number."""
    return before is not None and end is not None and abs(end - before) > 10**-DIGITS


def _thinned(series: Mapping[str, Mapping[int, float]], rounds: list[int]) -> dict[str, list[float | None]]:
    """Every number at equally spaced evaluations, the last among them."""
    step = max(1, -(-len(rounds) // MOST))
    chosen = rounds[::-1][::step][::-1]
    columns: dict[str, list[float | None]] = {"round": [float(number) for number in chosen]}
    return columns | {path: [_short(values.get(n)) for n in chosen] for path, values in series.items()}


def _kept(cell: PaperCell, run: RunFolder) -> dict[str, list[float | None]]:
    """What the picture needs: each client's accuracy or cluster, or each class's recall over all clients.

    Clusters are kept wherever all clients have one, because the picture of them is of another table's runs.
    """
    wanted = wanted_of(cell)
    made: dict[str, list[float | None]] = {}
    if cell.config.participation == 1 and (found := memberships(read(run.path))):
        placed = {client: label for _, labels in sorted(found.items()) for client, label in labels.items()}
        made["clusters"] = [placed.get(client) for client in range(max(placed) + 1)]
    if "clients" in wanted:
        made["clients"] = [round(value, 4) for _, value in sorted(accuracies(run).items())]
    if "classes" in wanted:
        counts = (run.counts() or {}).get("final_personal")
        shares = recalls(np.sum(counts, axis=0)).tolist() if counts is not None else []
        made["classes"] = [None if math.isnan(value) else round(value, 4) for value in shares]
    return made


def _short(value: float | None) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return round(float(value), DIGITS)
