"""How fast methods get where they get: accuracy by round, rounds to a level, and time until enough clients have it.

Every evaluation is after full personalisation (MuPFL's Figures 6b to 6d and 8). A panel is one run, `DATA: METHOD`.
Seconds are of training and merging, without evaluating. They are no result that can be repeated to the bit, so that
their names begin with "seconds", by which they are left out where a repetition is compared.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from pandas import DataFrame
from pydantic import Field

from polyfed.config import Tree, make_config
from polyfed.measure.metrics import round_of_arrival
from polyfed.methods.base import Method
from polyfed.papers.demos import Demo, ExperimentKeys, demo
from polyfed.papers.within import personalised_run
from polyfed.report.runs import records


class Keys(ExperimentKeys):
    """An experiment, the accuracy that is to be reached, and which shares of the clients are to reach it."""

    level: float = Field(0.7, gt=0, lt=1)
    shares: tuple[float, ...] = (0.3, 0.4, 0.5)

    def trains(self) -> Iterable[tuple[Tree, float]]:
        """The run; where its method personalises, every client does so at every evaluation."""
        config = make_config(self.experiment)
        finishes = type(config.method).finish is not Method.finish
        yield self.experiment, 1 + finishes / (config.eval.every * config.participation)


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
