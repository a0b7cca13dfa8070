"""A run's models, brought back from its last checkpoint: what answers for a client, or for all."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from polyfed.config import Config
from polyfed.data.federation import Federation
from polyfed.engine.folder import RunFolder
from polyfed.engine.local import Serial
from polyfed.engine.rounds import Run, Silent
from polyfed.errors import DataError, UsageError


class Predictor:
    """A model with the preparation its inputs need."""

    def __init__(self, model: nn.Module, federation: Federation, batch: int):
        self.model, self.federation, self._batch = model.eval(), federation, batch

    def logits(self, x: Any) -> Tensor:
        """Raw rows, shaped and scaled like the data the run was given, to logits."""
        rows = self.federation.prepared(x)
        with torch.inference_mode():
            return torch.cat([self.model(part) for part in rows.split(self._batch)]).cpu()

    def predict(self, x: Any) -> np.ndarray:
        """The class of each row."""
        return self.logits(x).argmax(1).numpy()

    def probabilities(self, x: Any) -> np.ndarray:
        """The probability of each class for each row."""
        return self.logits(x).softmax(1).numpy()


class _ReadOnly(RunFolder):
    """A folder nothing is written to."""

    def say(self, text: str) -> None: ...


def replay(config: Config, folder: RunFolder, client: int | None) -> Predictor:
    """The predictor of a client, or the global one, as the newest checkpoint has it."""
    if not list(Path(folder.path / "checkpoints").glob("at-*")):
        raise DataError(f"the run at '{folder.path}' has no checkpoint yet")
    run = Run(config, _ReadOnly(folder.path), Serial(), Silent())
    run.prepare()
    run.restore()
    world, batch = run.world, config.eval.batch
    if client is None:
        model = run.method.global_predictor(run.server)
        if model is None:
            raise UsageError(f"method '{run.method.name}' has no global model; ask for a client's")
        return Predictor(model, world.federation, batch)
    if client not in run.server.clients:
        raise UsageError(f"there is no client {client}; the run has clients 0 to {len(run.server.clients) - 1}")
    job = run.jobs("evaluate", config.rounds + 1, [client])[0]
    ready = world.client(job, run.store.get(client, job.version))
    run.method.adapt(ready)
    return Predictor(run.method.predictor(ready), world.federation, batch)
