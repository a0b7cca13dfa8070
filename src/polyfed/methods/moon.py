"""MOON: Li et al., Model-Contrastive Federated Learning, 2021.

Departure: features are compared as the head sees them; the projection head that the paper puts between them would
change the model that all methods are compared on.
"""

from math import log

from torch import Tensor

from polyfed.message import Message
from polyfed.methods.base import Client, Method, method
from polyfed.parts.distil import contrast
from polyfed.parts.resident import Batch, Frozen
from polyfed.registry import param


@method("moon", written="MOON", paper="Li et al. 2021 (MOON)", title="Model-Contrastive Federated Learning")
class MOON(Method):
    """Features are pulled towards those of the global model and away from those of the client's last one."""

    cost = "as FedAvg, and a pass of the data through the received and through the previous model"
    keeps = {"previous": "the client's model at the end of its last round"}
    mu: float = param(5.0, "weight of the contrast", ge=0)
    temp: float = param(0.5, "temperature tau of the contrast", gt=0)

    def loss(self, client: Client, batch: Batch) -> Tensor:
        """Eq. 4: l_sup + mu l_con; at first the previous model is the global one, so that l_con is log 2 for all w."""
        loss, previous = super().loss(client, batch), self.previous(client)
        if previous is None:
            return loss + self.mu * log(2)
        towards, away = client.global_model.features(batch), previous.features(batch)
        return loss + self.mu * contrast(batch.features, towards, away, self.temp)  # eq. 3

    def previous(self, client: Client) -> Frozen | None:
        """The client's last model, frozen once for all batches; None before its first round."""
        if "previous" in client.memory and "previous" not in client.scratch:
            client.scratch.previous = client.frozen(client.memory.previous)
        return client.scratch.get("previous")

    def train(self, client: Client) -> Message:
        upload = super().train(client)
        client.memory.previous = client.live.copy()
        return upload
