"""What protection costs: a robust average against the plain one, a private step against a plain one.

A defence may take three times the plain average's time and one Gram product of the updates: that is the limit it is set
against. (What such a product costs beside a bare one, the cell `acmu` measures.) Private training is set beside
the same training without privacy. Both sides take turns in one process, and processor time counts, which a busy machine
stretches less than the clock.
"""

import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cells import Cell
from benchmarks.measure import Side, answer, once, spread
from benchmarks.results import Result
from benchmarks.server import fitting, timed

TIMES = 3  # plain averages in the limit of a defence


def measure(cell: Cell, folder: Path, rivals: Sequence[str], say: Callable[[str], None]) -> Result:
    """The ratios, in a fresh process."""
    found = once(Side.python("protection", json.dumps({**cell.work, "turns": cell.repeats})))
    say(f"{cell.name}: {found['ours']:.3g} s, beside {found['beside']:.3g} s")
    return {"numbers": found, "ratios": {name: spread(found[name]) for name in ("processor", "clock")}}


def work(given: dict[str, Any]) -> dict[str, Any]:
    """Seconds of both sides, in turns; the first one warms up."""
    import torch

    torch.set_num_threads(1)
    ours, beside, size = private(given) if "tree" in given else defended(given)
    timed_all(ours), timed_all(beside)
    found = [(timed_all(beside), timed_all(ours)) for _ in range(given["turns"])]
    clock, processor = ([whole[i] / limit[i] for limit, whole in found] for i in (0, 1))
    seconds = {name: statistics.median(turn[i][1] for turn in found) for i, name in enumerate(("beside", "ours"))}
    return {**seconds, "clock": clock, "processor": processor, "size": size}


Call = Callable[[], list[Callable[[], object]]]
Sides = tuple[Call, Call, str]


def timed_all(call: Call) -> tuple[float, float]:
    """Seconds of some calls by the clock, and by all processors."""
    each = [timed(one) for one in call()]
    return sum(clock for clock, _ in each), sum(processor for _, processor in each)


def defended(given: dict[str, Any]) -> Sides:
    """A server's average under a defence; beside it three plain averages and one Gram product."""
    import torch

    from benchmarks.sites import server_of, world_of
    from polyfed.message import Message
    from polyfed.methods.base import Upload
    from polyfed.parts.cluster import inner_products
    from polyfed.threats.defences import defences
    from polyfed.threats.defender import Defender

    model = {"name": "mlp", "width": given["width"]}
    world = world_of({"method": "fedavg", "data": "digits", "model": model, "split": {"clients": 10}})
    size = world.resident.layout.n_weights
    count = fitting(given["uploads"], size, 2)
    plain, robust = server_of(world, count), server_of(world, count)
    rule = defences.build({"name": given["defence"]}, "defence")
    robust.defence = Defender(rule, robust, world.wire, world.method)
    rows = torch.randn(count, size, generator=torch.Generator().manual_seed(0)).mul_(0.01).add_(plain.shared.weights)
    uploads = [Upload(k, 1, Message(w=row), Message(w=plain.shared.weights)) for k, row in enumerate(rows)]

    def limit() -> list[Callable[[], object]]:
        starts = [plain.shared.weights] * count
        return [*[lambda: plain.average(uploads)] * TIMES, lambda: inner_products(list(rows), less=starts)]

    return (lambda: [lambda: robust.average(uploads)]), limit, f"{count} x {size}"


def private(given: dict[str, Any]) -> Sides:
    """The training of some clients with dp-sgd; beside it the same without."""
    from benchmarks.sites import server_of, world_of
    from polyfed.engine.work import Job

    def side(privacy: dict[str, Any]) -> Call:
        world = world_of({**given["tree"], "privacy": privacy})
        server = server_of(world)

        def train(client: int) -> None:
            outcome = world.do(Job("train", client, 1, world.method.send(server, client)), None)
            if outcome.error:
                raise SystemExit(outcome.trace)

        return lambda: [lambda client=client: train(client) for client in range(given["clients"])]  # type: ignore[misc]

    batch = given["tree"]["train"]["batch"]
    return side({"name": "dp-sgd", "noise": 1.0}), side({"name": "none"}), f"batches of {batch}"


if __name__ == "__main__":
    answer(work)
