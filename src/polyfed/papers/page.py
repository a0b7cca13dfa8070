"""What a paper came to, from the store alone: one HTML page, and the page of results in the documentation."""

import base64
from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path

from polyfed.errors import DataError
from polyfed.papers.calibrate import Calibration, at_once
from polyfed.papers.drawings import picture
from polyfed.papers.found import ItemFound, Line, mean_and_std
from polyfed.papers.judge import FAILS, HOLDS, UNDECIDED, UNMEASURED
from polyfed.papers.left import spoken
from polyfed.papers.listing import found_of
from polyfed.papers.recipe import ALL, find_items, papers
from polyfed.papers.store import Store
from polyfed.papers.times import Times
from polyfed.report.page import stylesheet

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

[Readings](readings.md) has smaller experiments on how the papers are read, and [Worlds](worlds.md) tables of eight
methods where clients are people, writers or domains.
"""


def results_page(store: Store, recipes: Path | None = None, measure: bool = False) -> str:
    """The page of the documentation; it depends on the store and the sources alone.

    With `measure`, times that nothing tells are measured first and put into the store.
    """
    every = {paper: _every(paper, store, recipes) for paper in papers(recipes)}
    times = Times.of((found for each in every.values() for found in each), Calibration.of_store(store.path, measure))
    if measure:
        for found in (found for each in every.values() for found in each):
            times.left(found.missing, measure)
    parts = [INTRODUCTION, _summary(every), _about_times(times)]
    for paper, founds in every.items():
        parts += [f"## {_title(paper)}\n"]
        parts += [_section_of(found, times) for found in founds if found.current]
        rest = [found for found in founds if not found.current]
        parts += ["### Not done\n", _not_done(rest, times)] if rest else []
    return "\n".join(filter(None, parts)).rstrip() + "\n"


def _every(paper: str, store: Store, recipes: Path | None) -> list[ItemFound]:
    return [found for item in find_items([paper], recipes) for found in found_of(item, store)]


def _title(paper: str) -> str:
    return TITLES.get(paper, paper)


def _summary(every: dict[str, list[ItemFound]]) -> str:
    """A line for each table and figure that has cells, and one for what each paper has beside."""
    rows = [["", "scale", "cells done", *WORDS], ["---", "---", *["---:"] * 5]]
    for paper, founds in every.items():
        for found in founds:
            if found.current:
                words = Counter(verdict.word for verdict in found.verdicts)
                link = f"[{_title(paper)}, {found.item.place}](#{_anchor(found)})"
                counts = [str(words[word] or "") for word in WORDS]
                rows.append([link, found.scale, found.progress().removesuffix(" cells"), *counts])
        rest = [found for found in founds if not found.current]
        if rest:
            cells = sum(len(found.cells) for found in rest)
            rows.append([f"{_title(paper)}, {len(rest)} not done", "", f"0 of {cells}", "", "", "", ""])
    return "## Summary\n\n" + _table(rows)


def _table(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows) + "\n"


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
    left = times.left(found.missing)
    return f'<a id="{_anchor(found)}"></a>\n\n{found.markdown(left, MOST)}'


def _not_done(rest: Sequence[ItemFound], times: Times) -> str:
    rows = [["", "scale", "cells", "time of one core", "command"], ["---", "---", "---:", "---", "---"]]
    for found in rest:
        stale = f" ({len(found.stale)} stale)" if found.stale else ""
        time = times.left(found.missing).in_words()
        rows.append([found.item.place, found.scale, f"{len(found.cells)}{stale}", time, f"`{found.command()}`"])
    return _table(rows)


# ---- HTML


def html_page(paper: str, store: Store, out: Path, recipes: Path | None = None) -> str:
    """Everything about a paper on one page, with pictures in it; `out` is where its runs may lie."""
    every = _every(paper, store, recipes)
    times = Times.of(every, Calibration.here())
    body = "\n".join(_section(found, out, times) for found in every)
    title = f"{escape(_title(paper))}: tables and figures, printed and ours"
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>{title}</title><style>{stylesheet()}</style></head><body><main><h1>{title}</h1>\n{body}\n"
        "</main></body></html>\n"
    )


def _section(found: ItemFound, out: Path, times: Times) -> str:
    item, scale = found.item, found.item.scales[found.scale]
    parts = [f'<section id="{escape(item.name)}-{found.scale}">']
    parts += [f"<h2>{escape(item.place)}: {escape(item.title)}</h2>"]
    parts += [f"<p>{escape(item.note)}</p>" if item.note else ""]
    note = f" ({escape(scale.note)})" if scale.note else ""
    parts += [f"<p><code>{escape(item.id)}</code>, scale {found.scale}{note}: {found.progress()}.</p>"]
    parts += [_picture(found, out), _html_table(found), _claims(found)]
    parts += (
        ["<ul>", *(f"<li>Misprint: {escape(said)}</li>" for said in item.misprints), "</ul>"] if item.misprints else []
    )
    if found.missing:
        left = times.left(found.missing)
        about = f", about {spoken(at_once(left.minutes))} on this machine" if left.known == left.cells else ""
        parts += [f"<p>Not done: {len(found.missing)} cells{about}: <code>{escape(found.command())}</code></p>"]
    return "\n".join([*filter(None, parts), "</section>"])


def _picture(found: ItemFound, out: Path) -> str:
    try:
        made = picture(found, out / f"{found.item.id}-{found.scale}")
    except DataError as error:
        return f"<p>No picture: {escape(str(error))}.</p>"
    if made is None:
        return ""
    data = base64.b64encode(made.png()).decode()
    made.close()
    return f'<figure><img alt="{escape(found.item.title)}" src="data:image/png;base64,{data}"></figure>'


def _html_table(found: ItemFound) -> str:
    if not any(line.end for line in found.lines):
        return ""
    head = ("panel", "row", "column", "last third", "end", "printed", "difference")
    rows = "\n".join(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in _texts(line))}</tr>" for line in found.lines)
    return f"<table><thead><tr>{''.join(f'<th>{name}</th>' for name in head)}</tr></thead><tbody>{rows}</tbody></table>"


def _texts(line: Line) -> list[str]:
    return [
        "" if line.panel == ALL else line.panel,
        f"{line.row} (control)" if line.control else line.row,
        line.column,
        mean_and_std(line.third),
        mean_and_std(line.end),
        "–" if line.printed is None else f"{line.printed:.2f}",
        "–" if line.difference is None else f"{line.difference:+.2f}",
    ]


def _claims(found: ItemFound) -> str:
    if not found.verdicts:
        return ""
    lines = []
    for verdict in found.verdicts:
        finding = found.item.findings.get(verdict.claim.says)
        end = f"; at the end {verdict.weakest.end.in_words()}" if verdict.weakest else ""
        said = escape(verdict.in_words().replace("**", "") + end + (f". {finding}" if finding else ""))
        lines.append(f"<li>{escape(verdict.claim.says)}: {said}</li>")
    return f"<ul>{''.join(lines)}</ul>"
