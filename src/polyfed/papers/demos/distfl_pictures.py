"""The pictures of DistFL's demo: apart from what computes it, so that a change of a picture makes no number stale."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from polyfed.papers.demos import Drawn, Shown
from polyfed.papers.demos.responses import responses
from polyfed.papers.demos.seeds import first_seed

ACROSS = 4  # matrices in a row


@responses.drawing
def draw_responses(shown: Sequence[Shown]) -> Drawn:
    """Figures 6 and 8: the matrices of the first seed, noise first; light where clients answer alike."""
    from matplotlib import pyplot

    from polyfed.report.print import STYLE

    found = first_seed(shown).found
    names = sorted(found.arrays, key=lambda name: name != "noise")
    down = -(-len(names) // ACROSS)
    across = min(len(names), ACROSS)
    with pyplot.rc_context(STYLE):
        side = 2.1 if down == 1 else 1.4
        size = (side * across, (side + 0.35) * down + 0.2)
        figure, axes = pyplot.subplots(down, across, figsize=size, squeeze=False, layout="constrained")
        for spare in axes.flat[len(names) :]:
            spare.remove()
        for spot, name in zip(axes.flat, names, strict=False):
            spot.imshow(found.arrays[name], cmap="magma_r", vmin=0, vmax=1)
            spot.set_title(f"{name}\ncontrast {found.numbers[name]['contrast']:.2f}")
            spot.set(xticks=[], yticks=[])
        figure.supxlabel("a row and a column for each client; light: they answer alike", fontsize=8)
    return Drawn(figure, [row for name in names for row in _divergences(name, found.arrays[name], found.numbers[name])])


def _divergences(name: str, matrix: np.ndarray, numbers: Any) -> Iterator[dict[str, Any]]:
    for (client, other), share in np.ndenumerate(matrix):
        yield {"shown": name, "client": client, "other": other, "divergence": share * numbers["largest"]}
