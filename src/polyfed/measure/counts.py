"""Confusion counts: the one thing measured, from which every accuracy follows."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from polyfed.data.samples import Samples


def confusion(predictor: nn.Module, samples: Samples, classes: int, batch: int) -> Tensor:
    """counts[true, predicted] of a predictor on samples."""
    return confusions(predictor, samples, classes, batch, [None])[0]


def confusions(
    predictor: nn.Module, samples: Samples, classes: int, batch: int, allowed: Sequence[Tensor | None]
) -> list[Tensor]:
    """One table per entry of `allowed`: the classes the predictor may answer with (None: all)."""
    tables = [torch.zeros(classes * classes, dtype=torch.int64) for _ in allowed]
    predictor.eval()
    with torch.inference_mode():
        for start in range(0, len(samples), batch):
            x, y = samples.take(torch.arange(start, min(start + batch, len(samples)), device=samples.rows.device))
            logits = predictor(x)
            for table, only in zip(tables, allowed, strict=True):
                table += _count(y, _answers(logits, only), classes)
    return [table.view(classes, classes) for table in tables]


def _answers(logits: Tensor, only: Tensor | None) -> Tensor:
    return logits.argmax(1) if only is None else only[logits[:, only].argmax(1)]


def _count(y: Tensor, answers: Tensor, classes: int) -> Tensor:
    known = y < classes  # a label outside the classes (void pixels) is never counted
    return torch.bincount(y[known] * classes + answers[known], minlength=classes * classes).cpu()
