"""Rows of the papers' tables that are settings of a method, by the names that a comparison may use."""

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from polyfed.config import Tree, read_yaml


@dataclass(frozen=True)
class PaperRow:
    """A row of a paper: what it is, where it stands, the keys that make it, and the number that is printed of it."""

    name: str
    what: str
    table: str
    keys: Tree
    reads: str

    @property
    def method(self) -> str:
        """The method that it is a setting of."""
        return self.keys["method"]["name"]


@cache
def named_rows() -> dict[str, PaperRow]:
    """Every row, by its name."""
    text = files("polyfed.comparison").joinpath("rows.yaml").read_text()
    return {name: PaperRow(name, **row) for name, row in read_yaml(text, "rows.yaml").items()}
