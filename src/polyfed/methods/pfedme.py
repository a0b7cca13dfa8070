"""pFedMe: Dinh et al., Personalized Federated Learning with Moreau Envelopes, 2020 (algorithm 1).

Departure: theta starts from w in every step, and takes a fixed number of steps; the paper asks for an accuracy of the
subproblem (eq. 3).
"""

from torch import nn

from polyfed.message import Message
from polyfed.methods.base import Client, Method, Server, method
from polyfed.params import Params
from polyfed.parts.steps import moreau
from polyfed.registry import param


@method(
    "pfedme", written="pFedMe", paper="Dinh et al. 2020", title="Personalized Federated Learning with Moreau Envelopes"
)
class PFedMe(Method):
    """Every step solves for a personal model near the local one, and moves the local one towards it."""

    newcomer = "the global model: it has no personal one yet"
    cost = "`inner` times FedAvg: so many gradients on every batch"
    keeps = {"personal_model": "the personal model theta_k of its last step"}
    unbounded = "its step (moreau) is not sgd"
    inner: int = param(5, "steps on each batch that look for the personal model", ge=1)
    lr: float = param(0.01, "learning rate of those steps", gt=0)
    lam: float = param(15.0, "how close the personal model stays to the local one", gt=0)
    beta: float = param(1.0, "share of the mean in the new global model", gt=0)

    def train(self, client: Client) -> Message:
        theta = client.memory.get("personal_model", client.live).copy()
        # theta minimises F_k(theta) + (lambda / 2) |theta - w|^2, eq. 3; w <- w - eta lambda (w - theta), eq. 4
        self.local(client, step=moreau(self.inner, self.lam, self.lr, personal=theta))
        client.memory.personal_model = theta
        return self.upload(client)

    def update(self, server: Server, before: Params, mean: Params) -> None:
        """w <- (1 - beta) w + beta mean of w_k; float buffers are plainly averaged."""
        mean.weights.lerp_(before.weights, 1 - self.beta)
        super().update(server, before, mean)

    def predictor(self, client: Client) -> nn.Module:
        """theta_k; the global model for a client that never trained."""
        if "personal_model" in client.memory:
            client.load(client.memory.personal_model)
        return client.model
