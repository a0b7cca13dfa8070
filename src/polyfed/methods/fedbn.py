"""FedBN: Li et al., Federated Learning on Non-IID Features via Local Batch Normalization, 2021."""

from polyfed.methods.base import Method, method
from polyfed.params import bn


@method(
    "fedbn",
    written="FedBN",
    paper="Li et al. 2021",
    title="FedBN: Federated Learning on Non-IID Features via Local Batch Normalization",
)
class FedBN(Method):
    """Batch normalisation, weights and statistics, is personal; a model without it is plain FedAvg."""

    personal = bn
    edges = {"no BatchNorm": "it is FedAvg"}
    newcomer = "the shared layers, between normalisation it trains at the end"
