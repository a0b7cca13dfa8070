"""Which uploads did not count: rejected at the gate, failed, or lost with their client."""

import pandas

from polyfed.report.charts import COUNT, Axis, Chart, Dots, Mark, Panel, drawn
from polyfed.report.kinds.words import client_name, titled
from polyfed.report.runs import Selection, Shown, by_row

KNOWN = (
    "dropout",
    "deadline",
    "worker died",
    "vanished",
    "absent",
    "false report",
)  # all other reasons are the messages of exceptions


def uploads(selection: Selection) -> Chart | None:
    """Who was lost or rejected, when and why."""
    panels = []
    kinds: dict[str, int] = {}
    for setting, runs in selection.by_setting().items():
        for row, seeds in by_row(runs).items():
            each = [_lost(selection, run) for run in seeds]
            lost, asked = pandas.concat([rows for rows, _ in each]), sum(count for _, count in each)
            kinds_here = ", ".join(f"{count} {kind}" for kind, count in lost["kind"].value_counts().items())
            note = f"{len(lost)} of {asked} uploads did not count ({kinds_here})"
            for kind in lost["kind"]:
                kinds.setdefault(kind, len(kinds))
            panels.append(_panel(titled(row, setting), lost, kinds, note))
    caption = "A mark per upload that did not count; the run went on without it. Where there is no mark, all counted."
    return drawn("uploads", "Rejected and lost uploads", caption, panels)


def _lost(selection: Selection, run: Shown) -> tuple[pandas.DataFrame, int]:
    """The uploads of a run that did not count, and how many were asked for."""
    found = run.records("training")
    lost = found[found["status"] != "accepted"].copy()
    names = {one["id"]: str(one["name"]) for one in (run.federation or {"clients": []})["clients"]}
    reasons = lost["reason"].fillna("").astype(str)
    lost["kind"] = [
        f"{status}: {reason if status == 'rejected' or reason in KNOWN else 'exception'}"
        for status, reason in zip(lost["status"], reasons, strict=True)
    ]
    lost["who"] = [
        f"{client_name(run, names.get(client, f'client {client}'), selection)}: {reason}"
        for client, reason in zip(lost["client"], reasons, strict=True)
    ]
    return lost, len(found)


def _panel(title: str, lost: pandas.DataFrame, kinds: dict[str, int], note: str) -> Panel:
    marks: list[Mark] = [
        Dots(kind, kinds[kind], rows["round"].tolist(), rows["client"].tolist(), rows["who"].tolist())
        for kind, rows in lost.groupby("kind", sort=False)
    ]
    return Panel(title, Axis("round", "round", COUNT), Axis("client", "client", COUNT), marks, note)
