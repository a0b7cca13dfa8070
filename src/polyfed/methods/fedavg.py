"""FedAvg: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, 2017."""

from polyfed.methods.base import Method, method


@method(
    "fedavg",
    written="FedAvg",
    paper="McMahan et al. 2017",
    title="Communication-Efficient Learning of Deep Networks from Decentralized Data",
)
class FedAvg(Method):
    """Every client trains the shared model; the server averages what comes back."""
