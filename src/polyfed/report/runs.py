"""Runs as people see them: found in directories, told apart by labels, their records read from disk."""

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from polyfed.comparison.folder import ComparisonFolder, Found, accuracies, is_comparison
from polyfed.comparison.grid import check_baseline
from polyfed.comparison.values import value_at, word
from polyfed.config import BESIDE, Tree, flatten
from polyfed.engine.checkpoint import other_config
from polyfed.engine.run_folder import RunFolder
from polyfed.errors import DataError
from polyfed.files import Place
from polyfed.measure.recorder import FIELDS, LATER
from polyfed.measure.stored import Environment, Federation, read_json

FREE = ("seed", "engine", "device", "eval", "checkpoint", *BESIDE)  # sections that make no other experiment
FEDERATION = ("data", "split", "model")  # runs that differ here are shown apart; others side by side
WHOLE = ("round", "client", "class")  # columns that hold whole numbers, in every row
WORDS = ("measure", "name", "status", "reason")  # columns of records that hold no number
ALWAYS = ("rounds", "clients", "training", "spent")  # tables that every finished run has
USUAL = ("fedavg", "local")  # what others are set against where nobody says


@dataclass(frozen=True)
class Shown:
    """A run as people see it: its place in a comparison, and what its directory holds."""

    path: Path
    row: str
    setting: Mapping[str, Any]
    config: Tree
    summary: Mapping[str, Any] | None
    own: Mapping[str, Any] = field(default_factory=dict)  # of the keys that rows of a comparison set for themselves
    tables: dict[str, pandas.DataFrame] = field(default_factory=dict, repr=False, compare=False)  # those read so far

    @property
    def seed(self) -> int:
        """Its seed."""
        return int(self.config["seed"])

    @property
    def finished(self) -> bool:
        """Whether it came to its end."""
        return self.summary is not None

    @property
    def rounds(self) -> int:
        """How many rounds it is to have."""
        return int(self.config["rounds"])

    def records(self, table: str) -> pandas.DataFrame:
        """One of its tables; empty where nothing is recorded yet."""
        if table not in self.tables:
            self.tables[table] = records(self.path, table)
        return self.tables[table]

    def arrays(self, name: str) -> dict[int, np.ndarray]:
        """What its method recorded under a name, by round."""
        place, form = Place(self.path) / "arrays", re.compile(rf"{re.escape(name)}-(\d{{6}})\.npy")
        found = [match for match in map(form.fullmatch, place.names()) if match]
        try:
            return {int(match[1]): _array((place / match[0]).read_bytes()) for match in found}
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"the run at '{self.path}' is corrupt: arrays/{name}: {error}") from None

    @cached_property
    def federation(self) -> dict[str, Any] | None:
        """Who takes part and holds what; None where it was not written down."""
        return read_json(Place(self.path) / "federation.json", Federation)

    @cached_property
    def environment(self) -> dict[str, Any]:
        """What the bits may depend on."""
        return read_json(Place(self.path) / "environment.json", Environment) or {}

    def remarks(self) -> list[str]:
        """Which records of a finished run are gone, and whether its config is still the one it ran with."""
        folder = RunFolder(self.path)
        gone = [f"{table}.csv" for table in ALWAYS if self.finished and not (folder.place / f"{table}.csv").exists()]
        said = [f"the run at '{self.path}' has no {' and no '.join(gone)}: what is drawn from it is left out"]
        return [*(said if gone else []), *other_config(folder)]

    def found(self) -> Found:
        """Its place in a table; only for a finished one."""
        clients = accuracies(RunFolder(self.path))
        return Found(self.row, self.seed, self.summary or {}, self.setting, clients, self.own)


