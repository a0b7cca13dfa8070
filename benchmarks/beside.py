"""FedAvg from command to end, beside other simulators: whole processes, start-up and all.

The rivals find their rows prepared in a file. pfl and the tuned Flower evaluate nothing; Flower as its own examples are
written evaluates half the clients after every round; polyfed all of them, and the global model.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.cells import Cell
from benchmarks.layout import Layout, layouts
from benchmarks.measure import Failed, Numbers, Side, finished, interleaved, once, paired, spread
from benchmarks.results import Result
from benchmarks.rivals.envs import environment
from benchmarks.speed import flower_side, pfl_side
from benchmarks.whole import polyfed, seconds, whole, written

Made = Callable[[Path, Layout], Side]


def measure(cell: Cell, folder: Path, rivals: Sequence[str], say: Callable[[str], None]) -> Result:
    """All sides in turn, each in fresh processes."""
    tree = cell.work["tree"]
    arguments = json.dumps(tree), str(tree["rounds"] - 1), "1", str(folder / "tasks")  # a task has one round more
    task = Path(once(Side.python("task", *arguments))["task"])
    best = layouts(channels=True)[0]._replace(channels_last=True)  # a process per core: the best of every cell so far
    sides: dict[str, Side] = {}
    failed: dict[str, str] = {}
    for name in rivals:
        try:
            sides |= {side: made(task, best) for side, made in RIVALS[name].items()}
        except Failed as failure:
            failed[name] = str(failure)
            say(f"{name} failed: {failure}")
    with written({"fedavg": tree}) as files:
        sides = {"ours": polyfed("run", files["fedavg"]), **sides}
        found = interleaved(sides, cell.repeats, say, lambda side: run(side, side is sides["ours"]))
    if None in found["ours"]:
        raise Failed("polyfed could not be measured")
    failed |= {name: "it stopped" for name, numbers in found.items() if None in numbers}
    ratios = {name: spread(paired(found[name], found["ours"], seconds)) for name in found if name != "ours"}
    return {"sides": found, "ratios": ratios, "failed": failed}


def run(side: Side, ours: bool) -> Numbers:
    """A side to its end."""
    return whole(side) if ours else finished(side)[1]


def example(task: Path, best: Layout) -> Side:
    """Flower as its examples are written: nothing is set."""
    return Side([str(environment("flower") / "python"), "-m", "benchmarks.rivals.flower_example", str(task)])


RIVALS: dict[str, dict[str, Made]] = {
    "pfl": {"pfl": lambda task, best: pfl_side(task, best, whole=True)},
    "flower": {"flower": lambda task, best: flower_side(task, best, whole=True), "flower example": example},
}
