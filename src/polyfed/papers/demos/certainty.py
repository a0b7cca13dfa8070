"""How sure models are of their answers: the entropy of predictions on local tests (MuPFL, Figure 3b)."""

from collections.abc import Sequence

import numpy as np
import torch

from polyfed.methods.fedavg_ft import FedAvgFT
from polyfed.methods.presets import MuPFLPaper
from polyfed.papers.demos import Demo, Drawn, ExperimentKeys, Shown, demo
from polyfed.papers.within import answers, as_drawn, runs_of
from polyfed.report.charts import PERCENT, Axis, Chart, Line, Panel

USED = (FedAvgFT, MuPFLPaper)  # their sources count for what is stored
METHODS = {"FedAvg": "fedavg", "FedAvg+local": {"name": "fedavg-ft", "epochs": 10}, "MuPFL": "mupfl-paper"}
BINS = 20


@demo("certainty", ExperimentKeys)
def certainty(seed: int, keys: ExperimentKeys) -> Demo:
    """Mean entropy, confidence and accuracy of all answers, and how entropy and confidence are spread."""
    numbers, arrays = {}, {}
    with runs_of(keys.experiment, METHODS, seed) as folders:
        for name, folder in folders.items():
            logits, labels = zip(*[(logits, y) for _, logits, y in answers(folder) if len(y)], strict=True)
            chances, y = torch.cat(logits).softmax(1), torch.cat(labels)
            entropy = -(chances * chances.clamp(min=1e-12).log()).sum(1)
            sure, right = chances.max(1).values, (chances.argmax(1) == y).float()
            numbers[name] = {
                "entropy": float(entropy.mean()),
                "confidence": 100 * float(sure.mean()),
                "accuracy": 100 * float(right.mean()),
            }
            most = float(np.log(chances.shape[1]))
            arrays[f"{name}: entropy"] = _shares(entropy, 0.0, most)
            arrays[f"{name}: confidence"] = _shares(sure, 0.0, 1.0)
            arrays["most"] = np.array(most)
    return Demo(numbers, arrays)


def _shares(values: torch.Tensor, low: float, high: float) -> np.ndarray:
    """Which share of the values lies in each bin."""
    counts, _ = np.histogram(values.numpy().clip(low, high), BINS, (low, high))
    return counts / max(len(values), 1)


@certainty.drawing
def draw(shown: Sequence[Shown]) -> Drawn:
    """Two histograms as lines, the mean over seeds."""
    most = float(shown[0].found.arrays["most"])
    panels = [
        _panel(shown, "entropy", "entropy of the prediction, nats", most),
        _panel(shown, "confidence", "largest probability of the prediction", 1.0),
    ]
    return as_drawn(Chart("certainty", "How sure the models are", "On every client's local test.", panels))


def _panel(shown: Sequence[Shown], what: str, label: str, most: float) -> Panel:
    middles = ((np.arange(BINS) + 0.5) * most / BINS).tolist()
    marks = []
    for tint, name in enumerate(METHODS):
        shares = np.stack([one.found.arrays[f"{name}: {what}"] for one in shown])
        spread = shares.std(axis=0, ddof=1) if len(shown) > 1 else np.zeros(BINS)
        marks.append(Line(name, tint, middles, shares.mean(axis=0).tolist(), spread.tolist(), [len(shown)] * BINS))
    return Panel("", Axis(label, what), Axis("share of the answers", "share", PERCENT), marks)
