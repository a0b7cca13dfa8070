"""A table that lists samples: who holds each, what it is, and whether it is an official test."""

from pathlib import Path
from typing import ClassVar

from polyfed.data.sources.base import TABLES, Dataset, Source, source
from polyfed.data.sources.found import gathered
from polyfed.data.sources.raw import Classes
from polyfed.data.sources.tables import Columns, Table, has_column
from polyfed.errors import DataError
from polyfed.registry import param


@source("manifest")
class Manifest(Source):
    """A CSV or Parquet file with a row per sample: a label, and numbers or the path of a picture."""

    of_pictures: ClassVar[bool] = True

    file: Path = param(..., "the table: a .csv or .parquet file with a row per sample")
    root: Path | None = param(None, "folder that relative paths start from; by default that of the table")
    path: str = param("path", "column with the path of a picture, if there is one")
    label: str = param("label", "column with the label: a word, or a number from 0 on")
    client: str = param("client", "column with the client's name, if there is one")
    split: str = param("split", "column with train or test, if there is one; other rows than test are trained on")
    features: tuple[str, ...] | None = param(
        None, "columns of numbers; by default all others, where there are no paths"
    )
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
        if self._table.suffix.lower() not in TABLES or not self._table.is_file():
            what = "does not exist" if not self._table.exists() else f"is no {' or '.join(TABLES)} file"
            raise DataError(f"{self.name}: {self._table} {what}")
        table = Table(self._table, Columns(self.path, self.label, self.client, self.split, self.features))
        side = None if self.size == "auto" else self.size
        return gathered(self.name, table.parts(self.home(), side, self.classes)).dataset(self.name, self.classes, side)
