"""Ten thousand clients against two hundred, with the same number selected: set-up, a round, and memory.

The federation is made by hand: every client is an index view of some rows of one pool, and views may overlap.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cells import Cell
from benchmarks.measure import Failed, Numbers, Side, paired, spread
from benchmarks.results import Result
from benchmarks.turns import Rounds, take_turns

SITTINGS = 3
RATIOS = {"setup": "setup", "round": "seconds", "memory": "memory"}


def measure(cell: Cell, folder: Path, rivals: Sequence[str], say: Callable[[str], None]) -> Result:
    """Ratios of the large federation to the small one."""
    sides = {
        name: Side.python("scale", json.dumps(cell.work), "--clients", str(cell.work[name]))
        for name in ("small", "large")
    }
    sittings = [take_turns(sides, cell.repeats, say) for _ in range(SITTINGS)]  # one set-up, one memory in each
    found = {name: [numbers for sitting in sittings for numbers in sitting[name]] for name in sides}
    if None in [*found["small"], *found["large"]]:
        raise Failed("a side could not be measured")
    large, small = found["large"], found["small"]
    return {"sides": found, "ratios": {what: spread(paired(large, small, _value(what))) for what in RATIOS}}


def _value(what: str) -> Callable[[Numbers], float]:
    return lambda numbers: numbers[RATIOS[what]] or float("nan")


def federation(tree: dict[str, Any], clients: int, samples: int) -> Any:
    """So many clients, each with some random rows of the training part."""
    from polyfed.api import config_of
    from polyfed.data.federation import Federation
    from polyfed.data.sources.base import load_cached
    from polyfed.data.split import Split

    dataset = load_cached(config_of(tree).data)
    draw, none = np.random.default_rng(0), np.empty(0, np.int64)
    return Federation(
        dataset,
        Split(
            train=tuple(draw.integers(dataset.train, size=(clients, samples))),
            val=(none,) * clients,
            test=(none,) * clients,
            global_test=np.arange(dataset.train, len(dataset.y)),
            heldout=(),
            names=tuple(map(str, range(clients))),
            mirrored=False,
            notes={},
        ),
    )


def work(given: dict[str, Any], clients: int) -> None:
    """Turns of rounds at polyfed's own settings: a checkpoint every round, memory that spills."""
    from benchmarks.ours import Clock, clocked
    from polyfed.engine import work as worlds
    from polyfed.engine.memory import MemoryStore
    from polyfed.engine.rounds import Run

    made = federation(given["tree"], clients, given["samples"])
    worlds.federation_of = lambda config, device=worlds.CPU: made  # workers are forked and inherit it

    def store(run: Run) -> MemoryStore:
        return MemoryStore(run.folder.path / "memory", given["ram"])

    Run.make_store = store  # type: ignore[method-assign, assignment]
    tree = {**given["tree"], "participation": given["per_round"] / clients, "split": {"clients": clients}}
    trained = given["samples"] * given["per_round"] * given["rounds"]
    with tempfile.TemporaryDirectory() as folder:
        clocked(tree, Clock(Rounds(given["rounds"], lambda turn: trained)), Path(folder) / "run")


def main() -> None:
    """Take turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=json.loads)
    parser.add_argument("--clients", type=int, required=True)
    options = parser.parse_args()
    work(options.work, options.clients)


if __name__ == "__main__":
    main()
