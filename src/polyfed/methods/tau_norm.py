"""tau-norm: Kang et al., Decoupling Representation and Classifier for Long-Tailed Recognition, 2020, eq. 4.

Departure: the paper chooses tau on validation data, which clients need not have. Here tau is given, or (`tau=search`)
every client takes the one with the best mean recall on its own training data, the smallest where several are equal.
"""

from typing import Annotated, Literal

from pydantic import Field
from torch import nn

from polyfed.methods.base import Client, Method, OnTop, method
from polyfed.methods.fedavg import FedAvg
from polyfed.parts.heads import mean_recall, row_factors, scale_head
from polyfed.registry import param

GRID = [tenth / 10 for tenth in range(11)]
Tau = Literal["search"] | Annotated[float, Field(ge=0, le=1)]


@method(
    "tau-norm",
    written="τ-norm",
    paper="Kang et al. 2020",
    title="Decoupling Representation and Classifier for Long-Tailed Recognition",
)
class TauNorm(OnTop):
    """After any method, the rows of its head get more equal lengths, and the bias is dropped; nothing is trained."""

    late = True
    cost = "its base's; at the end nothing, or with tau=search one pass of the data"
    edges = {"one class": "with tau=search, the smallest tau that recalls it best"}
    newcomer = "the base's model under a normalised head, like everybody"
    keeps = {"tau": "after finish, the exponent that its head is normalised with"}
    base: Method = param(FedAvg(), "the method whose head is normalised")
    tau: Tau = param(0.7, "0 keeps the rows, 1 makes them equally long; search: by each client's training data")

    @property
    def no_masks(self) -> str:  # type: ignore[override]
        """Masks have too many pixels to search on."""
        return (
            "tau=search keeps features of all samples: give tau a number" if self.tau == "search" else super().no_masks
        )

    def finish(self, client: Client) -> None:
        self.begin_finish(client)
        client.memory.tau = self.search(client) if self.tau == "search" else self.tau

    def search(self, client: Client) -> float:
        """The tau with the best class-balanced accuracy on the client's training data."""
        features = client.frozen(client.live).table("features", client.data)
        weight = client.model.get_parameter("head.weight").detach()
        plain = features @ weight.T
        return max(GRID, key=lambda tau: mean_recall(plain * row_factors(weight, tau), client.data.y))

    def predictor(self, client: Client) -> nn.Module:
        """w_c / |w_c|^tau without a bias (eq. 4); the base's model for a client that is not finished yet."""
        if "tau" not in client.memory:
            return client.model
        net = client.frozen(client.live).model
        return scale_head(net, row_factors(net.get_parameter("head.weight"), client.memory.tau), bias=0.0)