@dataclass(frozen=True)
class Selection:
    """The runs of a report, in order, and the row the others are set against."""

    runs: Sequence[Shown]
    baseline: str | None = None
    missing: int = 0  # cells of comparisons that have not begun
    sources: Sequence[Path] = field(default_factory=tuple)

    @property
    def rows(self) -> list[str]:
        """The labels of what is compared; each has its colour."""
        return list(dict.fromkeys(run.row for run in self.runs))

    def remarks(self) -> list[str]:
        """What is wrong with the files of these runs, though all that is left of them can be shown."""
        return [remark for run in self.runs for remark in run.remarks()]

    def by_setting(self) -> dict[str, list[Shown]]:
        """The runs that may be set against each other, by what they have in common."""
        groups: dict[str, list[Shown]] = {}
        for run in self.runs:
            words = [f"{key} = {word(value)}" for key, value in run.setting.items()]
            groups.setdefault(", ".join(words), []).append(run)
        return groups

    @property
    def against(self) -> str | None:
        """The baseline that was chosen, or the usual one; None where there is nothing to compare."""
        if len(self.rows) < 2:
            return None
        usual = [run.row for name in USUAL for run in self.runs if run.config["method"]["name"] == name]
        return next((name for name in (self.baseline, *usual) if name in self.rows), self.rows[0])


