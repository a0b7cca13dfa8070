"""A table that lists samples: who holds each, what it is, and whether it is an official test."""

from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from polyfed.data.sources.base import TABLES, AtSites, Dataset, source
from polyfed.data.sources.found import gathered
from polyfed.data.sources.raw import Classes
from polyfed.data.sources.tables import Columns, Table, category_ids, has_column
from polyfed.errors import DataError
from polyfed.registry import param


@source("manifest")
class Manifest(AtSites):
    """A CSV or Parquet file with a row per sample: a label, and numbers or the path of a picture."""

    of_pictures: ClassVar[bool] = True

    file: Path = param(..., "the table: a .csv or .parquet file with a row per sample (a real site has its own)")
    root: Path | None = param(None, "folder that relative paths start from; by default that of the table")
    path: str = param("path", "column with the path of a picture, if there is one")
    label: str = param("label", "column with the label: a word, or a number from 0 on")
    client: str = param("client", "column with the client's name, if there is one")
    split: str = param("split", "column with train or test, if there is one; other rows than test are trained on")
    features: tuple[str, ...] | None = param(
        None, "columns of numbers; by default all others, where there are no paths"
    )
    categories: dict[str, tuple[str, ...]] = param({}, "columns of words, each with the categories it may hold")
    normalise: bool = param(False, "numbers less their mean, by their spread, both over all clients' training rows")
    missing: Literal["refuse", "mean"] = param("refuse", "what a missing number is: an error, or its client's mean")
    classes: Classes = param(None, "how many classes there are, or their names; by default those found")

    @property
    def natural_partition(self) -> str:
        """One client of each name, where the table names them."""
        return "users" if has_column(self._table, self.client) else super().natural_partition

    @property
    def _table(self) -> Path:
        return self.file.expanduser()

    def home(self) -> Path:
        return self._table.parent if self.root is None else super().home()

    def load(self) -> Dataset:
        return self._read(self._table, self.home())

    def of_one(self, folder: Path) -> Dataset:
        return self._read(folder / self.file.name, folder, folder.name)

    def _read(self, file: Path, home: Path, client: str | None = None) -> Dataset:
        """One table; all of its rows are one client's, where that is given."""
        if file.suffix.lower() not in TABLES or not file.is_file():
            what = "does not exist" if not file.exists() else f"is no {' or '.join(TABLES)} file"
            raise DataError(f"{self.name}: {file} {what}")
        names = (self.path, self.label, self.client, self.split, self.features)
        table = Table(file, Columns(*names, tuple(self.categories), self.missing == "mean"))
        if not self._as_they_are:
            return self._of_columns(table, client)
        side = None if self.size == "auto" else self.size
        found = gathered(self.name, table.parts(home, side, self.classes, client))
        return found.dataset(self.name, self.classes, side, columns=table.named)

    @property
    def _as_they_are(self) -> bool:
        return not (self.categories or self.normalise or self.missing == "mean")

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many categories each column of words may hold."""
        return tuple(len(words) for words in self.categories.values())

    def _of_columns(self, table: Table, client: str | None) -> Dataset:
        """Rows of ids and numbers: categories first, as they are declared, then the numbers."""
        if table.of_pictures:
            raise DataError(f"{self.name}: data.categories, normalise and missing are for numbers, not for pictures")
        columns = {name: table.column(name) for name in self.categories}
        numbers = table.numbers()
        ids, notes = category_ids(columns, self.categories, len(numbers))
        x = np.concatenate([ids, numbers], axis=1)
        missing = int(np.isnan(numbers).sum())
        notes |= {"missing_values": missing} if missing else {}
        found = gathered(self.name, table.parts(table.file.parent, None, self.classes, client, x))
        reads = {"table": {"categories": self.model_dump(mode="json")["categories"], "numbers": table.features}}
        told = {"categories": self.sizes, "incomplete": missing > 0, "reads": reads, "columns": table.named}
        return found.dataset(self.name, self.classes, None, notes, **told, unscaled=self.normalise)
