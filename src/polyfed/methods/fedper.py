"""FedPer: Arivazhagan et al., Federated Learning with Personalization Layers, 2019."""

from polyfed.methods.base import Method, method
from polyfed.params import head


@method(
    "fedper", written="FedPer", paper="Arivazhagan et al. 2019", title="Federated Learning with Personalization Layers"
)
class FedPer(Method):
    """The head is personal; the body is averaged."""

    personal = head
    newcomer = "the shared body, under a head it trains at the end"
