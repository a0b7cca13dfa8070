"""How sure models are of their answers: the entropy of predictions on local tests (MuPFL, Figure 3b)."""

import numpy as np
import torch

from polyfed.methods.fedavg_ft import FedAvgFT
from polyfed.methods.presets import MuPFLPaper
from polyfed.papers.demos import Demo, ExperimentKeys, demo
from polyfed.papers.within import answers, runs_of

USED = (FedAvgFT, MuPFLPaper)  # their sources count for what is stored
METHODS = {"FedAvg": "fedavg", "FedAvg+local": {"name": "fedavg-ft", "epochs": 10}, "MuPFL": "mupfl-paper"}
BINS = 20


class Keys(ExperimentKeys):
    """The experiment that FedAvg and MuPFL run; FedAvg+local takes FedAvg's rounds."""

    models = 2


@demo("certainty", Keys)
def certainty(seed: int, keys: Keys) -> Demo:
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
