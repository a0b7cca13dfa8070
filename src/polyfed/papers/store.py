"""The store: one small JSON file for each finished cell of a paper's table, so that no cell is computed twice."""

import csv
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from polyfed.comparison.folder import Found
from polyfed.comparison.grid import Cell
from polyfed.comparison.standing import own_seconds
from polyfed.config import Config
from polyfed.config.keys import deciding
from polyfed.engine.run_folder import RunFolder
from polyfed.errors import DataError
from polyfed.files import write_file
from polyfed.measure.stored import Environment, read_json
from polyfed.papers.sources import sources_hash

DIGITS = 6
VERSIONS = ("polyfed", "torch", "numpy", "python")
LEFT_OUT = ("run", "bytes", "keeps", "personal_before")  # of a summary: paths, and what the store does not show


class Kept(BaseModel):
    """One finished cell: what was run, what came out, and by which sources and machine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    config: dict[str, Any]  # the keys that decide its bits
    fingerprint: str
    summary: dict[str, Any]
    evaluations: dict[str, dict[str, float]]  # round -> measure -> accuracy
    sources: str
    versions: dict[str, str]
    cpu: str
    commit: str | None
    minutes: float

    def made_by(self, config: Config) -> bool:
        """Whether today's sources would run the same code for it."""
        return self.sources == sources_hash(config)

    def last_third(self, measure: str) -> float | None:
        """The mean accuracy over the evaluations in the last third of the rounds."""
        last = self.config["rounds"]  # what follows is measured after `finish`
        rounds = [round for round in self.evaluations if last * 2 / 3 < int(round) <= last]
        late = [self.evaluations[round][measure] for round in rounds if measure in self.evaluations[round]]
        return sum(late) / len(late) if late else None


@dataclass(frozen=True)
class Store:
    """A folder of finished cells."""

    path: Path

    def keep(self, place: str, cell: Cell, run: RunFolder, sources: str | None = None) -> Path:
        """Write a finished run down under a table's place; `sources` names the hash if other sources made it."""
        file = self.path / place / f"{cell.name}.json"
        kept = _cell_of(run, cell.config, sources or sources_hash(cell.config))
        file.parent.mkdir(parents=True, exist_ok=True)
        write_file(file, (json.dumps(kept.model_dump(), separators=(",", ":"), sort_keys=True) + "\n").encode())
        return file

    def files(self) -> Iterator[Path]:
        """Every file of the store, in order of their names."""
        yield from sorted(self.path.rglob("*.json"))

    def read(self, file: Path) -> Kept:
        """One cell; a file that holds something else is refused."""
        try:
            return Kept.model_validate_json(file.read_bytes())
        except (ValidationError, OSError) as error:
            raise DataError(f"'{file}' is not a stored cell: {str(error).splitlines()[0]}") from None

    def find(self, config: Config) -> Kept | None:
        """The cell of the same experiment that today's sources would repeat, wherever in the store it lies."""
        return next((kept for kept in self._same(config) if kept.made_by(config)), None)

    def stale(self, config: Config) -> bool:
        """Whether the experiment is there, but only as other sources made it."""
        same = list(self._same(config))
        return bool(same) and not any(kept.made_by(config) for kept in same)

    def _same(self, config: Config) -> Iterator[Kept]:
        wanted = deciding(config.dump())
        yield from (kept for kept in map(self.read, self.files()) if kept.config == wanted)

    def found(self, cell: Cell) -> Found | None:
        """A stored cell as a comparison shows it."""
        kept = self.find(cell.config)
        return None if kept is None else Found(cell.row, cell.seed, kept.summary, cell.setting)


def _cell_of(run: RunFolder, config: Config, sources: str) -> Kept:
    summary = run.result()
    if summary is None:
        raise DataError(f"'{run.path}' is not finished")
    around = read_json(run.place / "environment.json", Environment) or {}
    return Kept(
        config=deciding(config.dump()),
        fingerprint=summary["fingerprint"],
        summary=_rounded({key: value for key, value in summary.items() if key not in LEFT_OUT}),
        evaluations=_evaluations(run),
        sources=sources,
        versions={name: str(around.get(name, "unknown")) for name in VERSIONS},
        cpu=f"{around.get('cpu', 'unknown')}, {around.get('capability', 'unknown')}",
        commit=around.get("commit"),
        minutes=round(own_seconds(summary) / 60, 2),
    )


def _evaluations(run: RunFolder) -> dict[str, dict[str, float]]:
    made: dict[str, dict[str, float]] = {}
    text = (run.path / "rounds.csv").read_text(encoding="utf-8")
    for row in csv.DictReader(io.StringIO(text)):
        if row["accuracy"]:
            made.setdefault(row["round"], {})[row["measure"]] = round(float(row["accuracy"]), DIGITS)
    return made


def _rounded(value: Any) -> Any:
    """Numbers with as many digits as anybody compares."""
    if isinstance(value, float):
        return round(value, DIGITS)
    if isinstance(value, Mapping):
        return {key: _rounded(one) for key, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list) else value
