"""What a paper came to, from the store alone: one HTML page, and the page of results in the documentation."""

import base64
from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path

from polyfed.errors import DataError
from polyfed.papers.calibrate import Calibration
from polyfed.papers.cell import cells_of
from polyfed.papers.drawings import picture
from polyfed.papers.found import ItemFound, Line, mean_and_std
from polyfed.papers.judge import FAILS, HOLDS, UNDECIDED, UNMEASURED
from polyfed.papers.listing import minutes_left
from polyfed.papers.recipe import ALL, Item, find_items, papers
from polyfed.papers.store import Store
from polyfed.report.page import stylesheet

TITLES = {"mupfl": "MuPFL", "fedcrc": "FedCRC", "map": "MAP", "ecl": "ECL", "distfl": "DistFL"}
WORDS = (HOLDS, FAILS, UNDECIDED, UNMEASURED)
INTRODUCTION = """# Results

The tables and figures of the five papers, as far as they have been run: `polyfed reproduce --write-docs
docs/results.md` writes this page from the cells in `results/`, and a test compares it. Each cell can be repeated:
`polyfed verify results --cells 3` draws some at random, runs them again and compares fingerprints. A cell whose
method has changed since is stale: it is counted and not shown.

Numbers are means ± standard deviations over seeds, accuracies in per cent: over the evaluations in the last third
of the rounds, and after the last round. The difference is ours after the last round less what is printed. A claim
is judged on paired differences over seeds in the last third, with a 95 % t interval: it holds if the interval lies
above 0 for every pair of rows it speaks of, does not hold if one lies below, and is undecided otherwise; one seed
decides nothing. (S) marks claims that should survive scaling down, (F) fragile ones. Never is a claim said to hold
because a printed number was reached. [Readings](readings.md) has smaller experiments on how the papers are read,
and [Worlds](worlds.md) tables of eight methods where clients are people, writers or domains, with three seeds.
"""


def found_in(store: Store, items: Sequence[Item]) -> list[ItemFound]:
    """Every item at every scale, as a store has it."""
    return [ItemFound.of(item, scale, cells_of(item, scale), store) for item in items for scale in item.scales]


def results_page(store: Store, recipes: Path | None = None) -> str:
    """The page of the documentation; it depends on the store and the sources alone."""
    parts = [INTRODUCTION]
    for paper in papers(recipes):
        every = found_in(store, find_items([paper], recipes))
        shown = [found for found in every if found.current]
        parts += [f"## {TITLES.get(paper, paper)}\n", _count_of_claims(shown)]
        parts += [found.markdown() for found in shown]
        rest = [found for found in every if not found.current]
        if rest:
            parts += ["### Not done\n", *(_undone(found) for found in rest), ""]
    return "\n".join(parts).rstrip() + "\n"


def _count_of_claims(shown: Sequence[ItemFound]) -> str:
    counts = Counter(verdict.word for found in shown for verdict in found.verdicts)
    said = ", ".join(f"{counts[word]} {word}" for word in WORDS if counts[word])
    return f"Claims: {said}.\n" if said else "No cell is done yet.\n"


def _undone(found: ItemFound) -> str:
    stale = f", {len(found.stale)} stale" if found.stale else ""
    return f"- {found.item.place}, scale {found.scale}: {len(found.cells)} cells{stale}: `{found.command()}`"


# ---- HTML


def html_page(paper: str, store: Store, out: Path, recipes: Path | None = None) -> str:
    """Everything about a paper on one page, with pictures in it; `out` is where its runs may lie."""
    every = found_in(store, find_items([paper], recipes))
    calibration = Calibration()
    body = "\n".join(_section(found, out, calibration) for found in every)
    title = f"{escape(TITLES.get(paper, paper))}: tables and figures, printed and ours"
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>{title}</title><style>{stylesheet()}</style></head><body><main><h1>{title}</h1>\n{body}\n"
        "</main></body></html>\n"
    )


def _section(found: ItemFound, out: Path, calibration: Calibration) -> str:
    item, scale = found.item, found.item.scales[found.scale]
    parts = [f'<section id="{escape(item.name)}-{found.scale}">']
    parts += [f"<h2>{escape(item.place)}: {escape(item.title)}</h2>"]
    parts += [f"<p>{escape(item.note)}</p>" if item.note else ""]
    note = f" ({escape(scale.note)})" if scale.note else ""
    parts += [f"<p><code>{escape(item.id)}</code>, scale {found.scale}{note}: {found.progress()}.</p>"]
    parts += [_picture(found, out), _table(found), _claims(found)]
    parts += (
        ["<ul>", *(f"<li>Misprint: {escape(said)}</li>" for said in item.misprints), "</ul>"] if item.misprints else []
    )
    if found.missing:
        left = minutes_left(found, calibration)
        about = f", about {left:.0f} minutes on this machine" if left is not None else ""
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


def _table(found: ItemFound) -> str:
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
        said = escape(verdict.in_words()).replace("**", "") + (f". {escape(finding)}" if finding else "")
        lines.append(f"<li>{escape(verdict.claim.says)} {said}</li>")
    return f"<ul>{''.join(lines)}</ul>"
