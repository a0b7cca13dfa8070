"""Measure polyfed against the limit of this machine and against other simulators: python -m benchmarks --help."""

import argparse
import fnmatch
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks import beside, frozen, protection, records, scale, server, speed, startup, whole, writers
from benchmarks.cells import Cell, chosen
from benchmarks.data import Shelf, name_of
from benchmarks.measure import ROOT, Failed, compile_all
from benchmarks.results import Result, Store, code, environment
from benchmarks.table import PLACES, markdown

DOCS = ROOT / "docs" / "performance.md"
RIVALS = ["pfl", "flower"]
Measure = Callable[[Cell, Path, Sequence[str], Callable[[str], None]], Result]
KINDS: dict[str, Measure] = {
    "speed": speed.measure,
    "frozen": frozen.measure,
    "scale": scale.measure,
    "writers": writers.measure,
    "server": server.measure,
    "protection": protection.measure,
    "records": records.measure,
    "whole": whole.measure,
    "comparison": whole.measure_comparison,
    "beside": beside.measure,
    "startup": startup.measure,
}


def run(
    cells: Sequence[Cell],
    store: Store,
    folder: Path,
    say: Callable[[str], None],
    again: bool = False,
    kinds: dict[str, Measure] = KINDS,
    shelf: Shelf | None = None,
) -> list[Result]:
    """The results of all cells: those that are there already, the others measured now; what fails is left out."""
    found, shelf = [], shelf or Shelf()
    for number, cell in enumerate(cells, 1):
        if again:
            store.drop(cell)
        result = store.get(cell)
        say(f"[{number}/{len(cells)}] {cell.name}{': done before' if result else ''}")
        if result is None:
            try:
                shelf.want(name_of(cell), say)
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


def markers(place: str) -> tuple[str, str]:
    """The lines of the page between which the tables of a place stand."""
    return f"<!-- {place}: python -m benchmarks --write-docs -->", f"<!-- end of {place} -->"


def write_docs(results: Sequence[Result], docs: Path = DOCS) -> None:
    """Put the tables between their markers; a place for which nothing is measured keeps what it has."""
    page, source = docs.read_text(encoding="utf-8"), environment()
    for place, kinds in PLACES.items():
        here = [result for result in results if result["cell"]["kind"] in kinds]
        if here:
            page = _filled(page, place, markdown(here, source))
    docs.write_text(page, encoding="utf-8")


def _filled(page: str, place: str, text: str) -> str:
    begin, end = markers(place)
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    if begin not in page or end not in rest:
        raise Failed(f"the page has no place for {place}: it needs the lines {begin} and {end}")
    return f"{before}{begin}\n\n{text}\n{end}{after}"


def asked(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--full", action="store_true", help="all cells and all rivals, about an hour; else the short run"
    )
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes: tries the machinery, the numbers mean nothing"
    )
    parser.add_argument("--only", default="*", help="cells whose name matches, for example '*mlp*;acmu*'")
    parser.add_argument("--repeats", type=int, help="measure every cell so often, instead of as often as it says")
    parser.add_argument("--again", action="store_true", help="measure again what was measured before")
    parser.add_argument("--rivals", help="comma-separated; by default pfl, with --full pfl and flower; 'none' for none")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench", help="where results are kept")
    parser.add_argument("--list", action="store_true", help="name the cells and end")
    parser.add_argument("--write-docs", action="store_true", help="only put what is measured into docs/performance.md")
    options = parser.parse_args(arguments)
    default = RIVALS if options.full else RIVALS[:1]
    options.rivals = [name for name in options.rivals.split(",") if name != "none"] if options.rivals else default
    unknown = [name for name in options.rivals if name not in RIVALS]
    if unknown:
        parser.error(f"no rival is called {unknown[0]!r}: there are {', '.join(RIVALS)}, and none")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, measure, print."""
    options = asked(arguments)
    patterns, repeats = options.only.split(";"), options.repeats
    cells = [c for c in chosen(options.full, options.quick) if any(fnmatch.fnmatch(c.name, p) for p in patterns)]
    if repeats is not None:
        cells = [replace(cell, repeats=max(1, repeats)) for cell in cells]
    if options.list or not cells:
        print("\n".join(c.name for c in cells) or "no cell has such a name")
        return
    if not hasattr(os, "fork"):
        raise Failed("the benchmarks need a system with processes that fork and stop: Linux or macOS")
    mode = ("full" if options.full else "short") + ("-quick" if options.quick else "")
    store = Store(options.out / mode, options.rivals, code())
    if options.write_docs:
        results = [result for cell in cells if (result := store.get(cell))]
    else:
        compile_all()
        results = run(cells, store, options.out, lambda text: print(text, file=sys.stderr, flush=True), options.again)
    if not results:
        why = "leave out --write-docs first" if options.write_docs else "why each cell was left out stands above"
        raise Failed(f"nothing is measured with these sources: {why}")
    if options.write_docs:
        write_docs(results)
        return
    text = markdown(results, environment())
    print(text)
    (store.folder / "table.md").write_text(text, encoding="utf-8")
    made = json.dumps({"environment": environment(), "results": results}, indent=1)
    (options.out / f"{mode}.json").write_text(made, encoding="utf-8")


def stopped(*_: object) -> None:
    """Asked to end: nothing stays behind, and the same command goes on."""
    sys.exit("stopped; what is finished is kept, the same command goes on")


def call() -> None:
    """The command; whatever happens on a machine, it ends in a sentence."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), stopped)
    try:
        main()
    except (Failed, OSError) as failure:
        sys.exit(f"benchmarks: {failure}")
    except Exception as fault:
        if os.environ.get("POLYFED_DEBUG"):
            raise
        sys.exit(f"benchmarks: a fault: {type(fault).__name__}: {fault}; POLYFED_DEBUG=1 shows where it is")


if __name__ == "__main__":
    call()
