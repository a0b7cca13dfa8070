"""Worlds with natural clients in the page of results: methods by worlds, from the numbers that an example keeps."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from polyfed.papers.found import as_markdown, mean_and_std

FILE = "worlds.csv"
INTRODUCTION = """## Worlds

Personal accuracy in per cent, mean ± standard deviation over seeds, where clients are users of an app (wisdm), people
with a telephone at the waist (uci-har), writers, or domains (digits3, pacs). [Worlds](worlds.md) says how it was
measured and what can be read in it; `lg-net` is FedAvg with fine-tuning, `distfl-bn` is DistFL by BatchNorm statistics.
"""


def worlds_section(store: Path) -> str:
    """The section of a store's worlds; nothing where the store has none."""
    file = store / FILE
    if not file.is_file():
        return ""
    with file.open(encoding="utf-8", newline="") as lines:
        return f"{INTRODUCTION}\n{_table(list(csv.DictReader(lines)))}\n"


def _table(lines: Sequence[Mapping[str, str]]) -> str:
    """A line for each method and a column for each world, in the order of the file."""
    found: dict[tuple[str, str], dict[int, float]] = {}
    for line in lines:
        found.setdefault((line["row"], line["world"]), {})[int(line["seed"])] = 100 * float(line["accuracy"])
    worlds = list(dict.fromkeys(line["world"] for line in lines))
    rows = [["method", *worlds], ["---", *["---:"] * len(worlds)]]
    for method in dict.fromkeys(line["row"] for line in lines):
        rows.append([f"`{method}`", *(mean_and_std(found.get((method, world), {}), 1) for world in worlds)])
    return as_markdown(rows)
