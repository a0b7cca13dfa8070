"""Five worlds with natural clients: users of an app, people, makers of digits, writers, styles of pictures.

    python examples/worlds.py --data DATA --out runs/worlds
    python examples/worlds.py --data DATA --worlds wisdm,digits3

DATA holds a folder for each source, as docs/data.md says. Stopped and called again, it goes on where it was; once all
is done, it only writes the tables. Worlds come in the order of what they cost.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import polyfed
from polyfed.errors import PolyfedError

METHODS = ["fedavg", "local", "fedavg-ft", "lg-fedavg", "k-cluster", "distfl", "fedbn", "mupfl"]
NAMES = {"fedavg-ft": "lg-net"}  # as DistFL's tables call it
ROWS: list[dict[str, Any]] = [
    *({"name": NAMES.get(name, name), "method": name} for name in METHODS),
    {"name": "distfl-bn", "method": {"name": "distfl", "knowledge": "bn"}},
]
COMMON: dict[str, Any] = {
    "train": {"lr": 0.05, "batch": 32, "epochs": 2},
    "eval": {"every": 100, "classes": False},
    "checkpoint": {"every": 100},
    "seeds": 3,
}
DIGITS = {"name": "cnn-bn", "width": 0.25}
WORLDS: dict[str, dict[str, Any]] = {
    "wisdm": {"data": "wisdm", "model": {"name": "mlp-bn", "width": 0.25}, "rounds": 15},
    "uci-har": {
        "data": {"name": "uci-har", "subjects": "distfl", "limit": 400},
        "model": {"name": "har-cnn", "width": 0.5},
        "rounds": 10,
    },
    "digits3": {
        "data": {"name": "digits3", "limit": 120},
        "split": {"partition": "domains", "clients": 12},
        "model": DIGITS,
        "rounds": 10,
    },
    "writers": {
        "data": {"name": "mnist-writers"},
        "split": {"partition": "users", "clients": 100},
        "model": DIGITS,
        "rounds": 10,
        "participation": 0.2,
    },
    "pacs": {
        "data": {"name": "pacs", "size": 32, "limit": 400},
        "split": {"partition": "domains", "clients": 20},
        "model": {"name": "resnet8", "width": 1.0},
        "rounds": 10,
    },
}
FOLDERS = {"wisdm": "wisdm", "uci-har": "", "digits3": "digits3", "writers": "mnist", "pacs": ""}


def config(world: str, data: Path) -> dict[str, Any]:
    """The keys of a world, whose files lie below a folder."""
    keys = WORLDS[world]
    source = keys["data"] if isinstance(keys["data"], dict) else {"name": keys["data"]}
    return {**keys, "data": {**source, "root": str(data / FOLDERS[world])}}


def table(found: Mapping[str, list[float]]) -> str:
    """Mean and standard deviation over seeds, in the order of the rows."""
    lines = ["| method | personal accuracy | seeds |", "|---|---:|---:|"]
    for row, values in found.items():
        spread = f" ± {100 * stdev(values):.1f}" if len(values) > 1 else ""
        lines.append(f"| `{row}` | {100 * fmean(values):.1f}{spread} | {len(values)} |")
    return "\n".join(lines)


def scores(comparison: Any) -> dict[str, list[float]]:
    """Personal accuracy by row, one for every finished seed."""
    made: dict[str, list[float]] = {}
    for cell in comparison.folder.found():
        made.setdefault(cell.row, []).append(cell.summary["personal"]["accuracy"])
    return made


def main() -> None:
    """Run what is missing, world after world, and write each table as soon as it is there."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--data", type=Path, required=True, help="the folder that holds the files of the sources")
    words.add_argument("--out", type=Path, default=Path("runs/worlds"))
    words.add_argument("--worlds", default=",".join(WORLDS), help="some only, with commas between")
    words.add_argument("--rows", help="some rows only, with commas between; give it another --out")
    words.add_argument("--seeds", type=int, default=COMMON["seeds"])
    given = words.parse_args()
    rows = [row for row in ROWS if given.rows is None or row["name"] in given.rows.split(",")]
    for world in given.worlds.split(","):
        try:
            tree = {**COMMON, **config(world, given.data), "rows": rows, "seeds": given.seeds, "jobs": 1}
            made = polyfed.compare(tree, out=given.out / world, progress=True)
        except PolyfedError as error:
            raise SystemExit(f"{world}: {error}") from None
        for cell, error in made.failures.items():
            print(f"{world}: {cell} failed: {error}")
        text = f"## {world}\n\n{table(scores(made))}\n"
        (given.out / f"{world}.md").write_text(text, encoding="utf-8")
        print(text, flush=True)


if __name__ == "__main__":
    main()
