"""Measure polyfed against the limit of this machine and against other simulators: python -m benchmarks --help."""

import argparse
import fnmatch
import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import frozen, records, scale, server, speed
from benchmarks.cells import Cell, chosen
from benchmarks.measure import ROOT, Failed
from benchmarks.results import Result, Store, code, environment
from benchmarks.table import markdown

DOCS = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- tables: python -m benchmarks --write-docs -->", "<!-- end of tables -->"
Measure = Callable[[Cell, Path, Sequence[str], Callable[[str], None]], Result]
KINDS: dict[str, Measure] = {
    "speed": speed.measure,
    "frozen": frozen.measure,
    "scale": scale.measure,
    "server": server.measure,
    "records": records.measure,
}


def run(
    cells: Sequence[Cell],
    store: Store,
    folder: Path,
    say: Callable[[str], None],
    again: bool = False,
    kinds: dict[str, Measure] = KINDS,
) -> list[Result]:
    """The results of all cells: those that are there already, the others measured now; what fails is left out."""
    found = []
    for number, cell in enumerate(cells, 1):
        if again:
            store.drop(cell)
        result = store.get(cell)
        say(f"[{number}/{len(cells)}] {cell.name}{': done before' if result else ''}")
        if result is None:
            try:
                busy = others()
                result = store.put(cell, {"busy": busy, **kinds[cell.kind](cell, folder, store.rivals, say)})
            except Failed as failure:
                say(f"left out: {failure}")
                continue
        found.append(result)
    return found


def others(seconds: float = 1.0) -> float | None:
    """The share of the machine that is in use while we wait: not ours."""
    before = _ticks()
    if before is None:
        return None
    time.sleep(seconds)
    after = _ticks()
    assert after is not None
    total = sum(after) - sum(before)
    idle = (after[3] + after[4]) - (before[3] + before[4])
    return max(0.0, 1 - idle / total) if total else None


def _ticks() -> list[int] | None:
    try:
        return [int(n) for n in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    except OSError:
        return None


def write_docs(text: str, docs: Path = DOCS) -> None:
    """Put the tables between their markers."""
    page = docs.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    if BEGIN not in page or END not in rest:
        raise SystemExit(f"{docs} has no place for tables: it needs the lines {BEGIN} and {END}")
    docs.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--full", action="store_true", help="all cells and all rivals, about an hour; else the short run"
    )
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes: tries the machinery, the numbers mean nothing"
    )
    parser.add_argument("--only", default="*", help="cells whose name matches, for example '*mlp*'")
    parser.add_argument("--again", action="store_true", help="measure again what was measured before")
    parser.add_argument("--rivals", help="comma-separated; by default pfl, with --full pfl and flower; 'none' for none")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench", help="where results are kept")
    parser.add_argument("--list", action="store_true", help="name the cells and end")
    parser.add_argument("--write-docs", action="store_true", help="only put what is measured into docs/performance.md")
    options = parser.parse_args(arguments)
    cells = [c for c in chosen(options.full, options.quick) if fnmatch.fnmatch(c.name, options.only)]
    if options.list or not cells:
        print("\n".join(c.name for c in cells) or "no cell has such a name")
        return
    rivals = (options.rivals or ("pfl,flower" if options.full else "pfl")).split(",")
    mode = ("full" if options.full else "short") + ("-quick" if options.quick else "")
    store = Store(options.out / mode, [r for r in rivals if r != "none"], code())
    if options.write_docs:
        results = [result for cell in cells if (result := store.get(cell))]
    else:
        results = run(cells, store, options.out, lambda text: print(text, file=sys.stderr, flush=True), options.again)
    text = markdown(results, environment())
    if options.write_docs:
        write_docs(text)
        return
    print(text)
    (store.folder / "table.md").write_text(text, encoding="utf-8")
    made = json.dumps({"environment": environment(), "results": results}, indent=1)
    (options.out / f"{mode}.json").write_text(made, encoding="utf-8")


def stopped(*_: object) -> None:
    """Asked to end: nothing stays behind, and the same command goes on."""
    sys.exit("stopped; what is finished is kept, the same command goes on")


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stopped)
    main()
