"""All tables and figures there are: what each shows, whether its data are here, how long it takes, how far it is."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from polyfed.papers.at_hand import data_of, is_here, with_data
from polyfed.papers.calibrate import Calibration, at_once
from polyfed.papers.cell import PaperCell, cells_of
from polyfed.papers.found import ItemFound
from polyfed.papers.left import spoken
from polyfed.papers.recipe import Item
from polyfed.papers.store import Store
from polyfed.papers.times import Times


@dataclass(frozen=True)
class Standing:
    """Of some cells: how many are done and stale, and the minutes of this machine that the rest will take.

    Cells whose data are not here cannot be run; they are counted, and are in no minutes. Of those that can, some may
    be of unknown length; where nothing is known there are no minutes.
    """

    cells: int
    done: int
    stale: int
    minutes: float | None
    unknown: int = 0
    without_data: int = 0


@dataclass(frozen=True)
class AtScale:
    """An item at one scale, and its panels where there are several."""

    scale: str
    all: Standing
    panels: Mapping[str, Standing]


@dataclass(frozen=True)
class Entry:
    """A line of the list."""

    item: Item
    data: dict[str, bool]  # whether each data set is here
    scales: list[AtScale]


Choice = Callable[[Item, str], list[PaperCell]]  # the cells of an item at a scale that are asked for


def entries(
    items: Sequence[Item], store: Store, calibration: Calibration, measure: bool = False, choice: Choice = cells_of
) -> list[Entry]:
    """The list, without items of which nothing is asked for; with `measure`, unknown times are measured."""
    every = {item.id: [one for one in found_of(item, store, choice) if one.cells] for item in items}
    times = Times.of((found for each in every.values() for found in each), calibration)
    return [
        Entry(
            item,
            {name: is_here(name) for name in data_of([cell for found in every[item.id] for cell in found.cells])},
            [_at_scale(found, times, measure) for found in every[item.id]],
        )
        for item in items
        if every[item.id]
    ]


def found_of(item: Item, store: Store, choice: Choice = cells_of) -> list[ItemFound]:
    """What a store has of an item, scale by scale."""
    return [ItemFound.of(item, scale, choice(item, scale), store) for scale in item.scales]


def _at_scale(found: ItemFound, times: Times, measure: bool) -> AtScale:
    panels: dict[str, list[PaperCell]] = {}
    for cell in found.cells:
        panels.setdefault(cell.panel, []).append(cell)
    each = {panel: _standing(found, cells, times, measure) for panel, cells in panels.items() if len(panels) > 1}
    return AtScale(found.scale, _standing(found, found.cells, times, measure), each)


def _standing(found: ItemFound, cells: Sequence[PaperCell], times: Times, measure: bool) -> Standing:
    missing = [cell for cell in cells if cell not in found.current]
    able = with_data(missing)
    left = times.left(able, measure)
    minutes = at_once(left.minutes) if left.known or not missing else None
    stale = sum(cell in found.stale for cell in cells)
    without = len(missing) - len(able)
    return Standing(len(cells), len(cells) - len(missing), stale, minutes, left.cells - left.known, without)


# ---- in words


def as_text(listed: Sequence[Entry], panels: bool = False) -> str:
    """The list for a terminal, if asked for with the panels of every item."""
    lines: list[str] = []
    for entry in listed:
        if _paper(lines) != entry.item.paper:
            lines += ["", f"{entry.item.paper}:"]
        lines.append(f"  {entry.item.id}  {entry.item.title}")
        lines.append(f"      data: {_data(entry)}")
        for one in entry.scales:
            lines.append(f"      {one.scale}: {_words(one.all)}")
            lines += [f"          {panel}: {_words(standing)}" for panel, standing in one.panels.items() if panels]
    open_ones = any(one.all.unknown for entry in listed for one in entry.scales)
    hint = "\n\nwhat has an unknown length was not measured: with --calibrate a few steps of each model are timed"
    told = "\n\ntimes are estimates for this machine with nothing else to do; methods that do more take longer"
    return "\n".join(lines).strip() + told + (hint if open_ones else "")


def _paper(lines: Sequence[str]) -> str:
    return next((line[:-1] for line in reversed(lines) if line and not line.startswith(" ")), "")


def _data(entry: Entry) -> str:
    words = [f"{name} ({'here' if here else 'not here'})" for name, here in entry.data.items()]
    return ", ".join(words) or "none"


def _words(one: Standing) -> str:
    """`5 of 10 cells done, about 43 minutes left for 3 of them, 2 of unknown length`."""
    parts = [f"{one.done} of {one.cells} cells done"]
    parts += [f"{one.stale} stale"] if one.stale else []
    parts += [f"{one.without_data} without data here"] if one.without_data else []
    parts += [f"about {spoken(one.minutes)} left"] if one.minutes is not None and one.done < one.cells else []
    parts += [f"{one.unknown} of unknown length"] if one.unknown else []
    return ", ".join(parts)


def as_json(listed: Sequence[Entry]) -> list[dict[str, Any]]:
    """The list as plain data."""
    return [
        {
            "id": entry.item.id,
            "title": entry.item.title,
            "place": entry.item.place,
            "data": entry.data,
            "scales": {
                one.scale: {**asdict(one.all), "panels": {name: asdict(panel) for name, panel in one.panels.items()}}
                for one in entry.scales
            },
        }
        for entry in listed
    ]
