"""Where ECL gains: by class over all clients, and on one client that holds little but one class (ECL, Figure 2)."""

from collections.abc import Iterable, Mapping
from typing import Literal

import numpy as np

from polyfed.config import Tree, make_config, merge
from polyfed.engine.run_folder import RunFolder
from polyfed.engine.work import federation_of
from polyfed.measure.metrics import recalls
from polyfed.methods.ecl import ECL
from polyfed.methods.fedavg_ft import FedAvgFT
from polyfed.methods.pfedla import PFedLA
from polyfed.papers.demos import Demo, ExperimentKeys, demo
from polyfed.papers.within import runs_of

USED = (ECL, FedAvgFT, PFedLA)  # their sources count for what is stored
OURS = {"name": "ecl", "absent": "global"}
OTHERS = {"classes": "FedAvg-FT", "client": "pFedLA"}
METHODS = {
    "classes": {"FedAvg": "fedavg", "FedAvg-FT": "fedavg-ft", "ECL": OURS},  # both others take FedAvg's rounds
    "client": {"pFedLA": "pfedla", "ECL": OURS},
}
WAYS = {"among all classes": "final_classes", "among own classes": "final_classes_masked"}  # what answers are chosen


class Keys(ExperimentKeys):
    """The experiment, and what is shown: the gap in every class to FedAvg-FT, or one client beside pFedLA."""

    tiny = merge(ExperimentKeys.tiny, {"experiment": {"split": {"alpha": 0.5}, "eval": {"classes": "auto"}}})
    part: Literal["classes", "client"] = "classes"

    def trains(self) -> Iterable[tuple[Tree, float]]:
        """FedAvg alone, whose rounds both others take; or pFedLA and ECL."""
        yield self.experiment, 1 if self.part == "classes" else len(METHODS[self.part])


@demo("gaps", Keys)
def gaps(seed: int, keys: Keys) -> Demo:
    """Recalls on the official, balanced test set, with answers among all classes and among the client's own."""
    data = federation_of(make_config(keys.experiment, {"seed": seed}))
    counts = np.stack([client.counts.cpu().numpy() for client in data.clients])
    with runs_of(keys.experiment, METHODS[keys.part], seed) as folders:
        found = {
            name: {way: _recalls(folder, table) for way, table in WAYS.items()} for name, folder in folders.items()
        }
    return _by_class(found, counts) if keys.part == "classes" else _of_client(found, counts)


Recalls = Mapping[str, Mapping[str, np.ndarray]]  # by method and way: [client, class]


def _recalls(folder: RunFolder, table: str) -> np.ndarray:
    return np.stack([recalls(one) for one in (folder.counts() or {})[table]])


def _by_class(found: Recalls, counts: np.ndarray) -> Demo:
    """The gap in every class, over the clients that hold it, from the most to the least frequent."""
    order = np.argsort(-counts.sum(axis=0), kind="stable")
    third = max(1, len(order) // 3)
    numbers, arrays = {}, {}
    for way in WAYS:
        means = [np.nanmean(np.where(counts > 0, found[name][way], np.nan), axis=0) for name in ("ECL", "FedAvg-FT")]
        gap = (means[0] - means[1])[order]
        numbers[way] = {
            "mean gap": 100 * float(np.nanmean(gap)),
            "gap in frequent classes": 100 * float(np.nanmean(gap[:third])),
            "gap in rare classes": 100 * float(np.nanmean(gap[-third:])),
            "classes that lose": float((gap < 0).sum()),
        }
        arrays[way] = gap
    return Demo(numbers, {**arrays, "order": order})


def _of_client(found: Recalls, counts: np.ndarray) -> Demo:
    """The client with three classes or more of which one has the largest share."""
    share = counts.max(axis=1) / np.maximum(counts.sum(axis=1), 1)
    chosen = int(np.argmax(np.where((counts > 0).sum(axis=1) >= 3, share, -1.0)))
    held = np.flatnonzero(counts[chosen])
    most = int(np.argmax(counts[chosen][held]))
    numbers, arrays = {}, {"classes": held, "samples": counts[chosen][held]}
    for name, ways in found.items():
        for way in WAYS:
            own = ways[way][chosen][held]
            numbers[f"{name}, {way}"] = {
                "minority classes": 100 * float(np.delete(own, most).mean()) if len(own) > 1 else float("nan"),
                "majority class": 100 * float(own[most]),
            }
            arrays[f"{name}, {way}"] = own
    return Demo(numbers, arrays)
