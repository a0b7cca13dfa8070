"""Where clients' models lie, and how well their clusters are apart (MuPFL, Figure 10)."""

import numpy as np
import torch

from polyfed.config import merge
from polyfed.methods.presets import MuPFLPaper
from polyfed.papers.demos import Demo, ExperimentKeys, demo
from polyfed.papers.within import runs_of
from polyfed.parts.k_means import silhouette
from polyfed.report.runs import read

USED = (MuPFLPaper,)  # its sources count for what is stored
CLUSTERS = 5


class Keys(ExperimentKeys):
    """The experiment that all arms run, and the fixed number of clusters."""

    tiny = merge(ExperimentKeys.tiny, {"experiment": {"data": {"limit": 30}, "split": {"clients": 6}}})
    models = 4
    clusters: int = CLUSTERS


@demo("planes", Keys)
def planes(seed: int, keys: Keys) -> Demo:
    """The models that were uploaded in the last round on their principal plane, under four ways of clustering."""
    alone = {"name": "mupfl-paper", "bavd": False, "pkcf": False}
    arms = {
        "K-Means": {**alone, "metric": "weights", "kappa": keys.clusters},
        f"ACMU, {keys.clusters} clusters": {**alone, "kappa": keys.clusters},
        "ACMU, adaptive": alone,
        "MuPFL, adaptive": {"name": "mupfl-paper"},
    }
    numbers, arrays = {}, {}
    with runs_of(keys.experiment, arms, seed) as folders:
        for name, folder in folders.items():
            run = read(folder.path)
            places = max(run.arrays("plane").items())[1]
            labels = {int(k): int(c) for k, c in max(run.arrays("clusters").items())[1].tolist()}
            groups = [labels[int(client)] for client in places[:, 0]]
            points = torch.tensor(places[:, 1:3], dtype=torch.float64)
            numbers[name] = {
                "silhouette": silhouette(torch.cdist(points, points), groups) if len(set(groups)) > 1 else 0.0,
                "clusters": float(len(set(groups))),
            }
            scale = float(points.abs().max()) or 1.0  # the pictures have one size, and a silhouette knows none
            arrays[name] = np.column_stack([places[:, 0], points.numpy() / scale, groups])
    return Demo(numbers, arrays)
