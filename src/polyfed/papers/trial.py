"""A trial: the first rounds of a cell's experiment, by which a cell outlives changes of sources that change no bit.

A cell is stale once its sources have changed, and most changes of sources change no number. So a store keeps a digest
of a trial beside each cell: the fingerprint and the shown numbers of the same experiment with a twentieth of its
rounds, but three at least, and with its finish. Where today's sources give that digest again, the cell is renewed and
says so.
"""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from polyfed.comparison.folder import ComparisonFolder
from polyfed.comparison.grid import make_grid
from polyfed.comparison.run import run_cells
from polyfed.config import merge
from polyfed.engine.run_folder import environment
from polyfed.errors import Interrupted, PolyfedError
from polyfed.measure.watch import Silent, Watch
from polyfed.papers.cell import PaperCell, digest
from polyfed.papers.sources import sources_of
from polyfed.papers.store import Store, StoredCell, from_run

PART, LEAST = 20, 3  # a trial has one in PART of the rounds, and LEAST at least


def trial(cell: PaperCell) -> str:
    """A digest of a cell's experiment with a few rounds, run now."""
    rounds = cell.config.rounds
    short = {"rounds": min(rounds, max(LEAST, rounds // PART)), "engine": {"workers": 0}}
    grid = make_grid({"rows": [{"name": "trial", **merge(cell.tree, short)}], "seeds": [cell.seed], "jobs": 1})
    with tempfile.TemporaryDirectory() as aside:
        folder = ComparisonFolder.open(grid, Path(aside) / "runs")
        for error in run_cells(folder, Silent(), None).values():
            raise error
        made = from_run(cell, folder.run(grid.cells[0]))
    return digest([made.fingerprint, [made.last(cell.item.of(cell.row, column)) for column in cell.item.columns]])


def add_trials(cells: Sequence[PaperCell], store: Store, watch: Watch, until: float | None) -> None:
    """Try every finished cell that has no trial yet, while there is time; a demo has none."""
    for cell in cells:
        made = store.current(cell)
        if made is None or made.trial or cell.item.demo:
            continue
        if until is not None and time.monotonic() > until:
            return
        watch.say(f"{cell.name}: a trial")
        try:
            store.replace(made, made.model_copy(update={"trial": trial(cell)}))
        except Interrupted:
            raise
        except PolyfedError as error:
            watch.say(f"{cell.name}: its trial failed: {error}")


def renewed(cell: PaperCell, stored: StoredCell) -> StoredCell | None:
    """A stale cell as one of today's sources; None where a trial has other bits today, or there was none."""
    if not stored.trial or trial(cell) != stored.trial:
        return None
    note = {"sources": stored.sources, "commit": stored.commit}
    now = {"sources": sources_of(cell), "commit": environment()["commit"]}
    return stored.model_copy(update={**now, "made_by": stored.made_by or note})
