"""FedProx: Li et al., Federated Optimization in Heterogeneous Networks, 2020."""

from torch import Tensor

from polyfed.methods.base import Client, Method, method
from polyfed.parts.corrections import pull
from polyfed.registry import param


@method("fedprox", written="FedProx", paper="Li et al. 2020", title="Federated Optimization in Heterogeneous Networks")
class FedProx(Method):
    """FedAvg with a pull towards the received model."""

    cost = "as FedAvg, and a pull at every step"
    mu: float = param(0.01, "strength of the proximal pull", ge=0)

    def correct(self, client: Client, grad: Tensor) -> None:
        """Gradient of eq. 2's proximal term."""
        pull(grad, client.live.weights, client.received.w.weights, self.mu)
