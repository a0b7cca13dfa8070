"""Which data sets a table, a figure or a cell needs, and whether they are here."""

from collections.abc import Sequence
from typing import Any

from polyfed.config import registry_of
from polyfed.errors import PolyfedError
from polyfed.papers.cell import PaperCell

ALWAYS_HERE = ("digits", "arrays")


def with_data(cells: Sequence[PaperCell]) -> list[PaperCell]:
    """The cells whose data are here."""
    known: dict[str, bool] = {}
    made = []
    for cell in cells:
        key = str([data_names(cell), cell.tree.get("data")])
        if key not in known:
            known[key] = _has_data(cell)
        made += [cell] if known[key] else []
    return made


def _has_data(cell: PaperCell) -> bool:
    if cell.item.needs or cell.item.demo:
        return all(map(is_here, cell.item.needs))
    return _there(cell.config.data)


def data_names(cell: PaperCell) -> list[str]:
    """The data sets a cell needs."""
    if cell.item.needs or cell.item.demo:
        return list(cell.item.needs)
    return [str(cell.tree.get("data", {"name": "digits"})["name"])]


def data_of(cells: Sequence[PaperCell]) -> list[str]:
    """The data sets that some cells need."""
    return list(dict.fromkeys(name for cell in cells for name in data_names(cell)))


def is_here(name: str) -> bool:
    """Whether there are files where a data set is looked for; whether they are complete is seen when they are read."""
    if name in ALWAYS_HERE:
        return True
    try:
        source = registry_of("data").build({"name": name}, "data")
    except PolyfedError:
        return False
    return _there(source)


def _there(source: Any) -> bool:
    if source.name in ALWAYS_HERE:
        return True
    folders = source.folders() if hasattr(source, "folders") else [source.home()]
    sign = getattr(source, "sign", "*")
    return any(folder.is_dir() and any(folder.glob(sign)) for folder in folders)
