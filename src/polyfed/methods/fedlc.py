"""FedLC: Zhang et al., Federated Learning with Label Distribution Skew via Logits Calibration, 2022 (eq. 5).

Correction: the printed loss leaves the true class out of the denominator, falls without end, and collapses; here the
softmax is over all classes. A class without samples counts as 1e-8 of one, so that it hardly takes part in training.
"""

from torch import Tensor

from polyfed.methods.base import Client, Method, method
from polyfed.parts.losses import calibrated_cross_entropy
from polyfed.parts.resident import Batch
from polyfed.registry import param


@method(
    "fedlc",
    written="FedLC",
    paper="Zhang et al. 2022",
    title="Federated Learning with Label Distribution Skew via Logits Calibration",
)
class FedLC(Method):
    """Training logits are lowered by a margin that is larger for classes the client holds less of."""

    edges = {"one class": "all other classes are masked while it trains, so that it teaches little"}
    presumes = "how many samples of each class a client holds, by which its loss is calibrated"
    tau: float = param(1.0, "strength of the calibration", ge=0)

    def loss(self, client: Client, batch: Batch) -> Tensor:
        """Eq. 5: cross-entropy on z_c - tau n_c^(-1/4)."""
        return calibrated_cross_entropy(client.counts, self.tau)(batch)
