"""Pictures of features in a plane: a dot for each sample, an arrow for each proxy, white where its class is missing."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

REACH = 0.8  # of the farthest feature: how long the longest proxy is drawn


def draw_plane(axes: "Axes", found: Mapping[str, np.ndarray], observed: int, title: str) -> None:
    """Features and proxies; proxies are lengthened all alike, as in the paper (there ten times), to be seen."""
    from matplotlib import colormaps

    colours = colormaps["tab10"]
    features, labels, proxies = found["features"], found["labels"].astype(int), found["proxies"]
    axes.scatter(features[:, 0], features[:, 1], s=5, color=colours(labels), linewidths=0, alpha=0.7)
    farthest = float(np.linalg.norm(features, axis=1).max()) or 1.0
    scale = REACH * farthest / (float(np.linalg.norm(proxies, axis=1).max()) or 1.0)
    for number, (x, y) in enumerate(proxies * scale):
        held = number < observed
        look: Any = {"facecolor": colours(number) if held else "white", "edgecolor": "black", "linewidth": 0.6}
        style = {"width": 4.0, "headwidth": 9.0, "headlength": 8.0, "shrink": 0.0}
        axes.annotate("", (x, y), (0, 0), arrowprops={**style, **look}, zorder=3 if held else 4)
    reach = 1.05 * max(farthest, float(np.abs(proxies * scale).max()))
    low = -reach if features.min() < 0 or proxies.min() < 0 else -0.05 * reach
    axes.set(title=title, xlim=(low, reach), ylim=(low, reach), aspect="equal")


def rows_of_plane(panel: str, found: Mapping[str, np.ndarray], observed: int) -> Iterator[dict[str, Any]]:
    """The same as rows of a CSV file."""
    for (x, y), label in zip(found["features"], found["labels"].astype(int), strict=True):
        yield {"panel": panel, "what": "feature", "class": int(label), "observed": True, "x": x, "y": y}
    for number, (x, y) in enumerate(found["proxies"]):
        yield {"panel": panel, "what": "proxy", "class": number, "observed": number < observed, "x": x, "y": y}
