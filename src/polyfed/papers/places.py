"""Tables from the store in pages that people write: what stands between two marks is filled in, the rest is left."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from polyfed.errors import UsageError
from polyfed.papers.cell import cells_of
from polyfed.papers.found import NOTHING, ItemFound, as_markdown, mean_and_std
from polyfed.papers.recipe import find_items
from polyfed.papers.store import Store

BEGIN = r"<!-- (\S+\.\S+), scale (\S+): polyfed reproduce --write-docs [^\n]*-->\n"
PLACE = re.compile(rf"({BEGIN}).*?(<!-- end of \2 -->)", re.DOTALL)


def has_places(page: str) -> bool:
    """Whether a page holds places for tables."""
    return re.search(BEGIN, page) is not None


def filled(page: str, store: Store, recipes: Path | None = None) -> str:
    """The page with the tables as a store has them."""

    def table(place: re.Match[str]) -> str:
        begin, name, scale, end = place.groups()
        (item,) = find_items([name], recipes)
        if scale not in item.scales:
            raise UsageError(f"the place for {name} asks for scale {scale}: there is {' and '.join(item.scales)}")
        return f"{begin}\n{_told(ItemFound.of(item, scale, cells_of(item, scale), store))}\n\n{end}"

    made, done = PLACE.subn(table, page)
    if done < len(re.findall(BEGIN, page)):
        raise UsageError("the page has a place for a table without an end: write <!-- end of its name --> after it")
    return made


def _told(found: ItemFound) -> str:
    most = "up to " if found.missing else ""
    seeds = f"{most}{found.seeds} seed{'s' if found.seeds != 1 else ''}"
    return f"`{found.item.id}`, scale {found.scale}: {found.progress()}, {seeds}.\n\n{short_table(found)}"


def short_table(found: ItemFound) -> str:
    """What was found after the last round: of several panels one number beside the other, the fewer names across."""
    item, numbers = found.item, {(line.panel, line.row, line.column): line.end for line in found.lines}
    panels, rows, columns = item.shown, list(dict.fromkeys(line.row for line in found.lines)), list(item.columns)

    def cell(panel: str, row: str, *asked: str) -> str:
        each = [mean_and_std(numbers.get((panel, row, column), {}), 1) for column in asked]
        return NOTHING if set(each) == {NOTHING} else " / ".join(each)

    if len(panels) == 1:
        return _grid("", rows, columns, {(r, c): cell(panels[0], r, c) for r in rows for c in columns})
    corner, cells = " / ".join(columns), {(row, panel): cell(panel, row, *columns) for row in rows for panel in panels}
    if len(panels) <= len(rows):
        return _grid(corner, rows, panels, cells)
    return _grid(corner, panels, rows, {(panel, row): text for (row, panel), text in cells.items()})


def _grid(corner: str, down: Sequence[str], across: Sequence[str], cells: Mapping[tuple[str, str], str]) -> str:
    lines = [[corner, *across], ["---", *["---:"] * len(across)]]
    lines += [[name, *(cells[name, other] for other in across)] for name in down]
    return as_markdown(lines)
