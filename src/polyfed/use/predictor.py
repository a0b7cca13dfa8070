"""A model in use: raw samples in, classes and probabilities out."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyfed.data.preparation import Preparation
from polyfed.errors import RunFailed, UsageError

BATCH = 128


class Predictor:
    """A model with the preparation its inputs need and the names of its classes."""

    def __init__(
        self,
        model: Callable[[Tensor], Tensor],
        preparation: Preparation,
        class_names: tuple[str, ...],
        batch: int = BATCH,
        device: torch.device | None = None,
    ):
        self.model, self.preparation, self.class_names = model, preparation, class_names
        self.batch, self._device = batch, device

    def state_dict(self) -> dict[str, Tensor]:
        """The weights and buffers of the network underneath, by name: what `torch.save` or another library takes.

        It is a copy of that of `model`, which for an ensemble holds every member. An exported graph has none.
        """
        if not isinstance(self.model, torch.nn.Module):
            raise UsageError("an exported graph has no state_dict: ask the run's own model, or export as safetensors")
        kept = self.model.state_dict()
        return {name: value.detach().clone().contiguous().cpu() for name, value in kept.items()}

    def logits(self, x: Any) -> Tensor:
        """Raw rows, shaped and scaled like the data the model learnt from, to logits."""
        rows = self.preparation.tensor(x, self._device)
        with torch.inference_mode():
            return torch.cat([self.model(part) for part in rows.split(self.batch)]).cpu()

    def predict(self, x: Any) -> np.ndarray:
        """The class of each row, or of each of its pixels where the model learnt masks."""
        return self.logits(x).argmax(1).numpy()

    def probabilities(self, x: Any) -> np.ndarray:
        """The probability of each class for each row."""
        return chances_of(self.logits(x))


def chances_of(logits: Tensor) -> np.ndarray:
    """The probability of each class, from logits that must say one."""
    chances = logits.softmax(1).numpy()
    strange = np.flatnonzero(~np.isfinite(chances).reshape(len(chances), -1).all(axis=1))
    if len(strange):  # an ensemble of no class at all, or weights that are not finite
        raise RunFailed(f"the model gives row {strange[0]} no class: its logits are not finite")
    return chances
