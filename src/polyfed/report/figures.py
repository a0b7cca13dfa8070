"""Figures in print quality."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def split_figure(described: Mapping[str, Any], path: Path) -> None:
    """Who holds what: a bubble per client and class, as large as its share of training samples."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    clients = described["clients"]
    classes = range(described["classes"])
    points = [(k, c, n) for k, one in enumerate(clients) for c, n in zip(classes, one["counts"], strict=True) if n]
    largest = max(n for _, _, n in points)
    figure, axes = pyplot.subplots(figsize=(max(4.0, 0.32 * len(clients)), max(2.5, 0.3 * described["classes"])))
    axes.scatter(
        [k for k, _, _ in points],
        [c for _, c, _ in points],
        s=[220 * n / largest for _, _, n in points],
        c=[c for _, c, _ in points],
        cmap="viridis",
        alpha=0.85,
        linewidths=0,
    )
    axes.set_xlabel("client")
    axes.set_ylabel("class")
    axes.set_xticks(range(len(clients)))
    axes.set_yticks(list(classes))
    axes.set_axisbelow(True)
    axes.grid(alpha=0.2)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
