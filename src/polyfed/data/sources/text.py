"""A table of texts: each row has a text, a label, and the client whose it is."""

from pathlib import Path
from typing import Literal

from polyfed.data.sources.base import AtSites, Dataset, source
from polyfed.data.sources.found import gathered
from polyfed.data.sources.raw import Classes
from polyfed.data.sources.tables import Columns, Table, has_column
from polyfed.data.tokens import Tokenizer
from polyfed.errors import DataError, UsageError
from polyfed.files import read_plain
from polyfed.registry import param

ENDINGS = (".csv", ".jsonl", ".parquet")


@source("text")
class Text(AtSites):
    """A .csv, .jsonl or .parquet file with a text per row, made into tokens: words hashed to ids, or bytes."""

    file: Path = param(..., "the table: a .csv, .jsonl or .parquet file with a row per text (a real site has its own)")
    text: str = param("text", "column with the text")
    label: str = param("label", "column with the label: a word, or a number from 0 on")
    client: str = param("client", "column with the client's name, if there is one")
    split: str = param("split", "column with train or test, if there is one; other rows than test are trained on")
    by: Literal["words", "bytes"] = param("words", "what a token is")
    ids: int = param(4096, "kinds of tokens, padding included, to which words are hashed", ge=2)
    length: int = param(64, "tokens of a text; longer texts are cut and counted, shorter ones padded", ge=1)
    vocabulary: Path | None = param(None, "a file with a word per line; by default words are hashed")
    classes: Classes = param(None, "how many classes there are, or their names; by default those found")

    @property
    def natural_partition(self) -> str:
        """One client of each name, where the table names them."""
        return "users" if has_column(self._table, self.client) else super().natural_partition

    @property
    def _table(self) -> Path:
        return self.file.expanduser()

    @property
    def kinds(self) -> int:
        """How many ids its tokens have."""
        return self.tokenizer().kinds

    def tokenizer(self) -> Tokenizer:
        """What makes its texts tokens."""
        words = None
        if self.vocabulary is not None:
            try:
                words = tuple(dict.fromkeys(read_plain(self.vocabulary.expanduser()).decode().lower().split()))
            except (OSError, UnicodeDecodeError) as error:
                raise DataError(f"text: the vocabulary '{self.vocabulary}' cannot be read: {error}") from None
        return Tokenizer(by=self.by, ids=self.ids, length=self.length, vocabulary=words)

    def home(self) -> Path:
        return self._table.parent if self.root is None else super().home()

    def load(self) -> Dataset:
        return self._read(self._table)

    def of_one(self, folder: Path) -> Dataset:
        if self.vocabulary is not None:
            raise UsageError(
                "data.vocabulary is a file on one machine, and sites with other words would number them differently: "
                "leave it out, and words are hashed"
            )
        return self._read(folder / self.file.name, folder.name)

    def _read(self, file: Path, client: str | None = None) -> Dataset:
        """One table; all of its texts are one client's, where that is given."""
        if file.suffix.lower() not in ENDINGS or not file.is_file():
            what = "does not exist" if not file.exists() else f"is no {' or '.join(ENDINGS)} file"
            raise DataError(f"{self.name}: {file} {what}")
        table = Table(file, Columns("", self.label, self.client, self.split, (self.text,), (self.text,)))
        tokenizer = self.tokenizer()
        x, notes = tokenizer.rows(table.texts(self.text))
        found = gathered(self.name, table.parts(file.parent, None, self.classes, client, x))
        reads = {"text": {"column": self.text, **tokenizer.model_dump(mode="json")}}
        return found.dataset(self.name, self.classes, None, notes, reads=reads)
