"""A few test pictures that a run on masks keeps: each as it was trained on, its true mask, and the last answer."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from polyfed import rng
from polyfed.data.colours import mask_png, picture_png
from polyfed.engine.oracle import averaged_personal
from polyfed.files import write_file

if TYPE_CHECKING:
    from polyfed.engine.rounds import Run

COUNT = 4
FOLDER = "samples"
PICTURE, TRUTH, ANSWER = "picture", "truth", "answer"


def keep_samples(run: "Run") -> None:
    """Write samples/: pictures of the global test set drawn by the seed, and what the global model says of them.

    Nothing is written where labels are no masks, where the server has no test pictures, or where no model answers for
    all clients. Under eval.oracle the mean of all personal slices answers where there is no global model.
    """
    data = run.world.federation
    model = _answering(run) if data.masks and data.dataset.images and len(data.global_test) else None
    if model is None:
        return
    chosen = drawn(len(data.global_test), run.config.seed)
    rows = data.split.global_test[chosen]
    with torch.inference_mode():
        x, _ = data.global_test.take(torch.from_numpy(chosen).to(data.global_test.rows.device))
        answers = model.eval()(x)[:, : data.classes].argmax(1).cpu().numpy()
    run.world.resident.reset()
    folder = run.folder.place / FOLDER
    folder.mkdir()
    for row, place, answer in zip(rows, chosen, answers, strict=True):
        truth = data.as_trained.y[row]
        files = {PICTURE: picture_png(data.as_trained.x[row])}
        files |= {TRUTH: mask_png(truth, data.class_names), ANSWER: mask_png(answer, data.class_names)}
        for kind, content in files.items():
            write_file(folder / f"{place:05d}-{kind}.png", content, durable=False)


def drawn(count: int, seed: int) -> np.ndarray:
    """Which places of a test set are kept."""
    return np.sort(rng.generator(seed, "samples").permutation(count)[:COUNT])


def _answering(run: "Run") -> nn.Module | None:
    model = run.method.global_predictor(run.server) if run.method.has_global else None
    if model is None and run.config.eval.oracle:
        return run.world.resident.frozen(averaged_personal(run), augmented=False).model
    return model
