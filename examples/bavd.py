"""What BAVD is worth: MuPFL's PKCF on Fashion-MNIST-LT without it, with it, and with plain dropout in its place.

    python examples/bavd.py [--rounds 30] [--seeds 3] [--out runs/bavd]

prints the table and, for each row, the difference of the personal accuracy to PKCF alone, paired by seed, with its 95 %
interval (Student's t over the seeds). The same command again goes on where it stopped.
"""

import argparse
from statistics import fmean

from scipy.stats import ttest_rel

import polyfed

PKCF = {"name": "mupfl", "acmu": False}
EXPERIMENT = {
    "data": {"name": "fashion-mnist", "limit": 1000},
    "model": "cnn",
    "split": {"partition": "dirichlet", "clients": 20, "alpha": 0.5, "longtail": 10, "min": 10, "test": 0.2},
    "train": {"lr": 0.01, "batch": 64, "epochs": 10, "schedule": [0.995, 3]},
    "participation": 0.5,
    "eval": {"every": 1000, "classes": False},
    "baseline": "PKCF",
    "rows": [
        {"name": "PKCF", "method": PKCF | {"bavd": False}},
        {"name": "BAVD+PKCF", "method": PKCF | {"bavd": True}},
        {"name": "dropout+PKCF", "method": PKCF | {"bavd": "dropout"}},
    ],
}


def main() -> None:
    """Run what is missing, then say what came out."""
    options = argparse.ArgumentParser()
    options.add_argument("--rounds", type=int, default=30)
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--out", default="runs/bavd")
    asked = options.parse_args()
    made = polyfed.compare(EXPERIMENT, rounds=asked.rounds, seeds=asked.seeds, out=asked.out, progress=True)
    print(made.table())
    found = {(one.row, one.seed): one.summary["personal"]["accuracy"] for one in made.folder.found()}
    base, *others = (row["name"] for row in EXPERIMENT["rows"])
    for row in others:
        seeds = [seed for name, seed in found if name == row and (base, seed) in found]
        ours, theirs = ([100 * found[name, seed] for seed in seeds] for name in (row, base))
        if len(seeds) > 1:
            low, high = ttest_rel(ours, theirs).confidence_interval()
            print(f"{row} minus {base}: {fmean(ours) - fmean(theirs):+.2f} (95 % interval {low:+.2f} to {high:+.2f})")


if __name__ == "__main__":
    main()
