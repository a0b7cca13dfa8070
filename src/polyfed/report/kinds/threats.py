"""A run under attack: what the attack achieves round by round, and what a defence let every client weigh."""

import numpy as np

from polyfed.report.charts import COUNT, PERCENT, Axis, Chart, Line, Mark, Panel, Tiles, drawn, told_apart
from polyfed.report.kinds.clusters import names_of, one_seed
from polyfed.report.kinds.curves import BAND, over_seeds
from polyfed.report.kinds.words import measured, titled
from polyfed.report.runs import Selection, Shown, by_row

RATES = {"acc": "accuracy of honest clients (ACC)", "asr": "success rate of the attack (ASR)"}


def attack(selection: Selection) -> Chart | None:
    """Accuracy of honest clients and success of the attack after each measured round."""
    panels = []
    for rate, words in RATES.items():
        for setting, runs in selection.by_setting().items():
            lines: list[Mark] = []
            for row, seeds in by_row(runs).items():
                points = over_seeds(point for run in seeds for point in _points(run, rate))
                if points:
                    x, y, spread, count = (list(each) for each in zip(*points, strict=True))
                    lines.append(Line(measured(selection, row), selection.rows.index(row), x, y, spread, count))
            marks, note = told_apart(lines)
            panels.append(
                Panel(
                    titled(words, setting),
                    Axis("round", "round", COUNT),
                    Axis(rate.upper(), "rate", PERCENT),
                    marks,
                    note,
                )
            )
    caption = f"{BAND} Both on the global test set, of the models that honest clients would be sent."
    return drawn("attack", "Under attack", caption, panels)


def weights(selection: Selection) -> Chart | None:
    """What each upload weighed, by client and round, in runs in which somebody attacked."""
    panels = [_weights_panel(title, run) for title, run in one_seed(selection)]
    caption = (
        "The weight that the defence gave each upload; no tile: not asked, or stopped before the defence. Clients that "
        "attack in some round are marked and come first."
    )
    return drawn("weights", "Weights under a defence", caption, panels)


def _points(run: Shown, rate: str) -> list[tuple[int, float, float]]:
    found = run.records("threats")
    return [(int(number), float(number), float(y)) for number, y in zip(found["round"], found[rate], strict=True)]


def _weights_panel(title: str, run: Shown) -> Panel:
    found, names = run.records("training"), names_of(run)
    x, y = Axis("round", "round", names=[]), Axis("client", "client", names=[])
    if not {"attacker", "weight"} <= set(found):  # the records of an earlier version
        return Panel(title, x, y, [])
    attackers = set(found.loc[found["attacker"] == 1, "client"])
    weighed = found.dropna(subset=["weight"])
    if not attackers or not len(weighed):
        return Panel(title, x, y, [])
    rounds = sorted(set(weighed["round"]))
    clients = [*sorted(attackers), *sorted(set(weighed["client"]) - attackers)]
    values = np.full((len(clients), len(rounds)), np.nan)
    for number, client, weight in zip(weighed["round"], weighed["client"], weighed["weight"], strict=True):
        values[clients.index(client), rounds.index(number)] = weight
    told = [names.get(k, str(k)) + (" (attacker)" if k in attackers else "") for k in clients]
    x, y = Axis("round", "round", names=[str(n) for n in rounds]), Axis("client", "client", names=told)
    return Panel(title, x, y, [Tiles("", 0, values, "weight")], f"{len(attackers)} of {len(clients)} clients attack")
