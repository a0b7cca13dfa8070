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
from polyfed.papers.times import Times


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
    every = {item.id: found_of(item, store) for item in items}
    times = Times.of((found for each in every.values() for found in each), calibration)
    return [
        Entry(
            item,
            {name: is_here(name) for name in data_of(item)},
            [_at_scale(found, times, measure) for found in every[item.id]],
        )
        for item in items
    ]


def found_of(item: Item, store: Store) -> list[ItemFound]:
    """What a store has of an item, scale by scale."""
    return [ItemFound.of(item, scale, cells_of(item, scale), store) for scale in item.scales]


def _at_scale(found: ItemFound, times: Times, measure: bool) -> AtScale:
    missing = found.missing
    able = with_data(missing)
    left = times.left(able, measure)
    known = left.known == left.cells and (able or not missing)
    minutes = at_once(left.minutes) if known else None
    return AtScale(
        found.scale, len(found.cells), len(found.current), len(found.stale), minutes, len(missing) - len(able)
    )


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
