"""Tables of samples, as CSV or Parquet: a row has a label, and numbers or the path of a picture."""

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from polyfed.data.sources.found import Part
from polyfed.data.sources.pictures import read_image
from polyfed.data.sources.raw import Classes, Side
from polyfed.errors import DataError
from polyfed.files import plain_file

Frame = Any  # a pandas DataFrame; pandas is imported where a table is read


class Unclear(DataError):
    """A table is not what it is taken for; keys of a config may say how it is read."""


class Columns(NamedTuple):
    """What the columns of a table are called; `features` are all others, where there is no column of paths."""

    path: str = "path"
    label: str = "label"
    client: str = "client"
    split: str = "split"
    features: tuple[str, ...] | None = None
    words: tuple[str, ...] = ()  # columns that are read as text
    missing: bool = False  # whether a number may be missing: it is NaN then


class Table:
    """One file, and how its columns are called."""

    def __init__(self, file: Path, columns: Columns = Columns()):  # noqa: B008
        self.file, self.columns = file, columns
        self.frame = self._read()
        if columns.label and columns.label not in self.frame:
            found = ", ".join(map(str, self.frame.columns[:10]))
            raise Unclear(f"{file} has no column '{columns.label}' for the labels; its columns are {found}")

    @property
    def of_pictures(self) -> bool:
        """Whether its rows name pictures."""
        return self.columns.features is None and self.columns.path in self.frame

    @property
    def beside(self) -> set[str]:
        """What it names of the folder it lies in."""
        return {Path(path).parts[0] for path in self._words(self.columns.path)} if self.of_pictures else set()

    def parts(
        self,
        root: Path,
        side: Side | None = None,
        classes: Classes = None,
        client: str | None = None,
        x: np.ndarray | None = None,
    ) -> list[Part]:
        """Its training and test rows; pictures lie under `root`, and everything is one client's if it is given.

        Where `x` is given, it holds a sample for each row, made by whoever asks.
        """
        labels, users, tests = self._labels(classes), self._users(client), self._tests()
        if self.of_pictures:
            files = [root / path for path in self._words(self.columns.path)]
            owners = users.tolist() if isinstance(users, np.ndarray) else [users] * len(files)
            return [
                Part(str(file), read_image(file, side)[None], labels[at : at + 1], owners[at], bool(tests[at]))
                for at, file in enumerate(files)
            ]
        x = self.numbers() if x is None else x
        return [
            Part(str(self.file), x[rows], labels[rows], users[rows] if isinstance(users, np.ndarray) else users, test)
            for rows, test in ((~tests, False), (tests, True))
        ]

    def texts(self, name: str) -> list[str]:
        """A column of text; a missing one is told."""
        if name not in self.frame:
            raise DataError(
                f"{self.file} has no column '{name}'; its columns are {', '.join(map(str, self.frame.columns[:10]))}"
            )
        return self._words(name)

    def column(self, name: str) -> list[str | None]:
        """A column of words, of which some may be missing."""
        if name not in self.frame:
            raise DataError(f"{self.file} has no column '{name}', which data.categories names")
        column = self.frame[name]
        return [None if gone else str(word) for word, gone in zip(column.tolist(), column.isna().tolist(), strict=True)]

    def _read(self) -> Frame:
        import pandas

        named = {name: str for name in (*self.columns[:4], *self.columns.words) if name}
        try:
            file = plain_file(self.file)
            if self.file.suffix.lower() == ".parquet":
                return pandas.read_parquet(file)
            if self.file.suffix.lower() == ".jsonl":
                lines = file.read_text(encoding="utf-8-sig").splitlines()
                return pandas.DataFrame([json.loads(line) for line in lines if line.strip()])
            # without index_col=False, lines longer than the first would push the values into other columns
            how = {"index_col": False, "keep_default_na": False, "na_values": [""], "low_memory": False}
            with warnings.catch_warnings(action="error", category=pandas.errors.ParserWarning):
                return pandas.read_csv(file, dtype=named, encoding="utf-8-sig", **how)
        except ImportError:
            need = "reading Parquet needs pyarrow: pip install 'polyfed[parquet]', or write the table as CSV"
            raise DataError(f"{self.file}: {need}") from None
        except Exception as error:  # parsers and the file system each have their own
            why = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise DataError(f"{self.file} is not a readable table: {why}") from None

    def _row(self, at: int) -> str:
        """A row as its reader finds it: the first line of a CSV file holds the names."""
        return f"line {at + 2}" if self.file.suffix.lower() == ".csv" else f"row {at}"

    def _words(self, name: str) -> list[str]:
        """A column as text; a missing value is told."""
        column = self.frame[name]
        self._complete(name, column)
        return [str(value) for value in column.tolist()]

    def _complete(self, name: str, column: Any, kind: type[DataError] = DataError) -> None:
        missing = np.flatnonzero(column.isna().to_numpy())
        if len(missing):
            more = f", as have {len(missing) - 1} others" if len(missing) > 1 else ""
            raise kind(f"{self.file}: {self._row(missing[0])} has no value in the column '{name}'{more}")

    def _labels(self, classes: Classes) -> np.ndarray:
        """Whole numbers where all labels are, unless they are names of declared classes; else words."""
        words = self._words(self.columns.label)
        named = isinstance(classes, tuple) and set(words) <= set(classes)
        if words and not named and all(word.isdecimal() for word in words):
            return np.array([int(word) for word in words], np.int64)
        return np.array(words, str)

    def _users(self, client: str | None) -> np.ndarray | str | None:
        """The client of each row, or the one that all of them belong to."""
        named = self.columns.client in self.frame
        if client is None:
            return np.array(self._words(self.columns.client), str) if named else None
        found = sorted(set(self._words(self.columns.client))) if named else []
        if len(found) > 1:
            both = f"'{found[0]}' and '{found[1]}'"
            raise DataError(f"{self.file} lies in the folder of one client, and holds rows of {both}")
        return client

    def _tests(self) -> np.ndarray:
        """Which rows are the official test."""
        name = self.columns.split
        words = self._words(name) if name in self.frame else ["train"] * len(self.frame)
        for at, word in enumerate(words):
            if word not in ("train", "test"):
                expected = "expected train or test (split.val cuts a validation part)"
                raise DataError(f"{self.file}: {self._row(at)} has '{word}' in the column '{name}', {expected}")
        return np.array(words, str) == "test"

    @property
    def features(self) -> list[str]:
        """The columns of numbers."""
        words = self.columns.words
        if self.columns.features is not None:
            return [name for name in self.columns.features if name not in words]
        return [name for name in self.frame.columns if name not in (*self.columns[:4], *words)]

    @property
    def named(self) -> tuple[str, ...]:
        """The names that its numbers have; none where its rows name pictures."""
        return () if self.of_pictures else tuple(map(str, self.features))

    def numbers(self) -> np.ndarray:
        """The feature columns as float32 [N, columns]; a missing number is NaN, where it may be missing."""
        names = self.features
        if not names and self.columns.words:
            return np.zeros((len(self.frame), 0), np.float32)
        if not names:
            raise DataError(f"{self.file} has neither a column '{self.columns.path}' nor columns of numbers")
        for name in names:
            if name not in self.frame:
                raise DataError(f"{self.file} has no column '{name}', which data.features names")
            column = self.frame[name]
            if not self.columns.missing:
                self._complete(name, column, Unclear)
            if column.dtype.kind not in "uifb":
                strange = next(at for at, value in enumerate(column.tolist()) if not _is_number(value))
                told = f"{column.tolist()[strange]!r} in {self._row(strange)}"
                raise Unclear(
                    f"{self.file}: the column '{name}' holds {told}, and features are numbers: data.features names them"
                )
        return self.frame[names].to_numpy(np.float32)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def same_columns(name: str, columns: Mapping[Path, tuple[str, ...]]) -> tuple[str, ...]:
    """The columns of numbers that all of these tables have, in one order; tables that differ are refused.

    A number has no name once it is read: taken by its place, an age would be a dose elsewhere.
    """
    first, wanted = next(iter(columns.items()), (Path(), ()))
    for file, names in columns.items():
        if names != wanted:
            here, there = (", ".join(some[:10]) for some in (names, wanted))
            said = f"the columns of {file} are {here}, those of {first} {there}"
            raise DataError(f"{name}: {said}; they must be the same, in the same order")
    return wanted


