"""The pictures of DistFL's demo: apart from what computes it, so that a change of a picture makes no number stale."""

from collections.abc import Sequence

from polyfed.papers.demos import Drawn, Shown
from polyfed.papers.demos.responses import responses
from polyfed.papers.demos.seeds import first_seed


@responses.drawing
def draw_responses(shown: Sequence[Shown]) -> Drawn:
    """Figures 6 and 8: the matrices of the first seed, light where clients answer alike; the data are all contrasts."""
    from matplotlib import pyplot

    first = first_seed(shown)
    names = list(first.found.arrays)
    across = min(len(names), 4)
    down = -(-len(names) // across)
    figure, axes = pyplot.subplots(down, across, figsize=(2.2 * across, 2.45 * down), squeeze=False)
    for axis in axes.flat[len(names) :]:
        axis.axis("off")
    for axis, name in zip(axes.flat, names, strict=False):
        axis.imshow(first.found.arrays[name], cmap="magma_r", vmin=0)
        axis.set_title(f"{name}\ncontrast {first.found.numbers[name]['contrast']:.2f}", fontsize=8)
        axis.set_xticks([])
        axis.set_yticks([])
    figure.tight_layout()
    rows = [{"seed": one.seed, "row": row, **found} for one in shown for row, found in one.found.numbers.items()]
    return Drawn(figure, rows)
