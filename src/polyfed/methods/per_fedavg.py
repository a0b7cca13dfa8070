"""Per-FedAvg: Fallah et al., Personalized Federated Learning: A Meta-Learning Approach, 2020 (algorithm 1).

Its first-order variant, which leaves the Hessian out of the gradient of eq. 3. Departure: a step takes two batches, so
that a round has half as many steps as FedAvg's and reads the data as often.
"""

from typing import Literal

from polyfed.message import Message
from polyfed.methods.base import Client, Method, method
from polyfed.parts.losses import cross_entropy
from polyfed.parts.steps import maml
from polyfed.registry import param


@method(
    "per-fedavg",
    written="Per-FedAvg",
    paper="Fallah et al. 2020",
    title="Personalized Federated Learning: A Meta-Learning Approach",
)
class PerFedAvg(Method):
    """A global model from which one gradient step on a client's data leads to a good personal one."""

    newcomer = "the global model after the same personal step as everybody's"
    cost = "as FedAvg: half as many steps, with two gradients each"
    edges = {"one sample": "it is both batches of a step, with BatchNorm in eval mode, and the client is not tested"}
    unbounded = "its step (maml) is not sgd"
    meta_lr: float = param(0.05, "learning rate beta of the global model", gt=0)
    inner_lr: float | None = param(None, "learning rate alpha of the personal step; by default the run's", gt=0)
    personalise: Literal["one_step", "epochs"] = param(
        "one_step", "what makes the model personal: one gradient step, or train.epochs of them"
    )

    def train(self, client: Client) -> Message:
        steps = client.task.train.steps(client.per_epoch(client.data))
        # w' = w - alpha grad F_k(w) on one batch; w <- w - beta grad F_k(w') on the next
        self.local(client, steps=-(-steps // 2), step=maml(self.inner_lr or client.lr), lr=self.meta_lr)
        return self.upload(client)

    def adapt(self, client: Client) -> None:
        """w_g - alpha grad F_k(w_g), plainly and on one batch (eq. 3); or as many epochs as a round has."""
        if self.personalise == "one_step":
            plain = client.task.train.model_copy(update={"momentum": 0.0, "weight_decay": 0.0, "clip": None})
            client.fit(cross_entropy, steps=1, lr=self.inner_lr, rule=plain)
        else:
            client.fit(cross_entropy, lr=self.inner_lr)