def category_ids(
    columns: Mapping[str, Sequence[str | None]], declared: Mapping[str, Sequence[str]], rows: int
) -> tuple[np.ndarray, dict[str, int]]:
    """Columns of words as ids from 1 on [N, columns]; 0 for a word that is not declared or is missing, and their count.

    The categories are declared, not collected: which words a client holds is its own affair.
    """
    notes = {"unseen_categories": 0, "missing_categories": 0}
    ids = np.zeros((rows, len(columns)), np.float32)
    for at, (name, words) in enumerate(columns.items()):
        place = {word: id for id, word in enumerate(declared[name], 1)}
        ids[:, at] = [0 if word is None else place.get(word, 0) for word in words]
        notes["missing_categories"] += sum(word is None for word in words)
        notes["unseen_categories"] += sum(word is not None and word not in place for word in words)
    return ids, {name: count for name, count in notes.items() if count}


def has_column(file: Path, name: str) -> bool:
    """Whether a table has a column; taken for granted where it cannot be told yet."""
    try:
        if file.suffix.lower() == ".parquet":
            from pyarrow import parquet

            return name in parquet.read_schema(file).names
        if file.suffix.lower() == ".jsonl":
            with plain_file(file).open(encoding="utf-8-sig") as lines:
                return name in json.loads(lines.readline())
        import pandas

        return name in pandas.read_csv(plain_file(file), nrows=0, encoding="utf-8-sig")
    except Exception:  # what is wrong is said where the table is read
        return True
