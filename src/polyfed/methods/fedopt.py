"""FedOpt: Reddi et al., Adaptive Federated Optimization, 2021 (algorithms 1 and 2).

With `server=sgd` it is FedAvgM (Hsu et al. 2019). Float buffers are plainly averaged: they have no gradient. As in
algorithm 2 the moments are not corrected for their start at zero, where torch's Adam does so.
"""

from typing import Literal

from polyfed.methods.base import Method, Server, method
from polyfed.params import Params
from polyfed.parts.server_steps import AdaptiveStep, momentum_step
from polyfed.registry import param


@method("fedopt", written="FedOpt", paper="Reddi et al. 2021", title="Adaptive Federated Optimization")
class FedOpt(Method):
    """FedAvg whose server steps along the mean change of its clients: SGD with momentum, Adam, Yogi or Adagrad."""

    cost = "as FedAvg, and a step of an optimiser on the server"
    server: Literal["sgd", "adam", "yogi", "adagrad"] = param("sgd", "optimiser of the server")
    server_lr: float | None = param(None, "its learning rate eta; by default 0.1 for sgd and 0.01 for the others", gt=0)
    momentum: float = param(0.9, "momentum of sgd", ge=0, lt=1)
    beta1: float | None = param(None, "decay of the first moment; by default 0.9, and 0 for adagrad", ge=0, lt=1)
    beta2: float = param(0.99, "decay of the second moment of adam and yogi", ge=0, lt=1)
    tau: float = param(0.001, "adaptivity: added to the root of the second moment", gt=0)

    def update(self, server: Server, before: Params, mean: Params) -> None:
        """x <- ServerOpt(x, -Delta), Delta the mean change (algorithm 1); m, v and x as in algorithm 2."""
        state, weights = server.state, (before.weights, mean.weights)
        if self.server == "sgd":
            lr = self.server_lr or 0.1
            velocity = momentum_step(*weights, state.get("velocity"), lr, self.momentum)
            if velocity is not None:
                state.velocity = velocity
        else:
            beta1 = (0.0 if self.server == "adagrad" else 0.9) if self.beta1 is None else self.beta1
            step = AdaptiveStep(self.server, self.server_lr or 0.01, (beta1, self.beta2), self.tau)
            moments = (state.m, state.v) if "m" in state else step.begin(before.weights)
            state.m, state.v = step(*weights, *moments)
        super().update(server, before, mean)