def by_row(runs: Iterable[Shown]) -> dict[str, list[Shown]]:
    """The seeds of each row."""
    rows: dict[str, list[Shown]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        rows.setdefault(run.row, []).append(run)
    return rows


def select(paths: Sequence[Path], baseline: str | None = None) -> Selection:
    """The runs in directories: runs, comparisons, or folders of runs."""
    runs: dict[Path, Shown] = {}
    grids = {path: ComparisonFolder.existing(path) for path in paths if is_comparison(path)}
    for path in paths:
        for run in _of_grid(grids[path]) if path in grids else _of_folder(path):
            runs.setdefault(run.path.resolve(), run)
    if not runs:
        raise DataError(f"no run has begun in {', '.join(repr(str(path)) for path in paths)}")
    one_grid = len(paths) == len(grids) == 1
    made = list(runs.values()) if one_grid else apart(list(runs.values()))
    chosen = [baseline, *(folder.grid.baseline for folder in grids.values())]
    missing = sum(not folder.run(cell).config.exists() for folder in grids.values() for cell in folder.grid.cells)
    selection = Selection(made, next(filter(None, chosen), None), missing, tuple(paths))
    if baseline is not None:
        check_baseline(baseline, selection.rows)
    return selection


def _of_grid(folder: ComparisonFolder) -> list[Shown]:
    begun = {cell: folder.run(cell).path for cell in folder.grid.cells if folder.run(cell).config.exists()}
    shown = {cell: read(path) for cell, path in begun.items()}
    return [replace(run, row=cell.row, setting=cell.setting, own=folder.own(run.config)) for cell, run in shown.items()]


def _of_folder(path: Path) -> list[Shown]:
    if not path.is_dir():
        raise DataError(f"there is no run at '{path}'")
    if RunFolder(path).config.is_file():
        return [read(path)]
    inside = sorted(one for one in path.iterdir() if RunFolder(one).config.is_file())
    if not inside and not is_comparison(path):
        raise DataError(f"'{path}' is neither a run nor a comparison: it has no config.yaml, nor has a folder in it")
    return [read(one) for one in inside]


def read(path: Path) -> Shown:
    """A run, or the sentence that says what is wrong with it."""
    folder = RunFolder.existing(path)
    config, summary = folder.tree(), folder.result()
    sections = [key for key in ("method", "data", "split", "model") if not isinstance(config.get(key), dict)]
    plain = [key for key in ("seed", "rounds") if type(config.get(key)) is not int]
    if sections or plain or not isinstance(config["method"].get("name"), str):
        raise DataError(f"the run at '{path}' is corrupt: config.yaml has no '{(sections + plain + ['method'])[0]}'")
    return Shown(path, str(config["method"]["name"]), {}, config, summary)


# ---- telling runs apart


def apart(runs: list[Shown]) -> list[Shown]:
    """Runs with settings and rows that say how they differ: other federations in the setting, the rest in the row."""
    given = list(dict.fromkeys(key for run in runs for key in run.setting))
    differing = [k for k in _differing(runs) if not any(k == g or k.startswith(f"{g}.") for g in given)]
    keys = [k for k in differing if k.split(".")[0] in FEDERATION]
    settled = [
        replace(run, setting={key: run.setting.get(key, _value(run, key)) for key in (*given, *keys)}) for run in runs
    ]
    others = [key for key in differing if key not in keys and not key.startswith("method.")]
    return [_named_apart(run, settled, others) for run in settled]


def _named_apart(run: Shown, runs: list[Shown], others: list[str]) -> Shown:
    """A run whose row says what it does otherwise than most; its directory's name, if nothing else tells it apart."""
    alike = [one for one in runs if _place(one) == _place(run)]
    own = [key for key in _differing(alike) if key.startswith("method.")]
    unusual = [key for key in others if 2 * sum(_value(o, key) == _value(run, key) for o in runs) <= len(runs)]
    words = [f"{key.removeprefix('method.')}={word(_value(run, key))}" for key in (*own, *unusual)]
    twins = [o for o in alike if o.seed == run.seed and all(_value(o, k) == _value(run, k) for k in (*own, *others))]
    return replace(run, row=", ".join([run.row, *words, *([run.path.name] if len(twins) > 1 else [])]))


def _place(run: Shown) -> tuple[str, str]:
    return run.row, repr(run.setting)


def _differing(runs: Sequence[Shown]) -> list[str]:
    """The keys two runs of one method may differ in and these do; what only one of them has is its method's own."""
    trees = [flatten({k: v for k, v in run.config.items() if k not in FREE}) for run in runs]
    common = [key for key in trees[0] if all(key in tree for tree in trees)]
    names = len({run.config["method"]["name"] for run in runs})
    shared = [key for key in common if names == 1 or not key.startswith("method.")]
    return [key for key in shared if any(tree[key] != trees[0][key] for tree in trees)]


def _value(run: Shown, key: str) -> Any:
    return value_at(run.config, key)


# ---- files


def _array(content: bytes) -> np.ndarray:
    return np.load(io.BytesIO(content), allow_pickle=False)


def records(path: Path, table: str) -> pandas.DataFrame:
    """A table of a run's records; whole lines only, as a run may be writing the last one; empty where there is none."""
    try:
        text = (Place(path) / f"{table}.csv").read_text()
    except FileNotFoundError:
        text = ""
    except (IsADirectoryError, UnicodeDecodeError) as error:
        raise DataError(f"the run at '{path}' is corrupt: {table}.csv: {error}") from None
    whole = text[: text.rfind("\n") + 1]
    if not whole:
        return pandas.DataFrame(columns=FIELDS[table])
    try:
        found = pandas.read_csv(io.StringIO(whole))
        for name in found.columns.difference(WORDS):
            found[name] = pandas.to_numeric(found[name])
        complaint = _strange(found, [name for name in FIELDS[table] if name not in LATER.get(table, ())])
    except (ValueError, TypeError, OverflowError) as error:
        complaint = str(error)
    if complaint:
        raise DataError(f"the run at '{path}' is corrupt: {table}.csv: {complaint}") from None
    return found


def _strange(found: pandas.DataFrame, fields: Sequence[str]) -> str:
    """What is wrong with a table, or nothing."""
    missing = [name for name in fields if name not in found]
    if missing:
        return f"it has no column '{missing[0]}'"
    for name in found.columns.difference(WORDS):
        if np.isinf(found[name]).any() or (name in WHOLE and not (found[name] % 1 == 0).all()):
            return f"the column '{name}' holds something else than {'whole' if name in WHOLE else 'finite'} numbers"
    return ""
