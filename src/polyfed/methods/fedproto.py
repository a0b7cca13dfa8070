"""FedProto: Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients, 2022.

Departure: a class that nobody sent in a round keeps its prototype; in the paper everybody takes part in every round.
"""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyfed.message import Field, Message, Wire
from polyfed.methods.base import Client, Method, Server, Upload, method
from polyfed.params import everything
from polyfed.parts.losses import cross_entropy
from polyfed.parts.prototypes import Nearest, class_features, merged, table
from polyfed.parts.resident import Batch, in_batches
from polyfed.registry import param


@method(
    "fedproto",
    written="FedProto",
    paper="Tan et al. 2022",
    title="FedProto: Federated Prototype Learning across Heterogeneous Clients",
)
class FedProto(Method):
    """Every model is personal; clients share the mean features of each class and pull theirs towards those of all."""

    personal = everything
    own_models = True
    no_masks = "it answers for whole images, by the nearest prototype"
    cost = "as FedAvg, and one more pass of the data for the prototypes"
    edges = {"one class": "it sends the prototype of that class alone"}
    newcomer = "the initial model, trained at the end on its own data, towards the prototypes"
    lam: float = param(1.0, "how strongly features are drawn to the prototype of their class", ge=0)
    predict: Literal["head", "prototype"] = param("head", "what answers: the client's head, or the nearest prototype")
    average: Literal["count", "mean"] = param("count", "prototypes are averaged by samples of the class, or plainly")

    def wire(self) -> Wire:
        down = {
            "prototypes": Field("the prototype of each class known", rows=("known", "d"), optional=True),
            "classes": Field("which classes those are", rows=("known",), kind="integer", optional=True),
        }
        up = {
            "prototypes": Field("mean features of each class held", rows=("held", "d"), bound=1e6, sees="data"),
            "classes": Field("which those are", rows=("held",), kind="integer", below="C", distinct=True, sees="data"),
            "counts": Field("how many of each", rows=("held",), kind="integer", below=2**53, sees="data"),
        }
        return Wire(down, up)

    def send(self, server: Server, id: int) -> Message:
        return Message(**{name: server.state[name] for name in ("prototypes", "classes") if name in server.state})

    def loss(self, client: Client, batch: Batch) -> Tensor:
        """Eq. 7: CE + lambda MSE(h, prototype of y); a class without a prototype adds nothing."""
        if self.lam == 0 or "prototypes" not in client.received:
            return cross_entropy(batch)
        goals, known = self.known(client)
        drawn = known[batch.y, None]
        return cross_entropy(batch) + self.lam * F.mse_loss(batch.features * drawn, goals[batch.y])

    def upload(self, client: Client) -> Message:
        """Eq. 3: the mean features of each class held, by the trained model."""
        client.model.eval()
        rows = in_batches(client.model.features, client.data, 128)
        means = class_features(rows, client.data.y, client.classes)
        return Message(prototypes=means, classes=client.classes, counts=client.counts[client.classes])

    def merge(self, server: Server, uploads: Sequence[Upload]) -> None:
        """Eq. 6: the mean over those who hold the class, by how much they hold of it."""
        sent = [(u.message["classes"], u.message["prototypes"], self.weights(u)) for u in uploads]
        if "prototypes" in server.state:  # what is not replaced stays
            now = torch.cat([classes for classes, _, _ in sent])
            old = ~torch.isin(server.state.classes, now)
            kept = server.state.classes[old], server.state.prototypes[old]
            sent.append((*kept, torch.ones_like(kept[0])))
        server.state.classes, server.state.prototypes = merged(sent, server.task.classes)

    def weights(self, upload: Upload) -> Tensor:
        """What a client's prototypes count: its samples of each class, of all it said it has in its hello."""
        counts = upload.message["counts"].double()
        return torch.ones_like(counts) if self.average == "mean" else upload.n * counts / counts.sum().clamp(min=1)

    def predictor(self, client: Client) -> nn.Module:
        """The client's own head; or the nearest prototype, once there are any."""
        by_head = self.predict == "head" or "prototypes" not in client.received
        return client.model if by_head else Nearest(client.model, *self.known(client))

    @staticmethod
    def known(client: Client) -> tuple[Tensor, Tensor]:
        """The prototypes received, a row for every class, and for which classes there are any."""
        return table(client.received.prototypes, client.received.classes, client.task.classes)
