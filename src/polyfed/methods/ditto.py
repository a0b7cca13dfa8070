"""Ditto: Li et al., Fair and Robust Federated Learning Through Personalization, 2021 (algorithm 1)."""

from torch import nn

from polyfed.message import Message
from polyfed.methods.base import Client, Method, method
from polyfed.parts.corrections import pull
from polyfed.parts.losses import cross_entropy
from polyfed.registry import param


@method(
    "ditto",
    written="Ditto",
    paper="Li et al. 2021",
    title="Ditto: Fair and Robust Federated Learning Through Personalization",
)
class Ditto(Method):
    """FedAvg, and beside it a full personal model that is pulled towards the global one."""

    keeps = {"personal_model": "the client's full personal model v_k"}
    cost = "twice the steps: the personal model takes as many of its own"
    lam: float = param(1.0, "strength of the pull towards the global model", ge=0)
    personal_epochs: float | None = param(None, "epochs of the personal branch; by default train.epochs", gt=0)

    def train(self, client: Client) -> Message:
        upload = super().train(client)  # the global branch
        anchor = client.received.w.weights
        client.load(client.memory.get("personal_model", client.received.w))
        client.fit(  # v <- v - eta (grad F_k(v) + lambda (v - w_g))
            cross_entropy,
            epochs=self.personal_epochs,
            correct=lambda grad: pull(grad, client.live.weights, anchor, self.lam),
        )
        client.memory.personal_model = client.live.copy()
        return upload

    def private_steps(self, n: int) -> int:
        """Both branches."""
        own = self.personal_epochs
        once = super().private_steps(n)
        return once + (once if own is None else round(self.per_epoch(n) * own))

    def predictor(self, client: Client) -> nn.Module:
        """v_k; the global model for a client that never trained."""
        if "personal_model" in client.memory:
            client.load(client.memory.personal_model)
        return client.model
