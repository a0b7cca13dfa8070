"""3550 writers of LEAF's files against 200 with as many samples in all: set-up against bare reading, and memory."""

import importlib
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cells import Cell
from benchmarks.measure import Failed, Numbers, Side, answer, interleaved, paired, spread
from benchmarks.results import Result

FILES = 36  # as LEAF divides its writers
PIXELS = 784


def measure(cell: Cell, folder: Path, rivals: Sequence[str], say: Callable[[str], None]) -> Result:
    """Files are made once; then both federations, and reading alone, take turns in fresh processes."""
    with tempfile.TemporaryDirectory() as made:
        places = {name: Path(made) / name for name in ("few", "many")}
        for name, place in places.items():
            write(place, cell.work[name], cell.work["samples"])
        sides = {name: Side.python("writers", json.dumps({"place": str(at)})) for name, at in places.items()}
        sides["bare"] = Side.python("writers", json.dumps({"place": str(places["many"]), "bare": True}))
        found = interleaved(sides, cell.repeats, say)
    if None in [numbers for each in found.values() for numbers in each]:
        raise Failed("a side could not be measured")
    many, few, bare = found["many"], found["few"], found["bare"]
    ratios = {
        "reading": spread(paired(many, bare, lambda numbers: numbers["seconds"])),
        "writers": spread(paired(many, few, lambda numbers: numbers["seconds"])),
        "memory": spread(paired(many, few, lambda numbers: numbers["memory"] or float("nan"))),
    }
    return {"sides": found, "ratios": ratios}


def write(place: Path, writers: int, samples: int) -> None:
    """LEAF's training files with made characters; every writer has as many, as far as they go round."""
    draw, top = np.random.default_rng(0), place / "data" / "train"
    top.mkdir(parents=True)
    names = [f"f{k:04d}_{k % 100:02d}" for k in range(writers)]
    for part in range(FILES):
        some, data = names[part::FILES], {}
        for writer in some:
            count = max(2, samples // writers)
            x = draw.integers(0, 2, (count, PIXELS)).astype(float).tolist()
            data[writer] = {"x": x, "y": draw.integers(0, 62, count).tolist()}
        sizes = [len(data[writer]["y"]) for writer in some]
        content = {"users": some, "num_samples": sizes, "user_data": data}
        (top / f"all_data_{part}_niid_0_keep_0_train_9.json").write_text(json.dumps(content), encoding="utf-8")


def work(given: dict[str, Any]) -> Numbers:
    """Seconds from the files to a run that is ready for its first round, read from JSON and from the arrays kept."""
    place = Path(given["place"])
    if given.get("bare"):
        return {"seconds": _seconds(lambda: read(place))}
    importlib.import_module("polyfed.api")  # importing is not set-up
    for kept in place.glob(".polyfed-arrays/*/*"):
        kept.unlink()
    return {"seconds": _seconds(lambda: prepare(place)), "again": _seconds(lambda: prepare(place))}


def read(place: Path) -> list[np.ndarray]:
    """What anybody must do: parse the files, and keep the pixels as bytes."""
    made = []
    for file in sorted(place.rglob("*.json")):
        for writer in json.loads(file.read_bytes())["user_data"].values():
            made.append(np.rint(255 * np.array(writer["x"], np.float32)).astype(np.uint8))
    return made


def prepare(place: Path) -> None:
    """A run's set-up: data, split, a hello of every client, server."""
    from polyfed.api import config_of
    from polyfed.data.sources import base
    from polyfed.engine.local import Serial
    from polyfed.engine.rounds import Run
    from polyfed.engine.run_folder import RunFolder
    from polyfed.measure.watch import Silent

    base._loaded.clear()
    config = config_of({"data": {"name": "femnist", "root": str(place)}, "model": "lenet", "participation": 0.01})
    with tempfile.TemporaryDirectory() as folder:
        Run(config, RunFolder(Path(folder)), Serial(), Silent()).prepare()


def _seconds(do: Callable[[], object]) -> float:
    begun = time.perf_counter()
    do()
    return time.perf_counter() - begun


if __name__ == "__main__":
    answer(work)
