"""Tables of results: mean ± std over seeds, in the terminal, Markdown, CSV and LaTeX."""

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

PERCENT, SIZE, TIME = "percent", "bytes", "seconds"
COLUMNS: list[tuple[str, str, Callable[[Mapping[str, Any]], float | None]]] = [
    ("global", PERCENT, lambda s: _at(s, "global", "accuracy")),
    ("personal", PERCENT, lambda s: _at(s, "personal", "accuracy")),
    ("head", PERCENT, lambda s: _at(s, "personal", "head")),
    ("mid", PERCENT, lambda s: _at(s, "personal", "mid")),
    ("tail", PERCENT, lambda s: _at(s, "personal", "tail")),
    ("worst 10 %", PERCENT, lambda s: _at(s, "personal", "worst10")),
    ("bytes", SIZE, lambda s: s["bytes"]["up"] + s["bytes"]["down"]),
    ("seconds", TIME, lambda s: s["seconds"]["total"]),
]
IN_LATEX = str.maketrans({"±": r"$\pm$", "–": "--", **{sign: f"\\{sign}" for sign in "%&#_$"}})
CAPTION = (
    "global: accuracy of the one global model on the global test set; personal: mean over clients of each client's "
    "own model on its local test, after finish; head, mid, tail: mean recall of the frequent, middle and rare third "
    "of the classes under the personal models; bytes: up and down in training."
)


def _at(summary: Mapping[str, Any], part: str, key: str) -> float | None:
    numbers = summary.get(part)
    return None if numbers is None else numbers.get(key)


@dataclass
class Table:
    """Rows of cells under names; the first column is the method."""

    head: list[str]
    rows: list[list[str]]
    numbers: list[dict[str, Any]]

    def text(self) -> str:
        """For a terminal or a text file."""
        widths = [max(len(r[i]) for r in [self.head, *self.rows]) for i in range(len(self.head))]

        def line(cells: Sequence[str]) -> str:
            first = cells[0].ljust(widths[0])
            return "  ".join([first, *(c.rjust(w) for c, w in zip(cells[1:], widths[1:], strict=True))]).rstrip()

        return "\n".join([line(self.head), "  ".join("-" * w for w in widths), *map(line, self.rows)]) + "\n"

    def markdown(self) -> str:
        """For a README."""
        rule = ["---", *["---:"] * (len(self.head) - 1)]
        return "\n".join("| " + " | ".join(cells) + " |" for cells in [self.head, rule, *self.rows]) + "\n"

    def csv(self) -> str:
        """For a spreadsheet: plain numbers, mean and std in columns of their own."""
        text = io.StringIO()
        writer = csv.DictWriter(text, list(self.numbers[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.numbers)
        return text.getvalue()

    def latex(self) -> str:
        """For a paper."""
        lines = [" & ".join(cell.translate(IN_LATEX) for cell in cells) + r" \\" for cells in [self.head, *self.rows]]
        body = "\n".join([r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule"])
        return f"\\begin{{tabular}}{{l{'r' * (len(self.head) - 1)}}}\n{body}\n\\end{{tabular}}\n"


def comparison_table(summaries: Sequence[Mapping[str, Any]]) -> Table:
    """One row per method, over its seeds."""
    by_method: dict[str, list[Mapping[str, Any]]] = {}
    for summary in summaries:
        by_method.setdefault(summary["method"], []).append(summary)
    rows, numbers = [], []
    for method, runs in by_method.items():
        cells, plain = [method], {"method": method, "seeds": len(runs)}
        for name, unit, get in COLUMNS:
            values = [v for v in map(get, runs) if v is not None]
            cells.append(_cell(values, unit))
            plain[f"{name} mean"] = fmean(values) if values else ""
            plain[f"{name} std"] = stdev(values) if len(values) > 1 else ""
        rows.append(cells)
        numbers.append(plain)
    return Table(["method", *(name for name, _, _ in COLUMNS)], rows, numbers)


def _cell(values: Sequence[float], unit: str) -> str:
    if not values:
        return "–"
    mean, spread = fmean(values), stdev(values) if len(values) > 1 else math.nan
    if unit == PERCENT:
        return f"{100 * mean:.1f}" + ("" if math.isnan(spread) else f" ± {100 * spread:.1f}")
    return size(mean) if unit == SIZE else f"{mean:.1f}"


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def split_picture(described: Mapping[str, Any], most: int = 40) -> str:
    """Who holds what: a row per client, a block per class as tall as its share of the largest cell."""
    clients = described["clients"]
    largest = max((max(c["counts"]) for c in clients), default=1) or 1
    blocks = " ▁▂▃▄▅▆▇█"
    lines = []
    for client in clients[:most]:
        bars = "".join(blocks[math.ceil(8 * n / largest)] for n in client["counts"])
        sizes = f"{client['train']:>6} {client['val']:>5} {client['test']:>5}"
        lines.append(f"{client['id']:>6} {sizes}  |{bars}|")
    if len(clients) > most:
        lines.append(f"   ... and {len(clients) - most} more clients")
    return "\n".join([f"{'client':>6} {'train':>6} {'val':>5} {'test':>5}  training samples by class", *lines])


def split_text(described: Mapping[str, Any]) -> str:
    """A split in words and blocks."""
    facts = [
        f"{described['total']} samples, {described['classes']} classes, {len(described['clients'])} clients, "
        f"{described['global_test']} in the global test set",
        f"imbalance factor {described['imbalance_factor']:.3g}; "
        f"mean distance to the global label distribution {described['mean_distance']:.3f}",
        *(f"{name}: {note}" for name, note in described["notes"].items()),
    ]
    return "\n".join([*facts, "", split_picture(described)])
