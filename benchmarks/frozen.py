"""The frozen-part cache: a method's own phases with it and without it, on the same clients and batches.

Without it, a client's features are its raw rows under the name of the cut: `fit` draws the same batches and runs the
frozen part on every one of them. Class gradients (CReFF, PKCF) run the body on every draw instead of once.
"""

import argparse
import gc
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cells import Cell
from benchmarks.measure import Failed, Side, interleaved, paired, spread
from benchmarks.results import Result
from benchmarks.timer import Timer

TOLERANCE = 1e-4  # of the largest value


def measure(cell: Cell, folder: Path, rivals: Sequence[str], say: Callable[[str], None]) -> Result:
    """Seconds in the frozen phases, cached and not, and how far the results are apart."""
    kept = {name: folder / "tasks" / f"frozen-{name}.npz" for name in ("cached", "uncached")}
    (folder / "tasks").mkdir(parents=True, exist_ok=True)
    sides = {
        name: Side.python("frozen", json.dumps(cell.work), "--save", str(path), *["--uncached"] * (name == "uncached"))
        for name, path in kept.items()
    }
    found = interleaved(sides, cell.repeats, say)
    if None in [*found["cached"], *found["uncached"]]:
        raise Failed("a side could not be measured")
    apart = difference(*kept.values())
    if not apart <= TOLERANCE:
        raise Failed(f"results with and without the cache differ by {apart:.2g} of the largest value")
    ratio = spread(paired(found["uncached"], found["cached"], lambda numbers: numbers["seconds"]))
    return {"sides": found, "ratios": {"uncached": ratio}, "difference": apart}


def difference(one: Path, other: Path) -> float:
    """The largest difference of two saved results, as a share of the largest value."""
    with np.load(one, allow_pickle=False) as a, np.load(other, allow_pickle=False) as b:
        if set(a) != set(b) or not set(a):
            raise Failed("results with and without the cache have other names")
        return max(float(np.abs(a[k] - b[k]).max(initial=0) / max(np.abs(a[k]).max(initial=0), 1e-12)) for k in a)


class InName(str):
    """A cut in name only: it keys the batches, and equals no cut, so that the body runs on what it names."""

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return False


def watch(timer: Timer, cached: bool) -> None:
    """Time the frozen phases in this process; turn the cache off if asked to."""
    from polyfed.methods import federated_features
    from polyfed.methods.sites import Client

    gradients = federated_features.class_gradients
    if not cached:
        Client.features = lambda self, cut="head": replace(self.data, cut=InName(cut))  # type: ignore[method-assign]
        gradients = partial(_on_every_draw, gradients)
    federated_features.class_gradients = timer.watched(gradients)
    Client.features = timer.watched(Client.features)  # type: ignore[method-assign]
    Client.fit = timer.watched(  # type: ignore[method-assign]
        Client.fit, lambda client, loss, on=None, **options: on is not None and on.cut is not None
    )


def _on_every_draw(gradients: Callable[..., Any], *given: Any) -> Any:
    """Class gradients by the way of changing inputs, with a change that is none."""
    return gradients(*given[:-1], lambda x, generator: x)


def work(tree: dict[str, Any], kind: Any, clients: int, cached: bool) -> tuple[float, dict[str, np.ndarray]]:
    """Seconds in the frozen phases of some clients after a first one, and all they made."""
    import torch

    from benchmarks.sites import server_of, world_of
    from polyfed.engine.work import Job
    from polyfed.message import Memory

    torch.set_num_threads(1)
    timer = Timer(time.process_time)  # one thread that waits for nothing: a busy machine does not matter
    watch(timer, cached)
    here, there = world_of(tree), world_of(tree)
    server = server_of(here)
    made: dict[str, np.ndarray] = {}
    for number in range(clients + 1):
        if number == 1:
            gc.collect()
            gc.freeze()  # or a collection of all that was imported falls into one side's few milliseconds, by chance
            timer.seconds = 0.0  # the first one warms up
        outcome = there.do(Job(kind, number, 1, here.method.send(server, number)), None)
        if outcome.error:
            raise SystemExit(outcome.trace)
        memory = Memory.decode(outcome.memory, there.resident.layout).tensors() if outcome.memory else {}
        values = {**outcome.up.tensors(), **memory}
        made |= {f"{number}.{name}": value.double().numpy() for name, value in values.items()}
    return timer.seconds, made


def main() -> None:
    """Print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=json.loads)
    parser.add_argument("--save", type=Path, required=True)
    parser.add_argument("--uncached", action="store_true")
    options = parser.parse_args()
    given = options.work
    seconds, made = work(given["tree"], given["job"], given["clients"], not options.uncached)
    np.savez(options.save, **made)  # type: ignore[arg-type]
    print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main()
