"""LG-FedAvg: Liang et al., Think Locally, Act Globally: Federated Learning with Local and Global Representations, 2020.

Departure: the paper starts from a model that FedAvg has trained. Here every body starts from the common initial one;
the key `init` names a finished run of FedAvg to start from instead.
"""

from polyfed.methods.base import Method, method
from polyfed.params import body


@method(
    "lg-fedavg",
    written="LG-FedAvg",
    paper="Liang et al. 2020",
    title="Think Locally, Act Globally: Federated Learning with Local and Global Representations",
)
class LGFedAvg(Method):
    """The body is personal; the head is averaged."""

    personal = body
    newcomer = "the shared head, on a body it trains at the end from where all bodies started"
