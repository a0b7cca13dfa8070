"""How fast methods get where they get: accuracy by round, rounds to a level, and time until enough clients have it.

Every evaluation is after full personalisation (MuPFL's Figures 6b to 6d and 8). A panel is one run, `DATA: METHOD`.
Seconds are of training and merging, without evaluating. They are no result that can be repeated to the bit, so that
their names begin with "seconds", by which they are left out where a repetition is compared.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from textwrap import fill

import numpy as np
from pandas import DataFrame
from pydantic import Field

from polyfed.measure.metrics import round_of_arrival
from polyfed.methods.creff import CReFF
from polyfed.methods.ditto import Ditto
from polyfed.methods.fedavg_ft import FedAvgFT
from polyfed.methods.fednova import FedNova
from polyfed.methods.fedprox import FedProx
from polyfed.methods.fedrep import FedRep
from polyfed.methods.presets import MuPFLPaper
from polyfed.papers.demos import Demo, Drawn, ExperimentKeys, Shown, demo
from polyfed.papers.within import as_drawn, personalised_run
from polyfed.report.charts import COUNT, PERCENT, SECONDS, Axis, Bars, Chart, Line, Panel
from polyfed.report.runs import records

WIDE = 60  # letters of a note beneath a title
USED = (CReFF, Ditto, FedAvgFT, FedNova, FedProx, FedRep, MuPFLPaper)  # their sources count for what is stored


class Keys(ExperimentKeys):
    """An experiment, the accuracy that is to be reached, and which shares of the clients are to reach it."""

    level: float = Field(0.7, gt=0, lt=1)
    shares: tuple[float, ...] = (0.3, 0.4, 0.5)


@demo("progress", Keys)
def progress(seed: int, keys: Keys) -> Demo:
    """Accuracy by round."""
    return _followed(seed, keys)


@demo("pace", Keys)
def pace(seed: int, keys: Keys) -> Demo:
    """Rounds and seconds to an accuracy."""
    return _followed(seed, keys)


def _followed(seed: int, keys: Keys) -> Demo:
    with personalised_run(keys.experiment, seed) as folder:
        measured = _personal(records(folder.path, "rounds"), folder.tree()["rounds"])
        clients = _personal(records(folder.path, "clients"), folder.tree()["rounds"])
        spent = records(folder.path, "spent").set_index("round")
    curve = list(zip(measured["round"].astype(int), measured["accuracy"].astype(float), strict=True))
    last = int(measured["round"].max())
    arrived = round_of_arrival(curve, keys.level)
    numbers = {
        "PA_all": 100 * curve[-1][1],
        "rounds": math.nan if arrived is None else float(arrived),
        "rounds, at least": float(last + 1 if arrived is None else arrived),
    }
    firsts = _first_rounds(clients, keys.level)
    for share in keys.shares:
        at = _crowd(firsts, share)
        numbers[f"rounds until {share:.0%} of the clients"] = math.nan if at is None else float(at)
        numbers[f"seconds until {share:.0%} of the clients"] = (
            math.nan if at is None else float(spent.loc[at, "train"] + spent.loc[at, "server"])
        )
    x, y = zip(*curve, strict=True)
    return Demo({"all": numbers}, {"round": np.array(x), "accuracy": np.array(y)})


def _personal(table: DataFrame, rounds: int) -> DataFrame:
    """The evaluations of personal models after rounds; what comes after the last one is none."""
    return table[(table["measure"] == "personal") & (table["round"] <= rounds)]


def _first_rounds(clients: DataFrame, level: float) -> list[int | None]:
    """Of every client, the first round in which its own model is as good as that; None: never."""
    found: list[int | None] = []
    for _, rows in clients.groupby("client"):
        good = rows[rows["accuracy"] >= level]["round"]
        found.append(int(good.min()) if len(good) else None)
    return found


def _crowd(firsts: Sequence[int | None], share: float) -> int | None:
    """The round by which so large a share of the clients have been there."""
    there = sorted(first for first in firsts if first is not None)
    needed = math.ceil(share * len(firsts) - 1e-9)
    return there[needed - 1] if len(there) >= needed else None


# ---- pictures


def _by_data(shown: Sequence[Shown]) -> dict[str, dict[str, list[Shown]]]:
    """What was found by data set and method; both are in the names of panels."""
    made: dict[str, dict[str, list[Shown]]] = {}
    for one in shown:
        data, _, method = one.panel.partition(": ")
        made.setdefault(data, {}).setdefault(method, []).append(one)
    return made


def _tints(shown: Sequence[Shown]) -> dict[str, int]:
    names = dict.fromkeys(one.panel.partition(": ")[2] for one in shown)
    return {name: tint for tint, name in enumerate(names)}


@progress.drawing
def draw_progress(shown: Sequence[Shown]) -> Drawn:
    """Figures 6b to 6d: accuracy against rounds, a panel for each data set."""
    tints = _tints(shown)
    panels = []
    for data, methods in _by_data(shown).items():
        marks = [_line(method, tints[method], runs) for method, runs in methods.items()]
        panels.append(Panel(data, Axis("round", "round", COUNT), Axis("PA_all", "PA_all", PERCENT), marks))
    return as_drawn(Chart("progress", "Accuracy by round", "After full personalisation at every point.", panels))


def _line(method: str, tint: int, runs: Sequence[Shown]) -> Line:
    rounds = runs[0].found.arrays["round"].tolist()
    values = np.stack([one.found.arrays["accuracy"] for one in runs])
    spread = values.std(axis=0, ddof=1) if len(runs) > 1 else np.zeros(len(rounds))
    return Line(method, tint, rounds, values.mean(axis=0).tolist(), spread.tolist(), [len(runs)] * len(rounds))


@pace.drawing
def draw_pace(shown: Sequence[Shown]) -> Drawn:
    """Figure 8: seconds until shares of the clients are there, rounds until their mean is; who never was is named."""
    tints, by_data = _tints(shown), _by_data(shown)
    panels = [
        _bars(f"{data}: until so many clients have the accuracy", methods, tints) for data, methods in by_data.items()
    ]
    panels = [panel for panel in panels if any(isinstance(mark, Bars) and mark.x for mark in panel.marks)]
    return as_drawn(Chart("pace", "Time and rounds to an accuracy", "", [*panels, _rounds_panel(by_data, tints)]))


def _rounds_panel(by_data: Mapping[str, Mapping[str, Sequence[Shown]]], tints: Mapping[str, int]) -> Panel:
    """Rounds by data set; a bar of who was never there goes one beyond the last round, and the note says so."""
    names, never = list(by_data), []
    marks = []
    for method, tint in tints.items():
        found = {float(names.index(data)): runs[method] for data, runs in by_data.items() if method in runs}
        heights = [_mean(runs, "rounds, at least") or 0.0 for runs in found.values()]
        never += [f"{method} ({names[int(at)]})" for at, runs in found.items() if _mean(runs, "rounds") is None]
        marks.append(Bars(method, tint, list(found), heights, [0.0] * len(found)))
    note = f"never, so one beyond the last: {', '.join(never)}" if never else ""
    rounds = Axis("rounds", "rounds", COUNT)
    return Panel(
        "rounds until the mean over clients has it", Axis("", "data", names=names), rounds, marks, fill(note, WIDE)
    )


def _bars(title: str, methods: Mapping[str, Sequence[Shown]], tints: Mapping[str, int]) -> Panel:
    start = "seconds until "
    first = next(iter(methods.values()))[0].found.numbers["all"]
    columns = [name for name in first if name.startswith(start)]
    marks = []
    for method, runs in methods.items():
        found = {float(place): _mean(runs, column) for place, column in enumerate(columns)}
        there = {place: value for place, value in found.items() if value is not None}
        marks.append(Bars(method, tints[method], list(there), list(there.values()), [0.0] * len(there)))
    places = [column.removeprefix(start).removesuffix(" of the clients") for column in columns]
    return Panel(title, Axis("share of the clients", "share", names=places), Axis("seconds", "seconds", SECONDS), marks)


def _mean(runs: Sequence[Shown], column: str) -> float | None:
    """The mean over seeds; None where one of them never got there."""
    values = [one.found.numbers["all"][column] for one in runs]
    return fmean(values) if values and not any(map(math.isnan, values)) else None
