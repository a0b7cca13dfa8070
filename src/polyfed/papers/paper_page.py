"""One HTML page with everything about a paper: its tables, pictures and claims, from the store alone."""

import base64
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from polyfed.errors import DataError
from polyfed.papers.calibrate import Calibration
from polyfed.papers.drawings import picture
from polyfed.papers.found import ItemFound, Line
from polyfed.papers.judge import FAILS, HOLDS, Pair, Verdict
from polyfed.papers.page import MOST, every_found, title_of
from polyfed.papers.store import Store
from polyfed.papers.times import Times, parts_left
from polyfed.report.page import stylesheet

LOOKS = {HOLDS: "holds", FAILS: "fails"}
Values = dict[str, Any]


def html_page(paper: str, store: Store, out: Path, recipes: Path | None = None) -> str:
    """Everything about a paper on one page, with pictures in it; `out` is where its runs may lie."""
    every = every_found(paper, store, recipes)
    times = Times.of(every, Calibration.here())
    around = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    cells = sum(len(found.cells) for found in every)
    done = sum(len(found.current) for found in every)
    return around.get_template("paper_page.html").render(
        title=f"{title_of(paper)}: tables and figures, printed and ours",
        facts=[f"{done} of {cells} cells done", f"store: {store.path.name}"],
        style=Markup(stylesheet()),
        done=[_section(found, out, times) for found in every if found.current],
        open=[_head(found, times) for found in every if not found.current],
    )


def _head(found: ItemFound, times: Times) -> Values:
    item = found.item
    return {
        "id": f"{item.name}-{found.scale}",
        "item": item.id,
        "place": item.place,
        "title": item.title,
        "scale": found.scale,
        "cells": len(found.cells),
        "rest": [
            {
                "cells": part.cells,
                "about": part.about(),
                "time": part.in_words(),
                "command": found.command(part.only),
            }
            for part in parts_left(found.missing, times)
        ],
    }


def _section(found: ItemFound, out: Path, times: Times) -> Values:
    lines = [line for line in found.lines if any(one.end for one in found.lines if one.panel == line.panel)]
    columns = list(dict.fromkeys(line.column for line in lines))
    first = columns if len(columns) <= MOST else columns[:1]
    made, without = _picture(found, out)
    return {
        **_head(found, times),
        "note": found.item.note.strip(),
        "scale_note": found.scale_note,
        "progress": found.progress(),
        "picture": made,
        "without": without,
        "claims": list(map(_claim, found.verdicts, map(found.finding, found.verdicts))),
        "table": _table([line for line in lines if line.column in first]),
        "more": _table([line for line in lines if line.column not in first]),
        "misprints": found.item.misprints,
    }


def _picture(found: ItemFound, out: Path) -> tuple[Values | None, str]:
    """The picture and its data, or why there is none."""
    try:
        made = picture(found, out / f"{found.item.id}-{found.scale}")
    except DataError as error:
        return None, str(error)
    if made is None:
        return None, ""
    drawn = {"png": _in_base64(made.png()), "csv": _in_base64(made.table.encode())}
    made.close()
    return drawn, ""


def _in_base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _table(lines: Sequence[Line]) -> Values:
    """Its rows by panel; a panel or a column that all share is left out."""
    told = {"panel": [line.panel for line in lines], "column": [line.column for line in lines]}
    shown = [place for place, name in enumerate(Line.HEAD) if len(set(told.get(name, (0, 1)))) > 1]
    rows = {panel: [line.texts() for line in lines if line.panel == panel] for panel in dict.fromkeys(told["panel"])}
    return {
        "head": [Line.HEAD[place] for place in shown],
        "words": sum(place < Line.WORDS for place in shown),
        "groups": [[[texts[place] for place in shown] for texts in each] for each in rows.values()],
    }


def _claim(verdict: Verdict, finding: str) -> Values:
    """A claim with what it came to; of several pairs each stands beneath it."""
    weakest = verdict.weakest
    end = f"; at the end {weakest.end.in_words()}" if weakest else ""
    pairs = [pair for pair in verdict.pairs if pair.third.seeds]
    return {
        "says": verdict.claim.says,
        "word": verdict.word,
        "look": LOOKS.get(verdict.word, "open"),
        "said": verdict.in_words().removeprefix(f"**{verdict.word}**") + end,
        "finding": finding,
        "count": len(pairs),
        "pairs": {"head": ["pair", "last third", "end"], "words": 1, "groups": [list(_pairs(pairs))]}
        if len(pairs) > 1
        else None,
    }


def _pairs(pairs: Sequence[Pair]) -> Iterator[list[str]]:
    for pair in pairs:
        yield [pair.named(), pair.third.in_words(), pair.end.in_words()]
