"""How much accuracy a privacy budget costs: personal accuracy against epsilon, on Fashion-MNIST.

    python examples/epsilon.py --out runs/epsilon --picture epsilon.png

Ten clients hold 800 images of five of the ten classes each. Every method trains with dp-sgd under each budget, and once
without privacy. Settings are the same everywhere and tuned for none. Stopped and called again, it goes on where it was.
"""

import argparse
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from matplotlib import pyplot

import polyfed
from polyfed.errors import PolyfedError

METHODS = ("fedavg", "fedper", "ditto", "local")
BUDGETS = (0.5, 1.0, 2.0, 4.0, 8.0)
EXPERIMENT: dict[str, Any] = {
    "data": {"name": "fashion-mnist", "limit": 1000},
    "split": {"partition": "groups", "groups": 2, "clients": 10, "test": 0.2},
    "model": {"name": "mlp", "width": 0.25},
    "train": {"lr": 0.2, "batch": 200, "epochs": 2},
    "rounds": 15,
    "eval": {"every": 15, "classes": False},
    "checkpoint": {"every": 15},
    "engine": {"workers": 0},
}
Numbers = dict[tuple[str, float | None], list[float]]


def measured(given: argparse.Namespace) -> Numbers:
    """Run what is missing, and give personal accuracies by method and budget, one for each seed."""
    rows, places = [], {}
    for method in given.methods:
        for budget in (None, *given.budgets):
            private = {} if budget is None else {"privacy": {"name": "dp-sgd", "epsilon": budget}}
            name = f"{method} none" if budget is None else f"{method} {budget:g}"
            rows.append({"name": name, "method": method, **private})
            places[name] = method, budget
    keys = {"data.name": given.data, "data.limit": given.limit, "rounds": given.rounds, "eval.every": given.rounds}
    made = polyfed.compare(EXPERIMENT, rows=rows, seeds=given.seeds, out=given.out, **keys)
    for name, error in made.failures.items():
        print(f"{name} failed: {error}")
    table = made.clients
    last = table[table["measure"] == "personal_final"].groupby(["method", "seed"])["accuracy"].mean()
    return {place: last[row].tolist() for row, place in places.items()}


def draw(found: Numbers, given: argparse.Namespace) -> None:
    """A line for each method against epsilon; the dashes are what it has without privacy."""
    figure, axis = pyplot.subplots(figsize=(5.2, 3.4))
    for place, method in enumerate(given.methods):
        means = [100 * fmean(found[method, budget]) for budget in given.budgets]
        spreads = [100 * _spread(found[method, budget]) for budget in given.budgets]
        axis.errorbar(given.budgets, means, spreads, marker="o", capsize=3, color=f"C{place}", label=method)
        dashes = (4 * place, (4, 4 * len(given.methods) - 4))  # where lines lie on each other, each is seen in its turn
        axis.axhline(100 * fmean(found[method, None]), color=f"C{place}", linestyle=dashes, linewidth=1.6, zorder=3)
    axis.set_xscale("log", base=2)
    axis.set_xticks(given.budgets, [f"{budget:g}" for budget in given.budgets])
    axis.set_xlabel("epsilon of the whole run (delta 1e-5)")
    axis.set_ylabel("personal accuracy, %")
    axis.legend(frameon=False, fontsize=8, title="dashed: no privacy", title_fontsize=8)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(given.picture, dpi=110, metadata={"Software": None})


def _spread(values: list[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


def main(words: list[str] | None = None) -> None:
    """Measure and print the table."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--out", type=Path, default=Path("runs/epsilon"))
    options.add_argument("--data", default="fashion-mnist")
    options.add_argument("--limit", type=int, default=1000)
    options.add_argument("--rounds", type=int, default=15)
    options.add_argument("--methods", nargs="+", default=list(METHODS))
    options.add_argument("--budgets", nargs="+", type=float, default=list(BUDGETS))
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--picture", type=Path)
    given = options.parse_args(words)
    try:
        found = measured(given)
    except PolyfedError as error:
        raise SystemExit(str(error)) from None
    print(f"| method | {' | '.join(f'{budget:g}' for budget in given.budgets)} | no privacy |")
    print(f"|---|{'---:|' * (len(given.budgets) + 1)}")
    for method in given.methods:
        cells = [found[method, budget] for budget in (*given.budgets, None)]
        print(f"| {method} | {' | '.join(f'{100 * fmean(v):.1f} ± {100 * _spread(v):.1f}' for v in cells)} |")
    if given.picture:
        draw(found, given)


if __name__ == "__main__":
    main()
