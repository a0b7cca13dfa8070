"""What progress and records cost: the seconds in them as a share of a round, with the live display on."""

import json
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cells import Cell
from benchmarks.measure import Failed, Side, answer, interleaved, spread
from benchmarks.results import Result
from benchmarks.timer import Timer


def measure(cell: Cell, folder: Path, rivals: Sequence[str], say: Callable[[str], None]) -> Result:
    """The share, in fresh processes."""
    side = Side.python("records", json.dumps(cell.work), FORCE_COLOR="1")  # the display believes in a terminal
    found = interleaved({"records": side}, cell.repeats, say)
    if None in found["records"]:
        raise Failed("progress and records could not be measured")
    shares = [numbers["records"] / numbers["rounds"] for numbers in found["records"] if numbers]
    return {"sides": found, "ratios": {"round": spread(shares)}}


def work(given: dict[str, Any]) -> dict[str, float]:
    """Seconds in records and display, and seconds of the same rounds."""
    import rich.live

    from benchmarks.ours import NEVER, clocked
    from polyfed.engine.rounds import Run
    from polyfed.engine.run_folder import RunFolder
    from polyfed.errors import Interrupted
    from polyfed.measure.recorder import Recorder
    from polyfed.report.progress import Live, live

    main, display = Timer(), Timer()  # the display has a thread of its own

    def either(call: Callable[..., Any]) -> Callable[..., Any]:
        here, there = main.watched(call), display.watched(call)
        return lambda *a, **k: (here if threading.current_thread() is threading.main_thread() else there)(*a, **k)

    records = (Recorder, "append"), (RunFolder, "say"), (Run, "_mark"), (Live, "round"), (rich.live.Live, "refresh")
    for owner, name in records:
        setattr(owner, name, either(getattr(owner, name)))

    times: list[float] = []

    class Shown:
        """The live display, behind a clock; the first round warms up."""

        def round(self, done: int, rounds: int, numbers: dict[str, Any]) -> None:
            shown.round(done, rounds, numbers)
            if done == 1:
                main.seconds = display.seconds = 0.0
            times.append(time.perf_counter())
            if done > given["rounds"]:
                raise Interrupted("measured enough")

        def say(self, text: str) -> None:
            shown.say(text)

    tree = {**given["tree"], "checkpoint": {"every": NEVER}}
    with tempfile.TemporaryDirectory() as folder, live() as shown:
        clocked(tree, Shown(), Path(folder) / "run")
    return {"records": main.seconds + display.seconds, "rounds": times[-1] - times[0]}


if __name__ == "__main__":
    answer(work)
