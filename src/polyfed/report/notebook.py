"""What a notebook shows of a run or a comparison: its table, in the notebook's own style."""

from collections.abc import Iterator
from html import escape

from polyfed.report.forms import Entry, Table

RANKED = {"bold": "<b>{}</b>", "underline": "<u>{}</u>"}


def as_html(title: str, table: Table | None) -> str:
    """A caption and, where there is one, the table beneath it; no script, no style sheet, nothing from elsewhere."""
    return "".join([f"<p><code>{escape(title)}</code></p>", *(_lines(table) if table is not None else ())])


def _lines(table: Table) -> Iterator[str]:
    yield "<table><thead><tr>"
    yield from (f"<th>{escape(name)}</th>" for name in table.head)
    yield "</tr></thead>"
    for group in table.groups:
        yield "<tbody>"
        for row in group:
            yield f"<tr>{''.join(map(_cell, row))}</tr>"
        yield "</tbody>"
    yield "</table>"
    yield from (f"<p><small>{escape(sentence)}</small></p>" for sentence in table.legend)


def _cell(entry: Entry) -> str:
    beside = f" <small>{escape(entry.beside)}</small>" if entry.beside else ""
    return f"<td>{RANKED.get(entry.rank, '{}').format(escape(entry.text))}{beside}</td>"
