"""Five worlds with natural clients: users of an app, people, makers of digits, writers, styles of pictures.

    python examples/worlds.py --data DATA --out runs/worlds
    python examples/worlds.py --data DATA --worlds wisdm,digits3
    python examples/worlds.py --data DATA --numbers results/worlds.csv --page docs/worlds.md

DATA holds a folder for each source, as docs/data.md says. Stopped and called again, it goes on where it was; once all
is done, it only writes the tables. Worlds come in the order of what they cost. `--numbers` keeps the number of every
finished run in a file, whose other worlds stay; `--page` writes the tables of that file between the marks of a page.
"""

import argparse
import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import polyfed
from polyfed.errors import PolyfedError
from polyfed.measure.paired import differences
from polyfed.papers.judge import Interval

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
FIELDS = ("world", "row", "seed", "accuracy", "fingerprint")
PLACE = re.compile(r"(<!-- (\S+): examples/worlds\.py [^\n]*-->\n).*?(<!-- end of \2 -->)", re.DOTALL)
BY_BN = "knowledge-bn"  # the place of what BN statistics bring
Line = dict[str, str]  # of the numbers: one finished run


def config(world: str, data: Path) -> dict[str, Any]:
    """The keys of a world, whose files lie below a folder."""
    keys = WORLDS[world]
    source = keys["data"] if isinstance(keys["data"], dict) else {"name": keys["data"]}
    return {**keys, "data": {**source, "root": str(data / FOLDERS[world])}}


def finished(comparison: Any, world: str) -> list[Line]:
    """A line for each finished run of a world, rows in their order."""
    made = []
    for cell in comparison.folder.found():
        accuracy, print_ = cell.summary["personal"]["accuracy"], cell.summary["fingerprint"]
        made.append(dict(zip(FIELDS, (world, cell.row, str(cell.seed), f"{accuracy:.6f}", print_[:16]), strict=True)))
    return made


def of_row(lines: Sequence[Line], world: str, row: str) -> dict[int, float]:
    """Personal accuracy in per cent of one row of a world, by seed."""
    own = [line for line in lines if (line["world"], line["row"]) == (world, row)]
    return {int(line["seed"]): 100 * float(line["accuracy"]) for line in own}


def table(lines: Sequence[Line], world: str) -> str:
    """Mean and standard deviation over seeds, in the order of the rows."""
    made = ["| method | personal accuracy | seeds |", "|---|---:|---:|"]
    for row in dict.fromkeys(line["row"] for line in lines if line["world"] == world):
        values = list(of_row(lines, world, row).values())
        spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
        made.append(f"| `{row}` | {fmean(values):.1f}{spread} | {len(values)} |")
    return "\n".join(made)


def by_bn(lines: Sequence[Line]) -> str:
    """What DistFL gains by BN statistics, seed by seed, with a 95 % t interval of the mean."""
    made = ["| world | points gained, by seed | mean | 95 % t interval |", "|---|---|---:|---|"]
    for world in WORLDS:
        gains = differences(of_row(lines, world, "distfl-bn"), of_row(lines, world, "distfl"))
        if len(gains) > 1:
            each, found = ", ".join(f"{gain:+.1f}" for gain in gains), Interval.of(gains)
            made.append(f"| {world} | {each} | {found.mean:+.1f} | {found.low:+.1f} to {found.high:+.1f} |")
    return "\n".join(made)


def read_numbers(file: Path) -> list[Line]:
    """The lines of the file of numbers; none where it is not there yet."""
    return list(csv.DictReader(io.StringIO(file.read_text(encoding="utf-8")))) if file.is_file() else []


def keep_numbers(file: Path, lines: Sequence[Line]) -> None:
    """Put these worlds' lines in the place of what the file had of them; worlds keep their order."""
    new = {line["world"] for line in lines}
    kept = [line for line in read_numbers(file) if line["world"] not in new]
    text = io.StringIO()
    writer = csv.DictWriter(text, FIELDS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(sorted([*kept, *lines], key=lambda line: list(WORLDS).index(line["world"])))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text.getvalue(), encoding="utf-8")


def filled(page: str, lines: Sequence[Line]) -> str:
    """The page with the tables of these numbers between its marks; the rest is left, and worlds without numbers are."""
    known = {BY_BN, *(line["world"] for line in lines)}

    def made(place: re.Match[str]) -> str:
        begin, name, end = place.groups()
        told = by_bn(lines) if name == BY_BN else table(lines, name)
        return f"{begin}\n{told}\n\n{end}" if name in known else place[0]

    return PLACE.sub(made, page)


def main() -> None:
    """Run what is missing, world after world, and write each table as soon as it is there."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--data", type=Path, required=True, help="the folder that holds the files of the sources")
    words.add_argument("--out", type=Path, default=Path("runs/worlds"))
    words.add_argument("--worlds", default=",".join(WORLDS), help="some only, with commas between")
    words.add_argument("--rows", help="some rows only, with commas between; give it another --out")
    words.add_argument("--seeds", type=int, default=COMMON["seeds"])
    words.add_argument("--numbers", type=Path, help="a .csv file that keeps the number of every finished run")
    words.add_argument("--page", type=Path, help="a page whose tables are written from that file")
    given = words.parse_args()
    if given.page and not given.numbers:
        words.error("--page writes what --numbers keeps: give both")
    rows = [row for row in ROWS if given.rows is None or row["name"] in given.rows.split(",")]
    for world in given.worlds.split(","):
        try:
            tree = {**COMMON, **config(world, given.data), "rows": rows, "seeds": given.seeds, "jobs": 1}
            made = polyfed.compare(tree, out=given.out / world, progress=True)
        except PolyfedError as error:
            raise SystemExit(f"{world}: {error}") from None
        for cell, why in made.failures.items():
            print(f"{world}: {cell} failed: {why}")
        lines = finished(made, world)
        text = f"## {world}\n\n{table(lines, world)}\n"
        (given.out / f"{world}.md").write_text(text, encoding="utf-8")
        print(text, flush=True)
        if given.numbers:
            keep_numbers(given.numbers, lines)
    if given.page:
        page = given.page.read_text(encoding="utf-8")
        given.page.write_text(filled(page, read_numbers(given.numbers)), encoding="utf-8")


if __name__ == "__main__":
    main()
