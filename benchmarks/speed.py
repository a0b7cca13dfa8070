"""Training speed: polyfed, the limit and the rivals on the same batches."""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.cells import Cell
from benchmarks.layout import Layout
from benchmarks.measure import Failed, Numbers, Side, once, paired, spread
from benchmarks.results import Result
from benchmarks.rivals.envs import environment
from benchmarks.task import Task
from benchmarks.turns import take_turns

LATE = ("flower",)  # many times slower, and its processes compute while they wait
HOPE = 0.7  # a layout with which the limit reaches less than this share of its best is not tried with a rival
Say = Callable[[str], None]
Rates = Mapping[str, float]  # samples per second by layout


def rate(numbers: Numbers) -> float:
    """Samples per second."""
    return numbers["samples"] / numbers["seconds"]


def computed(numbers: Numbers) -> float:
    """Samples per second of processor time; no number where there is no /proc to read it from."""
    return numbers["samples"] / (numbers["cpu"] or float("nan"))


def measure(cell: Cell, folder: Path, rivals: Sequence[str], say: Say) -> Result:
    """Calibrate the layouts, then all sides in turn."""
    path = Path(once(Side.python("task", *arguments(cell, folder)))["task"])
    calibration = once(Side.python("limit", str(path), "--calibrate"))
    calibration.pop("memory")
    best = Layout.parse(max(calibration, key=lambda layout: calibration[layout]))
    sides = {"limit": Side.python("limit", str(path), "--layout", str(best)), "ours": Side.python("ours", str(path))}
    failed: dict[str, str] = {}
    for rival in rivals:
        try:
            sides[rival] = RIVALS[rival](path, best, calibration, say)
        except Failed as failure:
            failed[rival] = str(failure)
            say(f"{rival} failed: {failure}")
    found = take_turns(sides, cell.repeats, say, [name for name in LATE if name in sides])
    if None in found["ours"] + found["limit"]:
        raise Failed("polyfed or the limit could not be measured")
    failed |= {rival: "it stopped" for rival in rivals if found.get(rival, [None])[-1] is None and rival not in failed}
    ratios = {side: spread(paired(found["ours"], found[side], rate)) for side in found if side != "ours"}
    return {
        "layout": str(best),
        "calibration": calibration,
        "sides": found,
        "ratios": ratios,
        "processor": spread(paired(found["ours"], found["limit"], computed)),
        "failed": failed,
        "work": in_words(Task.load(path)),
    }


def arguments(cell: Cell, folder: Path) -> tuple[str, ...]:
    """What the writer of the task is told."""
    turns = cell.repeats + len(LATE)
    return json.dumps(cell.work["tree"]), str(cell.work["rounds"]), str(turns), str(folder / "tasks")


def in_words(task: Task) -> Mapping[str, float]:
    """How much a side does."""
    sizes = task.sizes()
    samples = sum(sizes[k] for chosen in task.selected for k in chosen) / len(task.selected)
    return {"rounds": task.per_turn, "samples": samples, "clients": len(task.selected[0]), "of": len(sizes)}


def pfl(path: Path, best: Layout, calibration: Rates, say: Say) -> Side:
    """pfl in the limit's memory format, in the best of the layouts that are not hopeless, found in a moment of work."""
    task = Task.load(path)
    short = path.with_suffix(".short.json")
    few = task.selected[0][: max(2 * best.processes * best.threads, len(task.selected[0]) // 10)]
    dataclasses.replace(task, selected=[few] * 3, per_turn=1).save(short)
    ways = [way for way in map(Layout.parse, calibration) if way.channels_last == best.channels_last]
    ways = [way for way in ways if calibration[str(way)] >= HOPE * calibration[str(best)]]
    tried = take_turns({str(way): pfl_side(short, way) for way in ways}, 2, lambda text: None) if len(ways) > 1 else {}
    rates = {way: max((rate(n) for n in tried.get(str(way), []) if n), default=0.0) for way in ways}
    chosen = max(rates, key=lambda way: rates[way])
    say(f"pfl runs as {chosen}, of {', '.join(map(str, ways))}")
    return pfl_side(path, chosen)


def pfl_side(path: Path, way: Layout, whole: bool = False) -> Side:
    """pfl in a layout; in turns, or all rounds at once."""
    programs, flags = environment("pfl"), ["--channels-last"] * way.channels_last + ["--whole"] * whole
    start = [str(programs / "python")]
    if way.processes > 1:
        start = [str(programs / "torchrun"), "--standalone", "--nproc-per-node", str(way.processes)]
    command = [*start, "-m", "benchmarks.rivals.pfl_sim", str(path), "--threads", str(way.threads), *flags]
    return Side(command, {"OMP_NUM_THREADS": str(way.threads)})


def flower(path: Path, best: Layout, calibration: Rates, say: Say) -> Side:
    """Flower in the limit's memory format."""
    return flower_side(path, best)


def flower_side(path: Path, way: Layout, whole: bool = False) -> Side:
    """Flower, tuned; in turns, or all rounds at once."""
    flags = ["--channels-last"] * way.channels_last + ["--whole"] * whole
    start = [str(environment("flower") / "python"), "-m", "benchmarks.rivals.flower_sim"]
    return Side([*start, str(path), *flags], {"OMP_NUM_THREADS": "1"})


RIVALS: dict[str, Callable[[Path, Layout, Rates, Say], Side]] = {"pfl": pfl, "flower": flower}
