"""Where a client's network looks, with and without BAVD, on corrupted images: after MuPFL's Figure 4.

    python examples/activation_maps.py --out maps.png

trains MuPFL twice on Fashion-MNIST with corrupted images and draws both networks' maps of the same test images.
"""

import argparse
from pathlib import Path

import torch

import polyfed
from polyfed.report.kinds.maps import map_chart
from polyfed.report.print import save

EXPERIMENT = {
    "data": {"name": "fashion-mnist", "limit": 200, "corrupt": "noise", "corrupt_severity": 2},
    "model": {"name": "cnn-bn", "width": 0.5},
    "split": {"partition": "dirichlet", "alpha": 0.5, "clients": 5},
    "train": {"lr": 0.05, "epochs": 2},
    "eval": {"every": 100, "classes": False},
    "seed": 0,
}
SHOWN = 3


def main() -> None:
    """Train both, then draw the maps of the first test images of client 0."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--out", type=Path, default=Path("maps.png"))
    words.add_argument("--rounds", type=int, default=5)
    given = words.parse_args()
    nets = {}
    for name, bavd in (("without BAVD", False), ("with BAVD", True)):
        made = polyfed.run(EXPERIMENT, rounds=given.rounds, method={"name": "mupfl", "bavd": bavd})
        nets[name] = made.client(0).model
    data = polyfed.federation(data=EXPERIMENT["data"], split=EXPERIMENT["split"], seed=0)
    x, y = data.clients[0].test.take(torch.arange(SHOWN))
    titles = [f"{data.class_names[int(c)]} {i}" for i, c in enumerate(y, 1)]
    save(map_chart(nets, x, y, titles), given.out)
    print(f"picture: {given.out}")


if __name__ == "__main__":
    main()
