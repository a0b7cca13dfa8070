"""`polyfed report` and `polyfed figure`: what runs and comparisons look like."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from polyfed.cli.common import Baseline, Json, Quiet, say
from polyfed.errors import reading

Paths = Annotated[list[Path], typer.Argument(metavar="RUN|COMPARISON...", show_default=False)]


def report(
    paths: Paths,
    out: Annotated[Path | None, typer.Option("--out", help="The file; by default report.html in the run.")] = None,
    baseline: Baseline = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """One HTML file with every table and figure, to explore without a network."""
    from polyfed.report.page import write_report
    from polyfed.report.runs import select

    made = write_report(paths, out, baseline)
    for remark in select(paths, baseline).remarks():
        say(remark, 0)
    sys.stdout.write((json.dumps({"report": str(made)}) if as_json else f"report: {made}") + "\n")


def figure(
    kind: Annotated[str, typer.Argument(metavar="KIND", show_default=False)],
    paths: Paths,
    out: Annotated[Path, typer.Option("--out", help="x.pdf, x.svg or x.png; its data go to x.csv.")],
    baseline: Baseline = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """One figure in print quality, with its data as CSV beside.

    KIND: rounds, bytes, seconds, holdings, tail, classes, groups, clients, ranks, change, scatter, clusters,
    similarity, parameters, attack, weights, uploads.
    """
    from polyfed.report.kinds import draw
    from polyfed.report.print import save
    from polyfed.report.runs import select

    selection = select(paths, baseline)
    with reading(" and ".join(f"'{path}'" for path in paths)):
        chart = draw(kind, selection)
    data = save(chart, out)
    for remark in selection.remarks():
        say(remark, 0)
    value = {"figure": str(out), "data": str(data)}
    sys.stdout.write((json.dumps(value) if as_json else f"figure: {out}\ndata: {data}") + "\n")
