"""The server's arithmetic on many uploads of a large model, against the bare matrix product that it needs."""

import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cells import Cell
from benchmarks.measure import Side, answer, once, spread
from benchmarks.results import Result

TURNS = 2
ROOM = 0.8  # share of the free memory that may be used
INPUTS = 200  # DistFL's z


def measure(cell: Cell, folder: Path, rivals: Sequence[str], say: Callable[[str], None]) -> Result:
    """Both sides take turns in one process: they compute on the same gigabytes."""
    found = once(Side.python("server", json.dumps(cell.work)))
    say(f"{cell.name}: polyfed {found['ours']:.3g} s, the product alone {found['bare']:.3g} s")
    memory = found["memory"] / (4 * found["uploads"] * found["parameters"]) if found["memory"] else None
    ratios = {"bare": spread(found["ratios"]), "processor": spread(found["processor"])}
    return {"numbers": found, "ratios": {**ratios, "memory": memory and spread([memory])}}


def work(given: dict[str, Any]) -> dict[str, Any]:
    """Seconds of both by the clock and by the processors, in turns."""
    import torch

    from benchmarks.sites import server_of, world_of

    torch.set_num_threads(1)  # as a server computes by default
    world = world_of(
        {
            "method": METHODS[given["what"]],
            "data": "digits",
            "model": {"name": "mlp", "width": given["width"]},
            "split": {"clients": 10},
        }
    )
    size = world.resident.layout.n_weights
    count = fitting(given["uploads"], size, given["copies"])
    server = server_of(world, count)
    rows = torch.randn(count, size, generator=torch.Generator().manual_seed(0)).mul_(0.01).add_(server.shared.weights)
    ours, bare = SIDES[given["what"]](world, server, rows)
    found = [(timed(bare), timed(ours)) for _ in range(TURNS)]
    clock, processor = ([whole[i] / product[i] for product, whole in found] for i in (0, 1))
    middle = {name: statistics.median(turn[i][0] for turn in found) for i, name in enumerate(("bare", "ours"))}
    return {**middle, "ratios": clock, "processor": processor, "uploads": count, "parameters": size}


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Seconds of a call by the clock, and by all processors."""
    clock, processor = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - clock, time.process_time() - processor


def fitting(uploads: int, size: int, copies: int) -> int:
    """How many uploads this machine has room for."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return uploads
    free = next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    return max(2, min(uploads, int(ROOM * free / (4 * size * copies))))


Calls = tuple[Callable[[], object], Callable[[], object]]


def average(world: Any, server: Any, rows: Any) -> Calls:
    """The weighted mean of all rows: one vector times the matrix of uploads."""
    import torch

    uploads, weights = uploads_of(rows), torch.full((len(rows),), 1 / len(rows))
    return lambda: server.average(uploads), lambda: weights @ rows


def acmu(world: Any, server: Any, rows: Any) -> Calls:
    """MuPFL's merge, clustering and all: the Gram matrix of the updates."""
    uploads = uploads_of(rows)

    def merged() -> None:
        before = server.shared
        world.method.merge(server, uploads)
        server.shared = before

    return merged, lambda: rows @ rows.T


def distfl(world: Any, server: Any, rows: Any) -> Calls:
    """Every model's answers to the same inputs and their divergences: a product per layer, and one of the answers."""
    import torch
    import torch.nn.functional as F

    from polyfed.parts.dendrogram import divergences

    uploads, shape = uploads_of(rows), world.federation.shape
    inputs = torch.randn(INPUTS, *shape, generator=torch.Generator().manual_seed(1))
    server.state.inputs = inputs
    entries = [e for e in world.resident.layout.floats if e.kind == "weight"]
    layers = [
        [rows[:, e.start : e.stop].view(len(rows), *e.shape) for e in entries if len(e.shape) == d] for d in (2, 1)
    ]

    def bare() -> Any:
        h = inputs.flatten(1).expand(len(rows), -1, -1)
        for weight, bias in zip(layers[0][:-1], layers[1], strict=True):
            h = torch.baddbmm(bias[:, None], h, weight.transpose(1, 2)).relu_()
        answers = F.softmax(torch.bmm(h, layers[0][-1].transpose(1, 2)).double(), dim=2)
        return answers.flatten(1) @ answers.log().flatten(1).T

    def ours() -> Any:
        _, answers = world.method.usable(server, uploads)
        return divergences(torch.stack(answers))

    return ours, bare


def uploads_of(rows: Any) -> list[Any]:
    """Rows as uploads; views, not copies."""
    from polyfed.message import Message
    from polyfed.methods.base import Upload

    return [Upload(k, 1, Message(w=row)) for k, row in enumerate(rows)]


SIDES: dict[str, Callable[[Any, Any, Any], Calls]] = {"average": average, "acmu": acmu, "distfl": distfl}
METHODS: dict[str, Any] = {
    "average": {"name": "fedavg"},
    "acmu": {"name": "mupfl", "bavd": False, "pkcf": False},
    "distfl": {"name": "distfl"},
}


if __name__ == "__main__":
    answer(work)
