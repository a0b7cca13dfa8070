"""FedRS: Li and Zhan, Federated Learning with Label Distribution Skew via Restricted Softmax, 2021; MAP's eqs. 8-9."""

from typing import Literal

from torch import Tensor

from polyfed.methods.base import Client, Method, method
from polyfed.parts.losses import nll, restricted
from polyfed.parts.resident import Batch
from polyfed.registry import param


@method(
    "fedrs",
    written="FedRS",
    paper="Li and Zhan 2021",
    title="FedRS: Federated Learning with Restricted Softmax for Label Distribution Non-IID Data",
)
class FedRS(Method):
    """Training logits of classes a client does not hold are restricted, so that their rows are hardly pushed away."""

    weighting = "uniform"
    edges = {"one class": "the logits of all others are scaled by alpha while it trains"}
    presumes = "which classes a client holds, by which its loss is restricted"
    alpha: float = param(0.9, "factor of a missing class's logit", ge=0, le=1)
    rs_mode: Literal["indicator", "proportional", "fraction"] = param("indicator", "how factors follow from the counts")
    min_class_count: int = param(1, "a class with fewer local samples counts as missing", ge=1)

    def loss(self, client: Client, batch: Batch) -> Tensor:
        """Eq. 8: cross-entropy on alpha_c * (w_c . h)."""
        return nll(restricted(batch.logits, self.factors(client)), batch)

    def factors(self, client: Client) -> Tensor:
        """alpha_c^k (below eq. 8): 1 for classes held, alpha for others; or in proportion to the counts."""
        counts = client.counts.to(client.resident.grad)
        if self.rs_mode == "proportional":
            return counts / counts.max() * (1 - self.alpha) + self.alpha
        if self.rs_mode == "fraction":
            return counts / counts.sum()
        return (counts >= self.min_class_count) * (1 - self.alpha) + self.alpha
