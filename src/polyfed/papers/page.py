"""What the papers came to: the page of results in the documentation, from the store alone."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from polyfed.papers.calibrate import Calibration
from polyfed.papers.cell import PaperCell
from polyfed.papers.found import ItemFound, as_markdown
from polyfed.papers.judge import FAILS, HOLDS, UNDECIDED, UNMEASURED
from polyfed.papers.left import Left
from polyfed.papers.listing import found_of
from polyfed.papers.recipe import find_items, papers
from polyfed.papers.store import Store
from polyfed.papers.times import Times, parts_left
from polyfed.papers.worlds import worlds_section

TITLES = {"mupfl": "MuPFL", "fedcrc": "FedCRC", "map": "MAP", "ecl": "ECL", "distfl": "DistFL"}
WORDS = (HOLDS, FAILS, UNDECIDED, UNMEASURED)
MOST = 4  # columns that a table of the documentation shows
INTRODUCTION = """# Results

The tables and figures of the five papers, as far as they have been run here. `polyfed reproduce --write-docs
docs/results.md` writes this page from the cells in `results/`, and a test compares it. Anyone can repeat a cell:
`polyfed verify results --cells 3` draws some at random, runs them again and compares fingerprints. A cell whose
method has changed since is stale: it is counted and not shown.

**Numbers** are means ± standard deviations over seeds, accuracies in per cent: over the evaluations in the last third
of the rounds, and after the last round ("end"). The difference is ours after the last round less what is printed.

**Claims** are the papers', about pairs of rows or settings; (S) marks those that should survive scaling down, (F)
fragile ones. What counts is the difference in favour of the claim, paired by seed, in the last third, with its 95 %
t interval. A claim holds if the interval of every pair lies above 0, does not hold if that of one lies below, and is
undecided otherwise; one seed decides nothing, and no claim holds because a printed number was reached. Where the last
round alone says something else, that is added.

[Readings](readings.md) has smaller experiments on how the papers are read. In [the last section](#worlds) clients are
people, writers or domains.
"""


def results_page(store: Store, recipes: Path | None = None, measure: bool = False) -> str:
    """The page of the documentation; it depends on the store and the sources alone.

    With `measure`, times that nothing tells are measured first and put into the store.
    """
    every = {paper: every_found(paper, store, recipes) for paper in papers(recipes)}
    times = Times.of((found for each in every.values() for found in each), Calibration.of_store(store.path, measure))
    if measure:
        for found in (found for each in every.values() for found in each):
            times.left(found.missing, measure)
    parts = [INTRODUCTION, _summary(every), _about_times(times)]
    for paper, founds in every.items():
        parts += [f"## {title_of(paper)}\n"]
        parts += [_section_of(found, times) for found in founds if found.current]
        rest = [found for found in founds if not found.current]
        parts += ["### Not done\n", _not_done(rest, founds, times)] if rest else []
    parts.append(worlds_section(store.path))
    return "\n".join(filter(None, parts)).rstrip() + "\n"


def every_found(paper: str, store: Store, recipes: Path | None) -> list[ItemFound]:
    """What a store has of a paper, item by item and scale by scale."""
    return [found for item in find_items([paper], recipes) for found in found_of(item, store)]


def title_of(paper: str) -> str:
    """A paper's name as it is written."""
    return TITLES.get(paper, paper)


def _summary(every: dict[str, list[ItemFound]]) -> str:
    """A line for each table and figure that has cells, and one for what each paper has beside."""
    rows = [["", "scale", "cells done", *WORDS], ["---", "---", *["---:"] * 5]]
    for paper, founds in every.items():
        for found in founds:
            if found.current:
                words = Counter(verdict.word for verdict in found.verdicts)
                link = f"[{title_of(paper)}, {found.item.place}](#{_anchor(found)})"
                counts = [str(words[word] or "") for word in WORDS]
                rows.append([link, found.scale, found.progress().removesuffix(" cells"), *counts])
        rest = [found for found in founds if not found.current]
        if rest:
            cells = sum(len(found.cells) for found in rest)
            rows.append([f"{title_of(paper)}, {len(rest)} not done", "", f"0 of {cells}", "", "", "", ""])
    return f"## Summary\n\n{as_markdown(rows)}\n"


def _about_times(times: Times) -> str:
    """Where the estimates come from."""
    cpu = times.calibration.machine.get("cpu")
    timed = f", else by a few timed steps on {cpu}: a method that does more than train one model then takes longer"
    return (
        "Times of what is not done are estimates for one core, by finished cells of the same row or setting"
        f"{timed if cpu else ''}. A dash stands where nothing tells.\n"
    )


def _anchor(found: ItemFound) -> str:
    return f"{found.item.id.replace('.', '-')}-{found.scale}"


def _section_of(found: ItemFound, times: Times) -> str:
    rest = parts_left(found.missing, times)
    return f'<a id="{_anchor(found)}"></a>\n\n{found.markdown(rest, MOST)}'


def _not_done(rest: Sequence[ItemFound], every: Sequence[ItemFound], times: Times) -> str:
    """A line for each part of what has no cell yet; runs that stand in an earlier table or figure count there."""
    rows = [["", "scale", "cells", "time of one core", "command"], ["---", "---", "---:", "---", "---"]]
    for found in rest:
        own, others = _own(found, every)
        shared = f" and {len(found.missing) - len(own)} of {' and '.join(others)}" if others else ""
        parts = parts_left(own, times) or [Left(0, 0, 0.0)]
        for part in parts:
            place, also = (found.item.place, shared) if part is parts[0] else ("", "")
            cells = f"{part.cells or ''}{also}".removeprefix(" and ")
            time = part.in_words() if part.cells else "nothing more"
            rows.append([place, found.scale, cells, time, f"`{found.command(part.only)}`"])
    return as_markdown(rows) + "\n"


def _own(found: ItemFound, every: Sequence[ItemFound]) -> tuple[list[PaperCell], list[str]]:
    """The missing cells that no earlier item of the scale has too, and where the others stand."""
    before = [other for other in every[: every.index(found)] if other.scale == found.scale]
    places = {cell.identity: other.item.place for other in reversed(before) for cell in other.cells}
    shared = {places[cell.identity] for cell in found.missing if cell.identity in places}
    own = [cell for cell in found.missing if cell.identity not in places]
    return own, [place for place in dict.fromkeys(other.item.place for other in before) if place in shared]
