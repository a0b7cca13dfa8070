"""Confusion counts: the one thing measured, from which every accuracy follows."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from polyfed.data.samples import Samples
from polyfed.measure.shared import SharedFeatures, batches

AT_ONCE = 1 << 14  # rows counted in one go: counting each batch by itself takes longer than a small head


def confusion(
    predictor: nn.Module, samples: Samples, classes: int, batch: int, shared: SharedFeatures | None = None
) -> Tensor:
    """counts[true, predicted] of a predictor on samples."""
    return confusions(predictor, samples, classes, batch, [None], shared)[0]


def confusions(
    predictor: nn.Module,
    samples: Samples,
    classes: int,
    batch: int,
    allowed: Sequence[Tensor | None],
    shared: SharedFeatures | None = None,
) -> list[Tensor]:
    """One table per entry of `allowed`: the classes the predictor may answer with (None: all there are).

    A background that a model learnt as a further class is no answer.

    Where other predictors are asked about the same samples, `shared` holds what they have in common.
    """
    tables = [torch.zeros(classes * classes, dtype=torch.int64) for _ in allowed]
    predictor.eval()
    with torch.inference_mode():
        for logits, y in _gathered(predictor, samples, batch, shared):
            known = y < classes  # a label outside the classes (void pixels) is never counted
            for table, only in zip(tables, allowed, strict=True):
                found = y[known].long() * classes + _answers(logits[:, :classes], only)[known]
                table += torch.bincount(found, minlength=classes * classes).cpu()
    return [table.view(classes, classes) for table in tables]


def _gathered(
    predictor: nn.Module, samples: Samples, batch: int, shared: SharedFeatures | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """What a predictor says and what is true, several batches at a time."""
    logits = _logits(predictor, samples, batch) if shared is None else shared.logits(predictor, samples, batch)
    y, held, start = samples.y, [], 0
    for (_, index), said in zip(batches(samples, batch), logits, strict=True):
        held.append(said)
        stop = int(index[-1]) + 1
        if y[start:stop].numel() >= AT_ONCE or stop == len(samples):
            yield torch.cat(held), y[start:stop]
            held, start = [], stop


def _logits(predictor: nn.Module, samples: Samples, batch: int) -> Iterator[Tensor]:
    for _, index in batches(samples, batch):
        yield predictor(samples.take(index)[0])


def _answers(logits: Tensor, only: Tensor | None) -> Tensor:
    return logits.argmax(1) if only is None else only[logits[:, only].argmax(1)]
