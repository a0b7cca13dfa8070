"""Who holds what: training samples by client and class, and the long tail they make together."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from polyfed.measure.metrics import GROUPS, class_groups
from polyfed.report.charts import COUNT, Axis, Bars, Chart, Dots, Mark, Panel, drawn
from polyfed.report.kinds.words import one_of, titled
from polyfed.report.runs import Selection

Federation = Mapping[str, Any]


def holdings(selection: Selection) -> Chart | None:
    """A bubble per client and class."""
    return drawn(*BUBBLES, [holdings_panel(title, one) for title, one in federations(selection).items()])


def split_chart(described: Federation) -> Chart:
    """The same of a split before anything is trained; where labels are masks, it says `colours`, as a run does."""
    return Chart(*BUBBLES, [holdings_panel(f"training {_counted(described)} by client and class", described)])


BUBBLES = (
    "holdings",
    "Who holds what",
    "A bubble per client and class; its area is the number of training samples, or of pixels where labels are masks.",
)


def long_tail(selection: Selection) -> Chart | None:
    """The samples of each class over all clients, most frequent first, cut into head, mid and tail."""
    caption = (
        "Training samples (pixels where labels are masks) over all clients; head, mid and tail are the thirds of the "
        "classes by this count."
    )
    panels = [_tail_panel(title, one) for title, one in federations(selection).items()]
    return drawn("tail", "The long tail", caption, panels)


def federations(selection: Selection) -> dict[str, Federation]:
    """One federation for each setting, of its smallest seed, where every client told what it holds."""
    found: dict[str, Federation] = {}
    for setting, runs in selection.by_setting().items():
        told = [run for run in runs if run.federation and _counts(run.federation).size]
        if told:
            run = min(told, key=lambda run: run.seed)
            found[titled(one_of([run, *runs]), setting)] = run.federation or {}
    return found


def class_names(federation: Federation) -> list[str]:
    """What classes are called; their numbers where nobody says."""
    count = _counts(federation).shape[1]
    return [str(name) for name in federation.get("class_names") or range(count)]


def class_order(federation: Federation | None) -> list[int] | None:
    """Classes from the most to the least frequent; None where it is not known."""
    if not federation or not _counts(federation).size:
        return None
    groups = class_groups(_counts(federation).sum(axis=0).tolist())
    return [c for name in GROUPS for c in groups[name]]


def _counts(federation: Federation) -> np.ndarray:
    """Training samples, [client, class]; empty where somebody does not tell."""
    told = [client.get("counts") for client in federation["clients"]]
    return np.array(told) if told and all(counts for counts in told) else np.zeros((0, 0), int)


def holdings_panel(title: str, federation: Federation) -> Panel:
    """Clients from left to right, classes from top to bottom as they are numbered."""
    counts, clients = _counts(federation), federation["clients"]
    places = [(k, c) for k, c in np.argwhere(counts > 0).tolist()]
    heldout = set(federation.get("heldout", ()))
    names = [f"{one['name']} (held out)" if one["id"] in heldout else str(one["name"]) for one in clients]
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    marks: list[Mark] = [
        Dots(
            "",
            0,
            [k for k, _ in places],
            [c for _, c in places],
            [f"{100 * share[k, c]:.0f} % of what {names[k]} holds" for k, c in places],
            sizes=[int(counts[k, c]) for k, c in places],
            size=_counted(federation),
        )
    ]
    x, y = Axis("client", "client", names=names), Axis("class", "class", names=class_names(federation))
    note = f"the largest bubble: {counts.max()} {_counted(federation)}" if places else ""
    return Panel(title, x, y, marks if places else [], note)


def _tail_panel(title: str, federation: Federation) -> Panel:
    totals, names = _counts(federation).sum(axis=0), class_names(federation)
    groups = class_groups(totals.tolist())
    order = class_order(federation) or []
    marks: list[Mark] = []
    for tint, group in enumerate(GROUPS):
        at = [order.index(c) for c in groups[group]]
        heights: Sequence[float] = [int(totals[c]) for c in groups[group]]
        if at:
            marks.append(Bars(group, tint, at, heights, [0.0] * len(at)))
    present = totals[totals > 0]
    note = f"imbalance factor {present.max() / present.min():.3g}" if len(present) else ""
    axis = Axis("class, from the most to the least frequent", "class", names=[names[c] for c in order])
    counted = _counted(federation)
    return Panel(title, axis, Axis(f"training {counted}", counted, COUNT), marks, note)


def _counted(federation: Federation) -> str:
    """What is counted: a federation of masks has colours, and counts pixels."""
    return "pixels" if "colours" in federation else "samples"
