"""`polyfed report` and `polyfed figure`: what runs and comparisons look like."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyfed.cli.common import Baseline, Json, Quiet, Trust, say
from polyfed.cli.use import Client, Global, need_one
from polyfed.errors import UsageError, reading

if TYPE_CHECKING:
    from polyfed.report.charts import Chart
    from polyfed.report.runs import Selection

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
    client: Client = None,
    everybody: Global = False,
    images: Annotated[int | None, typer.Option("--images", help="Test images of maps; 4 by default.", min=1)] = None,
    trust: Trust = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """One figure in print quality, with its data as CSV beside.

    KIND: rounds, bytes, seconds, holdings, tail, classes, groups, clients, ranks, change, scatter, clusters,
    similarity, parameters, attack, weights, uploads; or maps, which needs --client or --global.
    """
    from polyfed.report.kinds import draw
    from polyfed.report.print import save
    from polyfed.report.runs import select

    selection = select(paths, baseline)
    with reading(" and ".join(f"'{path}'" for path in paths)):
        if kind == "maps":
            chart = _maps(selection, client, everybody, images, trust)
        elif client is not None or everybody or images is not None or trust:
            raise UsageError(f"--client, --global, --images and --trust are for the figure maps, not for '{kind}'")
        else:
            chart = draw(kind, selection)
    data = save(chart, out)
    for remark in selection.remarks():
        say(remark, 0)
    value = {"figure": str(out), "data": str(data)}
    sys.stdout.write((json.dumps(value) if as_json else f"figure: {out}\ndata: {data}") + "\n")


def _maps(selection: "Selection", client: str | None, everybody: bool, images: int | None, trust: bool) -> "Chart":
    """Class activation maps, for which models and data are read."""
    from polyfed.report.looking import maps_of_runs

    need_one(client, everybody)
    return maps_of_runs(selection, client, 4 if images is None else images, trust)
