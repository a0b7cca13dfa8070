"""FedMMD: Yao et al., Two-Stream Federated Learning: Reduce the Communication Costs, 2018 (eq. 3).

The stream of the global model is frozen, so that its features are computed once a round where nothing augments. The
kernels are those of MAP's comparison: five around the mean distance of the batch.
"""

from torch import Tensor

from polyfed.methods.base import Client, Method, method
from polyfed.parts.distil import mmd
from polyfed.parts.resident import Batch
from polyfed.registry import param


@method(
    "fedmmd",
    written="FedMMD",
    paper="Yao et al. 2018",
    title="Two-Stream Federated Learning: Reduce the Communication Costs",
)
class FedMMD(Method):
    """FedAvg whose clients keep the distribution of their features near that of the received model."""

    cost = "as FedAvg, and one pass of the data through the received model"
    unbounded = "its loss compares samples with each other"
    lam: float = param(0.01, "weight of the discrepancy", ge=0)

    def loss(self, client: Client, batch: Batch) -> Tensor:
        """Cross-entropy + lambda MMD^2 of the features of the live and of the received model."""
        return super().loss(client, batch) + self.lam * mmd(batch.features, client.global_model.features(batch))
