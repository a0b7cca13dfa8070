"""Whole runs: a real `polyfed run` from its command to its table, against FedAvg's and the arithmetic it needs."""

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.cells import Cell, Tree
from benchmarks.measure import Failed, Numbers, Side, finished, interleaved, once, paired, spread
from benchmarks.results import Result

CLIENT_WORK = ("train", "finish")  # the phases of a run in which clients train
BASE = "fedavg"


def measure(cell: Cell, folder: Path, rivals: Sequence[str], say: Callable[[str], None]) -> Result:
    """The method's run and FedAvg's take turns, each in fresh processes.

    A run in one process is compared by processor time, which a busy machine stretches less; with workers the clock
    counts. The ratio by the clock stands beside it.
    """
    tree, method = cell.work["tree"], cell.work["tree"]["method"]
    with written({name: {**tree, "method": name} for name in (BASE, method)}) as files:
        found = interleaved({name: polyfed("run", path) for name, path in files.items()}, cell.repeats, say, whole)
    if None in [*found[BASE], *found[method]]:
        raise Failed("a run could not be measured")
    by = "the clock" if tree.get("engine", {}).get("workers") else "processor"
    ratios = paired(found[method], found[BASE], processor if by == "processor" else seconds)
    clock = paired(found[method], found[BASE], seconds)
    clusterings = max(run["clusterings"] for run in found[method] if run)
    needs = once(Side.python("arithmetic", json.dumps({"tree": tree, "clusterings": clusterings})))["needs"]
    return {
        "sides": found,
        "by": by,
        "ratios": {
            BASE: spread(ratios),
            "clock": spread(clock),
            "arithmetic": spread([ratio / needs for ratio in ratios]),
        },
        "needs": needs,
        "shares": {name: spread([client_share(run["phases"]) for run in runs if run]) for name, runs in found.items()},
    }


def measure_comparison(cell: Cell, folder: Path, rivals: Sequence[str], say: Callable[[str], None]) -> Result:
    """The same comparison with several cells at once and with one after the other; the results must be the same."""
    with written({"comparison": cell.work["tree"]}) as files:
        sides = {f"jobs={jobs}": polyfed("compare", files["comparison"], f"jobs={jobs}") for jobs in ("auto", 1)}
        found = interleaved(sides, cell.repeats, say, whole)
    runs = [run for each in found.values() for run in each]
    if None in runs:
        raise Failed("a comparison could not be measured")
    prints = [run["fingerprints"] for run in runs if run]
    expected = len(cell.work["tree"]["methods"]) * cell.work["tree"]["seeds"]
    if len(prints[0]) != expected or any(other != prints[0] for other in prints):
        raise Failed("several cells at once gave other fingerprints than one after the other")
    ratio = spread(paired(found["jobs=1"], found["jobs=auto"], seconds))
    return {"sides": found, "ratios": {"jobs": ratio}, "runs": expected}


def seconds(numbers: Numbers) -> float:
    """From the start of a command to its end."""
    return float(numbers["seconds"])


def processor(numbers: Numbers) -> float:
    """What a command and all its processes computed."""
    return float(numbers["processor"])


def polyfed(*words: object) -> Side:
    """The command line as people start it; a process of polyfed sets up its own allocator."""
    return Side([sys.executable, "-m", "polyfed.cli", *map(str, words)])


@contextmanager
def written(trees: Mapping[str, Tree]) -> Iterator[dict[str, Path]]:
    """Config files for a command; JSON is YAML too."""
    with tempfile.TemporaryDirectory() as folder:
        files = {name: Path(folder) / f"{name}.yaml" for name in trees}
        for name, path in files.items():
            path.write_text(json.dumps(trees[name]), encoding="utf-8")
        yield files


def whole(side: Side) -> Numbers:
    """A command to its end in a directory of its own: its seconds, where the run says they went, and what came out."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        _, took = finished(replace(side, command=[*side.command, "--out", str(out)]))
        return {**took, **outcome(out)}


def outcome(out: Path) -> Numbers:
    """What a run, or all the runs of a comparison, left behind."""
    made = {str(path.parent.relative_to(out)): _summary(path) for path in sorted(out.rglob("summary.json"))}
    if not made:
        raise Failed("the command ended without a result")
    only = next(iter(made.values()))
    return {
        "fingerprints": {name: summary["fingerprint"] for name, summary in made.items()},
        "phases": only["seconds"] if len(made) == 1 else {},
        "clusterings": len(list(out.rglob("similarity-*.npy"))),
    }


def _summary(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def client_share(phases: Mapping[str, float]) -> float:
    """The share of client work in the wall clock after set-up, as the run accounts for it."""
    after = phases["total"] - phases.get("setup", 0.0)
    return sum(phases.get(phase, 0.0) for phase in CLIENT_WORK) / after
