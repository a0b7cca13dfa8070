"""Every method at one small budget, each with the learning rate that validation data choose; ranks and a picture.

    polyfed data get fashion-mnist
    python examples/all_methods.py --out runs/all-methods --page methods-compared.md

Stopped and called again, it goes on where it was; once all is done, it only writes the page. Presets are left out: they
have the budgets of their papers. `--methods fedavg,local` compares some only.
"""

import argparse
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import polyfed
from polyfed.methods.base import methods
from polyfed.report.charts import Chart
from polyfed.report.kinds.ranks import rank_chart
from polyfed.report.print import save

RATES = [0.01, 0.05, 0.2]
BUDGET: dict[str, Any] = {
    "split": {"partition": "dirichlet", "alpha": 0.3, "clients": 10, "val": 0.2},
    "participation": 0.5,
    "rounds": 20,
    "train": {"epochs": 2},
    "eval": {"every": 100, "classes": False},
    "checkpoint": {"every": 100},
    "seeds": 3,
    "tune": {"train.lr": RATES},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "digits": {"data": {"name": "digits", "limit": 60}, "model": {"name": "mlp-bn", "width": 0.25}, "train.batch": 16},
    "Fashion-MNIST-LT": {
        "data": {"name": "fashion-mnist", "limit": 300},
        "split.longtail": 50,
        "model": "lenet-bn",
        "train.batch": 32,
    },
}
END = "<!-- what follows is not written by the command -->"
PICTURE = "pictures/method-ranks.svg"
NEEDS = {"feddf": {"split.public": 100}}  # keys without which a method cannot run
Scores = dict[str, dict[Hashable, float]]


def compared() -> list[str]:
    """Every method but presets."""
    return [m.name for m in methods if ":" not in m.name and not m.__module__.endswith(".presets")]


def run(out: Path, names: Sequence[str], settings: Mapping[str, Mapping[str, Any]], quiet: bool) -> dict[str, Any]:
    """The comparisons, by setting; what is finished is read."""
    made = {}
    public = {key: value for name in names for key, value in NEEDS.get(name, {}).items()}
    for name, keys in settings.items():
        tree: dict[str, Any] = {"methods": list(names), **public}
        made[name] = polyfed.compare(BUDGET, keys, tree, out=out / name, progress=not quiet)
        for cell, error in made[name].failures.items():
            print(f"{name}: {cell} failed: {error}")
    return made


def scores_of(made: Mapping[str, Any]) -> Scores:
    """Personal accuracy by method and (setting, seed)."""
    scores: Scores = {}
    for setting, comparison in made.items():
        for found in comparison.folder.found():
            scores.setdefault(found.row, {})[setting, found.seed] = found.summary["personal"]["accuracy"]
    return scores


def complete(scores: Scores) -> Scores:
    """The methods that were run in every setting with every seed."""
    most = max(map(len, scores.values()))
    return {row: each for row, each in scores.items() if len(each) == most}


def page(made: Mapping[str, Any], scores: Scores, chart: Chart | None) -> str:
    """The page: how it was made, the table by mean rank, the picture, and who is behind Local."""
    whole = complete(scores)
    order = list(chart.panels[0].y.names or ()) if chart else sorted(whole, key=lambda row: -fmean(whole[row].values()))
    ranks = dict(zip(order, chart.panels[0].marks[0].x, strict=True)) if chart else {}  # type: ignore[attr-defined]
    rates = {setting: _rates(comparison) for setting, comparison in made.items()}
    head = ["method", "family", "mean rank", *(f"{s}, lr" for s in made)]
    lines = [
        [f"`{row}`", _family(row), f"{ranks[row]:.1f}" if row in ranks else "–"]
        + [f"{_mean(scores[row], setting)}, {rates[setting].get(row, '–')}" for setting in made]
        for row in order
    ]
    table = [
        f"| {' | '.join(head)} |",
        f"|---|---|{'---:|' * (len(head) - 2)}",
        *(f"| {' | '.join(x)} |" for x in lines),
    ]
    missing = sorted(set(scores) - set(whole))
    parts = [HEAD.format(rates=", ".join(map(str, RATES)), seeds=BUDGET["seeds"]), "\n".join(table)]
    if missing:
        parts.append(f"Not finished everywhere, and not ranked: {', '.join(missing)}.")
    if chart:
        parts += [f"## Critical differences\n\n![{chart.title}]({PICTURE})", chart.caption]
    return "\n\n".join([*parts, _behind_local(scores, made)]) + "\n"


HEAD = """# Methods compared

Personal accuracy (each client's own model on its local test, mean over clients, mean ± standard deviation over {seeds}
seeds) of every method at one small budget: 10 clients, half of them each round, 20 rounds of 2 epochs. Each method has
the learning rate, of {rates}, that was best on the *validation* data of the first seed; test data had no
say. All other parameters are defaults. `python examples/all_methods.py` makes this page. So small a budget says which
methods work and roughly how they stand to each other on two small federations, not which is best elsewhere."""


def _family(row: str) -> str:
    return methods.build({"name": row}, "method").sorted_under


def _mean(scores: Mapping[Any, float], setting: str) -> str:
    values = [100 * value for (where, _), value in scores.items() if where == setting]
    if not values:
        return "–"
    return f"{fmean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")


def _rates(comparison: Any) -> dict[str, float]:
    """The learning rate that each row was given."""
    return {cell.row: cell.config.train.lr for cell in comparison.folder.grid.cells}


def _behind_local(scores: Scores, made: Mapping[str, Any]) -> str:
    """Which methods are worse than every client alone, by setting."""
    lines = ["## Behind Local", ""]
    for setting in made:
        means = {
            r: fmean(v for (s, _), v in e.items() if s == setting)
            for r, e in scores.items()
            if _mean(e, setting) != "–"
        }
        behind = sorted((row for row in means if means[row] < means.get("local", 0)), key=lambda row: means[row])
        lines.append(f"- {setting}: {', '.join(f'`{row}`' for row in behind) or 'none'}.")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, then write the page and its picture."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--out", type=Path, default=Path("runs/all-methods"))
    words.add_argument("--page", type=Path, help="where to write the page; its picture goes to pictures/ beside it")
    words.add_argument("--methods", help="some methods only, with commas between")
    words.add_argument("--quiet", action="store_true")
    given = words.parse_args()
    made = run(given.out, given.methods.split(",") if given.methods else compared(), SETTINGS, given.quiet)
    write(made, scores_of(made), given.page or given.out / "methods-compared.md")


def write(made: Mapping[str, Any], scores: Scores, place: Path) -> None:
    """The page, and beside it the picture with its data; what somebody wrote behind its end stays."""
    chart = rank_chart(complete(scores))
    if chart:
        (place.parent / PICTURE).parent.mkdir(parents=True, exist_ok=True)
        save(chart, place.parent / PICTURE)
    _, end, by_hand = (place.read_text() if place.exists() else "").partition(END)
    place.write_text(page(made, scores, chart) + f"\n\n{end}{by_hand}" * bool(end))
    print(f"page: {place}")


if __name__ == "__main__":
    main()
