"""All tables and figures there are: what each shows, whether its data are here, how long it takes, how far it is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from polyfed.papers.at_hand import data_of, is_here, with_data
from polyfed.papers.calibrate import Calibration, at_once
from polyfed.papers.cell import cells_of
from polyfed.papers.found import ItemFound
from polyfed.papers.recipe import Item
from polyfed.papers.store import Store


@dataclass(frozen=True)
class AtScale:
    """An item at one scale: its cells, those that are done and stale, and minutes that the rest will take.

    Cells whose data are not here cannot be run; they are counted, and are in no minutes.
    """

    scale: str
    cells: int
    done: int
    stale: int
    minutes: float | None
    without_data: int = 0


@dataclass(frozen=True)
class Entry:
    """A line of the list."""

    item: Item
    data: dict[str, bool]  # whether each data set is here
    scales: list[AtScale]


def entries(items: Sequence[Item], store: Store, calibration: Calibration, measure: bool = False) -> list[Entry]:
    """The list; with `measure`, times that are not known yet are measured."""
    return [_entry(item, store, calibration, measure) for item in items]


def _entry(item: Item, store: Store, calibration: Calibration, measure: bool) -> Entry:
    data = {name: is_here(name) for name in data_of(item)}
    scales = [_at_scale(item, scale, store, calibration, measure) for scale in item.scales]
    return Entry(item, data, scales)


def _at_scale(item: Item, scale: str, store: Store, calibration: Calibration, measure: bool) -> AtScale:
    cells = cells_of(item, scale)
    found = ItemFound.of(item, scale, cells, store)
    left = minutes_left(found, calibration, measure)
    absent = len(found.missing) - len(with_data(found.missing))
    return AtScale(scale, len(cells), len(found.current), len(found.stale), left, absent)


def minutes_left(found: ItemFound, calibration: Calibration, measure: bool = False) -> float | None:
    """Minutes of this machine that the missing cells take: by finished cells of their panels, else by calibration."""
    each = [found.minutes_of(cell) or calibration.minutes(cell, measure) for cell in with_data(found.left)]
    if any(minutes is None for minutes in each) or (found.missing and not each):
        return None
    return at_once(sum(minutes or 0.0 for minutes in each))


# ---- in words


def as_text(listed: Sequence[Entry]) -> str:
    """The list for a terminal."""
    lines: list[str] = []
    for entry in listed:
        if _paper(lines) != entry.item.paper:
            lines += ["", f"{entry.item.paper}:"]
        lines.append(f"  {entry.item.id}  {entry.item.title}")
        lines.append(f"      data: {_data(entry)}")
        lines += [f"      {_scale_words(one)}" for one in entry.scales]
    open_ones = any(one.minutes is None for entry in listed for one in entry.scales)
    hint = "\n\nminutes marked – were not measured: polyfed reproduce --calibrate times a few steps of each model"
    told = "\n\nminutes are estimates for this machine with nothing else to do; methods that do more take longer"
    return "\n".join(lines).strip() + told + (hint if open_ones else "")


def _paper(lines: Sequence[str]) -> str:
    return next((line[:-1] for line in reversed(lines) if line and not line.startswith(" ")), "")


def _data(entry: Entry) -> str:
    words = [f"{name} ({'here' if here else 'not here'})" for name, here in entry.data.items()]
    return ", ".join(words) or "none"


def _scale_words(one: AtScale) -> str:
    minutes = "–" if one.minutes is None else "under 1" if 0 < one.minutes < 1 else f"{one.minutes:.0f}"
    stale = f", {one.stale} stale" if one.stale else ""
    absent = f", {one.without_data} without data here" if one.without_data else ""
    return f"{one.scale}: {one.done} of {one.cells} cells done{stale}{absent}, about {minutes} minutes left"


def as_json(listed: Sequence[Entry]) -> list[dict[str, Any]]:
    """The list as plain data."""
    return [
        {
            "id": entry.item.id,
            "title": entry.item.title,
            "place": entry.item.place,
            "data": entry.data,
            "scales": {
                one.scale: {
                    "cells": one.cells,
                    "done": one.done,
                    "stale": one.stale,
                    "without_data": one.without_data,
                    "minutes": one.minutes,
                }
                for one in entry.scales
            },
        }
        for entry in listed
    ]
