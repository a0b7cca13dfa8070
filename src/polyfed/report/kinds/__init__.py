"""The kinds of figures, by name; each is a function from a selection of runs to a chart, or None without data."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from polyfed.errors import DataError, UsageError, did_you_mean
from polyfed.report.charts import Chart
from polyfed.report.kinds.classes import per_class, per_group
from polyfed.report.kinds.clients import change, distribution, scatter
from polyfed.report.kinds.clusters import clusters, parameters, similarity
from polyfed.report.kinds.curves import against_bytes, against_rounds, against_seconds
from polyfed.report.kinds.holdings import holdings, long_tail
from polyfed.report.kinds.pictures import pictures
from polyfed.report.kinds.ranks import ranks
from polyfed.report.kinds.threats import attack, weights
from polyfed.report.kinds.uploads import uploads
from polyfed.report.runs import Selection


class Kind(NamedTuple):
    """A figure: how it is made, and what it needs to be there."""

    draw: Callable[[Selection], Chart | None]
    needs: str


KINDS: Mapping[str, Kind] = {
    "rounds": Kind(against_rounds, "a measured round"),
    "bytes": Kind(against_bytes, "a measured round and spent.csv"),
    "seconds": Kind(against_seconds, "a measured round and spent.csv"),
    "holdings": Kind(holdings, "federation.json with what every client holds"),
    "tail": Kind(long_tail, "federation.json with what every client holds"),
    "classes": Kind(per_class, "a measured round"),
    "groups": Kind(per_group, "a measured round"),
    "pictures": Kind(pictures, "finished runs on masks that kept samples, with a global model"),
    "clients": Kind(distribution, "a measured client"),
    "ranks": Kind(ranks, "three methods or more with finished runs of two seeds or settings"),
    "change": Kind(change, "two methods with finished runs of the same seed"),
    "scatter": Kind(scatter, "two methods with a global model and finished runs"),
    "clusters": Kind(clusters, "a method that groups clients (distfl, mupfl, k-cluster)"),
    "similarity": Kind(similarity, "a method that records similarities (distfl)"),
    "parameters": Kind(parameters, "a method that groups clients, at its last round, with three uploads or more"),
    "attack": Kind(attack, "a measured round of a run with an attack"),
    "weights": Kind(weights, "a defence that weighs uploads, and a client that attacked"),
    "uploads": Kind(uploads, "an upload that was rejected or lost"),
}


def draw(kind: str, selection: Selection) -> Chart:
    """One figure, or the sentence that says why there is none."""
    if kind not in KINDS:
        raise UsageError(f"there is no figure '{kind}'; {did_you_mean(kind, KINDS)}")
    chart = KINDS[kind].draw(selection)
    if chart is None:
        raise DataError(f"these runs have nothing for the figure '{kind}': it needs {KINDS[kind].needs}")
    return chart


def charts(selection: Selection) -> Sequence[Chart]:
    """Every figure these runs have data for."""
    found = (kind.draw(selection) for kind in KINDS.values())
    return [chart for chart in found if chart is not None]
