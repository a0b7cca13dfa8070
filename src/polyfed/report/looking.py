"""Where the models of runs look: the figure `maps`, for which networks and images are read again.

It is no part of a report, because a report needs a run's records alone, and neither its data nor its code.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from polyfed.data.preparation import per_channel
from polyfed.data.samples import Samples, scaled
from polyfed.engine.run_folder import RunFolder
from polyfed.engine.work import federation_of
from polyfed.errors import UsageError
from polyfed.models.base import Net
from polyfed.report.charts import Chart
from polyfed.report.kinds.maps import activation_maps, chart_of
from polyfed.report.runs import Selection, Shown
from polyfed.use.predictor import Predictor
from polyfed.use.replay import replay


def maps_of_runs(selection: Selection, client: str | None, images: int, trust: bool = False) -> Chart:
    """Test images of the first run's client, or of the global test, and where each run's model of it looks."""
    first = selection.runs[0]
    data = federation_of(RunFolder(first.path).made_of({}, trust))
    if not data.dataset.images or data.masks:
        raise UsageError(f"class activation maps need pictures with a class each, and {data.dataset.name} holds none")
    held = data.global_test if client is None else data.clients[RunFolder(first.path).client(client)].test
    rows = one_of_each(held, images)
    if not len(rows):
        raise UsageError("there is no test image to look at: name another client with --client, or say --global")
    pixels, y = data.pool.rows(rows), data.pool.y[rows].long()
    maps = {name: _maps(run, client, pixels, y, trust) for name, run in _named(selection.runs).items()}
    titles = [f"image {at + 1} ({data.class_names[label]})" for at, label in enumerate(y.tolist())]
    return chart_of(maps, pixels.float().mean(1), titles)


def one_of_each(held: Samples, most: int) -> Tensor:
    """Rows of the pool: the first sample of every class, then the second of every class, and so on."""
    labels, turns = held.y.tolist(), dict[int, int]()
    order = []
    for place, label in enumerate(labels):
        turns[label] = turns.get(label, -1) + 1
        order.append((turns[label], label, place))
    return held.rows[torch.tensor([place for *_, place in sorted(order)[:most]], dtype=torch.int64)]


def _named(runs: Sequence[Shown]) -> dict[str, Shown]:
    """Runs by their rows, and by their seeds too where one row has several."""
    rows = [run.row for run in runs]
    return {run.row if rows.count(run.row) == 1 else f"{run.row}, seed {run.seed}": run for run in runs}


def _maps(run: Shown, client: str | None, pixels: Tensor, y: Tensor, trust: bool) -> Tensor:
    """The maps of one run's model, to which the images are scaled as it learnt them."""
    folder = RunFolder(run.path)
    found = replay(folder.made_of({}, trust), folder, None if client is None else folder.client(client))
    if not isinstance(found.model, Net):
        raise UsageError(f"what answers in the run at '{run.path}' is no single network, and has no activation maps")
    if found.preparation.model_shape != tuple(pixels.shape[1:]):
        raise UsageError(f"the run at '{run.path}' has images of another size than the first: draw it by itself")
    return activation_maps(found.model, _prepared(found, pixels), y)


def _prepared(found: Predictor, pixels: Tensor) -> Tensor:
    return scaled(pixels, *(per_channel(v, 4) for v in (found.preparation.mean, found.preparation.std)))
