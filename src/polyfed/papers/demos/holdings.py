"""Who holds what: training samples by client and class as bubbles (MuPFL, Figure 6a)."""

from collections.abc import Iterable

import numpy as np

from polyfed.config import Tree, make_config
from polyfed.engine.work import federation_of
from polyfed.papers.demos import Demo, DemoKeys, demo


class Keys(DemoKeys):
    """The experiment whose split is shown."""

    experiment: Tree

    def trains(self) -> Iterable[tuple[Tree, float]]:
        """Its experiment is not run at all."""
        yield self.experiment, 0


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
