"""Who holds what: training samples by client and class as bubbles (MuPFL, Figure 6a)."""

from collections.abc import Sequence

import numpy as np

from polyfed.config import Tree, make_config
from polyfed.data import dirichlet, partition
from polyfed.engine.work import federation_of
from polyfed.papers.demos import Demo, DemoKeys, Drawn, Shown, demo
from polyfed.papers.within import as_drawn
from polyfed.report.charts import Chart
from polyfed.report.kinds.holdings import BUBBLES, holdings_panel

USED = (dirichlet, partition)  # their sources count for what is stored


class Keys(DemoKeys):
    """The experiment whose split is shown."""

    experiment: Tree


@demo("holdings", Keys)
def holdings(seed: int, keys: Keys) -> Demo:
    """The counts themselves; nothing is trained."""
    data = federation_of(make_config(keys.experiment, {"seed": seed}))
    counts = np.stack([client.counts.cpu().numpy() for client in data.clients])
    numbers = {
        "samples": float(counts.sum()),
        "imbalance factor": float(counts.sum(axis=0).max() / counts.sum(axis=0).min()),
        "largest client": float(counts.sum(axis=1).max()),
        "smallest client": float(counts.sum(axis=1).min()),
        "classes of a client": float((counts > 0).sum(axis=1).mean()),
    }
    return Demo({"training data": numbers}, {"counts": counts})


@holdings.drawing
def draw(shown: Sequence[Shown]) -> Drawn:
    """One picture, of the first seed."""
    counts = min(shown, key=lambda one: one.seed).found.arrays["counts"].astype(int)
    clients = [{"id": k, "name": str(k), "counts": row} for k, row in enumerate(counts.tolist())]
    return as_drawn(Chart(*BUBBLES, [holdings_panel("training samples by client and class", {"clients": clients})]))
