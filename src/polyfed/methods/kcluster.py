"""K-Cluster (IFCA): Ghosh et al., An Efficient Framework for Clustered Federated Learning, 2020 (model averaging).

Departure: the released code draws initial models again until every cluster attracts clients; here they are drawn once.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from polyfed import rng
from polyfed.message import Field, Message, Wire
from polyfed.methods.base import Client, Method, Server, Upload, method
from polyfed.parts.losses import cross_entropy
from polyfed.registry import param


@method(
    "k-cluster",
    written="K-Cluster",
    paper="Ghosh et al. 2020 (IFCA)",
    title="An Efficient Framework for Clustered Federated Learning",
)
class KCluster(Method):
    """k global models; each client trains the one with the smallest loss on its data."""

    newcomer = "that of the k models with the smallest loss on its training data, like everybody"
    family = "clustered"
    cost = "as FedAvg, and a pass of the data through each of the k models"
    k: int = param(2, "number of clusters", ge=1)

    @property
    def has_global(self) -> bool:
        return False

    def wire(self) -> Wire:
        down = {
            "models": Field("all k models", rows=(self.k, "shared")),
            "counters": Field("their integer buffers", rows=(self.k, "shared"), kind="integer"),
        }
        trained = Field("the trained model", part=self.shared, against="models")
        return Wire(down, {"w": trained, "choice": Field("its cluster", kind="number", below=self.k, sees="data")})

    def start(self, server: Server) -> None:
        """The first model is everybody's initial one, the others have seeds of their own."""
        models = [server.shared]
        for j in range(1, self.k):
            with rng.seeded(server.task.seed, "k-cluster", j):
                models.append(server.resident.fresh())
        self.keep(server, [m.get(self.shared) for m in models])

    def send(self, server: Server, id: int) -> Message:
        return Message(models=server.state.models, counters=server.state.counters)

    def adapt(self, client: Client) -> None:
        """Line 6: j = argmin_j F_k(w_j) on the training data."""
        rows = zip(client.received.models, client.received.counters, strict=True)
        models = [client.live.copy() for _ in range(self.k)]  # where buffers are local, the client's own
        for model, row in zip(models, rows, strict=True):
            model.put(self.shared, *row)
        losses = [client.mean_loss(m, cross_entropy) for m in models] if self.k > 1 else [0.0]
        client.scratch.choice = losses.index(min(losses))
        client.load(models[client.scratch.choice])

    def upload(self, client: Client) -> Message:
        message = super().upload(client)
        message["choice"] = client.scratch.choice
        return message

    def merge(self, server: Server, uploads: Sequence[Upload]) -> None:
        """Each model is the average of those who chose it; one nobody chose stays."""
        models = []
        for j in range(self.k):
            members = [u for u in uploads if u.message["choice"] == j]
            before = server.state.models[j], server.state.counters[j]
            models.append(server.average(members).get(self.shared) if members else before)
        self.keep(server, models)
        server.record("clusters", [[u.client, u.message["choice"]] for u in uploads])

    @staticmethod
    def keep(server: Server, models: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Stack k models as rows of one tensor."""
        server.state.models = torch.stack([floats for floats, _ in models])
        server.state.counters = torch.stack([integers for _, integers in models])
