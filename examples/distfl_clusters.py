"""What DistFL finds where the truth is known: clients of five types, clients that are all alike, clients that cheat.

    polyfed data get cifar10 && polyfed data get mnist
    python examples/distfl_clusters.py --out runs/distfl-clusters

Every run takes the method as it is, without a key of its own. Stopped and called again, it goes on where it was; once
all is done, it only prints. The fifteen runs took 36 minutes on two cores that were busy with other work as well.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import polyfed
from polyfed.data.sources.base import Dataset, Source, sources
from polyfed.errors import PolyfedError
from polyfed.registry import param

CLIENTS, TYPES, CHEATS, SEEDS = 20, 5, 2, 5
FLIPPED = np.array([4, 5, 6, 7, 0, 1, 2, 3, 8, 9])  # the paper's label-flipping attack (5.5)


class Flipped(Source):
    """MNIST for clients that are all alike, but the last of them hold other labels than the images show."""

    each: int = param(100, "images per client", ge=1)

    def load(self) -> Dataset:
        whole = sources.build("mnist", "data").load()
        users = np.repeat(np.arange(CLIENTS), self.each)
        x, y = whole.x[: len(users)], whole.y[: len(users)].copy()
        cheats = users >= CLIENTS - CHEATS
        y[cheats] = FLIPPED[y[cheats]]
        names = tuple(f"{'cheat' if user >= CLIENTS - CHEATS else 'honest'}-{user}" for user in range(CLIENTS))
        return Dataset("flipped", x, y, len(y), whole.class_names, whole.mean, whole.std, users, names)


PHOTOS = {"name": "cifar10", "limit": 80}  # 40 for each client
ROWS: dict[str, dict[str, Any]] = {
    "types": {"data": PHOTOS, "split": {"partition": "groups", "clients": CLIENTS}, "rounds": 4},
    "alike": {"data": PHOTOS, "split": {"partition": "iid", "clients": CLIENTS}, "rounds": 7},
    "cheats": {"data": f"{Path(__file__).resolve()}:Flipped", "split": {"partition": "users"}, "rounds": 4},
}  # rounds: one of warm-up, two for the same clusters or five for one cluster to be believed, and one more
TRUTH = {
    "types": np.arange(CLIENTS) * TYPES // CLIENTS,
    "alike": np.zeros(CLIENTS),
    "cheats": np.arange(CLIENTS) >= CLIENTS - CHEATS,
}
EXPERIMENT: dict[str, Any] = {
    "method": "distfl",
    "model": {"name": "cnn-bn", "width": 0.5},
    "train": {"lr": 0.01, "momentum": 0.9, "batch": 32, "epochs": 5},
    "eval": {"every": 7, "classes": False},
}


def same(found: np.ndarray, truth: np.ndarray) -> bool:
    """Whether two lists of labels group the clients alike."""
    return bool(((found[:, None] == found) == (truth[:, None] == truth)).all())


def clusterings(run: Path) -> Iterator[tuple[int, np.ndarray, str]]:
    """Every round in which clusters were made: the cluster of each client, and what the log says about them."""
    said = [line for line in (run / "log.txt").read_text().splitlines() if "; threshold " in line]
    made = sorted((run / "arrays").glob("similarity-??????.npy"))
    for file, line in zip(made, said, strict=True):
        number = int(file.stem[-6:])
        yield number, np.load(run / "arrays" / f"clusters-{number:06d}.npy"), line.partition(": ")[2]


def main() -> None:
    """Run what is missing and print what was found."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--out", type=Path, default=Path("runs/distfl-clusters"))
    options.add_argument("--seeds", type=int, default=SEEDS)
    given = options.parse_args()
    rows = [{"name": row, **keys} for row, keys in ROWS.items()]
    try:
        made = polyfed.compare(EXPERIMENT, rows=rows, seeds=given.seeds, out=given.out, progress=True)
    except PolyfedError as error:
        raise SystemExit(str(error)) from None
    for name, error in made.failures.items():
        print(f"{name} failed: {error}")
    for row in ROWS:
        right = 0
        for seed in range(given.seeds):
            found = list(clusterings(given.out / f"{row}-s{seed}"))
            for number, labels, line in found:
                print(f"{row} seed {seed} round {number}: {'right' if same(labels, TRUTH[row]) else 'WRONG'}; {line}")
            right += same(found[-1][1], TRUTH[row])
        print(f"{row}: {right} of {given.seeds} runs end with the true clusters")


if __name__ == "__main__":
    main()
