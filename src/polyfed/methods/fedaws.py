"""FedAwS: Yu et al., Federated Learning with Only Positive Labels, 2020 (algorithm 1).

Departure: clients train as in FedAvg, as in MAP's comparison, instead of on the positive term alone. The distance of
eq. 7 is half of one minus the cosine, so that it lies between 0 and 1 whatever the length of the rows.
"""

import torch

from polyfed.config import Train
from polyfed.data.samples import Samples
from polyfed.methods.base import Method, Server, method
from polyfed.params import Params, named
from polyfed.parts.losses import spreadout
from polyfed.registry import param

ROWS = named("head.weight")


@method("fedaws", written="FedAwS", paper="Yu et al. 2020", title="Federated Learning with Only Positive Labels")
class FedAwS(Method):
    """FedAvg whose server spreads the rows of the averaged head, one for each class."""

    cost = "as FedAvg, and steps on the rows of the head on the server"
    margin: float = param(0.8, "distance nu that rows should have", ge=0, le=1)
    steps: int = param(30, "steps of the server each round", ge=0)
    lr: float = param(0.1, "its learning rate", gt=0)
    momentum: float = param(0.9, "its momentum", ge=0, lt=1)

    def update(self, server: Server, before: Params, mean: Params) -> None:
        """W <- W - lr grad reg_sp(W), some steps (eq. 7); the bias and the body stay the mean's."""
        flat, _ = mean.get(ROWS)
        rows = flat.view(server.task.classes, -1)
        server.fit(
            lambda batch: spreadout(rows, self.margin),
            on=Samples.of(rows.detach(), torch.arange(len(rows), device=rows.device), "head"),  # nobody looks at them
            train=[rows],
            steps=self.steps,
            lr=self.lr,
            rule=Train(momentum=self.momentum, batch=len(rows)),
        )
        mean.put(ROWS, flat)
        super().update(server, before, mean)
