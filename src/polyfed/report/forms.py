"""A table in the forms people use: terminal, text, Markdown, LaTeX, CSV."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.text import Text

BEST, SECOND = "bold", "underline"
MARKDOWN = {"": "{}", BEST: "**{}**", SECOND: "<u>{}</u>"}
LATEX = {"": "{}", BEST: r"\textbf{{{}}}", SECOND: r"\underline{{{}}}"}
IN_MARKDOWN = str.maketrans({"|": r"\|", "*": r"\*"})
IN_LATEX = str.maketrans(
    {"±": r"$\pm$", "–": "--", "−": "$-$", "†": r"$\dagger$", "*": r"$^{*}$", "<": "$<$", "~": r"\textasciitilde{}"}
    | {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", **{sign: f"\\{sign}" for sign in "%&#_${}"}}
)
PACKAGES = r"% in the preamble: \usepackage{booktabs}"
RANKS = "bold: best of the column, underlined: second best"


@dataclass(frozen=True)
class Entry:
    """What stands in a table: a text, how it ranks, and what is said of it against the baseline."""

    text: str
    rank: str = ""
    beside: str = ""

    @property
    def plain(self) -> str:
        """All of it, without rank."""
        return f"{self.text} {self.beside}" if self.beside else self.text


Rows = list[list[Entry]]


@dataclass
class Table:
    """Rows of entries under names, together by setting; first the method, then its setting, then numbers."""

    head: list[str]
    labels: int
    groups: list[Rows]
    numbers: list[dict[str, Any]]
    legend: list[str] = field(default_factory=list)

    @property
    def rows(self) -> list[list[str]]:
        """The rows as plain text."""
        return [[entry.plain for entry in row] for group in self.groups for row in group]

    def styled(self) -> Text:
        """For a terminal that shows bold and underlined."""
        return self._drawn(self._explained())

    def text(self) -> str:
        """For a text file."""
        return self._drawn(self.legend).plain

    def _drawn(self, legend: Sequence[str]) -> Text:
        widths = [max(map(len, column)) for column in zip(self.head, *self.rows, strict=True)]
        rule = "  ".join("-" * width for width in widths)
        lines = [self._line([Entry(name) for name in self.head], widths)]
        for group in self.groups:
            lines += [Text(rule), *(self._line(row, widths) for row in group)]
        if legend:
            lines += [Text(), *map(Text, legend)]
        return Text("\n").join([*lines, Text()])

    def _line(self, row: Sequence[Entry], widths: Sequence[int]) -> Text:
        line = Text()
        for place, (entry, width) in enumerate(zip(row, widths, strict=True)):
            padding = " " * (width - len(entry.plain))
            left = place < self.labels
            line.append("" if place == 0 else "  ").append("" if left else padding)
            line.append(entry.text, style=entry.rank).append(entry.plain[len(entry.text) :])
            line.append(padding if left else "")
        line.rstrip()
        return line

    def markdown(self) -> str:
        """For a README."""

        def line(cells: Sequence[str]) -> str:
            return "| " + " | ".join(cells) + " |"

        rule = ["---"] * self.labels + ["---:"] * (len(self.head) - self.labels)
        rows = [line(_marked(row, MARKDOWN, IN_MARKDOWN)) for group in self.groups for row in group]
        legend = [f"\n{sentence.translate(IN_MARKDOWN)}" for sentence in self._explained()]
        return "\n".join([line(self.head), line(rule), *rows, *legend]) + "\n"

    def latex(self) -> str:
        """For a paper."""
        lines = [r"\toprule", " & ".join(name.translate(IN_LATEX) for name in self.head) + r" \\"]
        for group in self.groups:
            lines += [r"\midrule", *(" & ".join(_marked(row, LATEX, IN_LATEX)) + r" \\" for row in group)]
        form = "l" * self.labels + "r" * (len(self.head) - self.labels)
        said = [rf"\par{{\footnotesize {sentence.translate(IN_LATEX)}}}" for sentence in self._explained()]
        begin, end = f"\\begin{{tabular}}{{{form}}}", r"\end{tabular}"
        return "\n".join([PACKAGES, begin, *lines, r"\bottomrule", end, *said]) + "\n"

    def csv(self) -> str:
        """For a spreadsheet: plain numbers, mean and std in columns of their own."""
        text = io.StringIO()
        writer = csv.DictWriter(text, list(self.numbers[0] if self.numbers else ["method"]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.numbers)
        return text.getvalue()

    def _explained(self) -> list[str]:
        """The legend where ranks can be seen."""
        ranked = any(entry.rank for group in self.groups for row in group for entry in row)
        where = ", each setting by itself" if len(self.groups) > 1 else ""
        return [*([RANKS + where] if ranked else []), *self.legend]


def _marked(row: Sequence[Entry], marks: Mapping[str, str], escapes: Mapping[int, Any]) -> list[str]:
    """The entries of a row with their ranks, for a language with special signs."""
    made = []
    for entry in row:
        beside = f" {entry.beside.translate(escapes)}" if entry.beside else ""
        made.append(marks[entry.rank].format(entry.text.translate(escapes)) + beside)
    return made
