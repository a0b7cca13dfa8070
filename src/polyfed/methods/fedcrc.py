"""FedCRC: Federated Learning with Common Representation Criterion (its Algorithm 1 is lost; order from fig. 2, III-C).

Readings (docs/changed-from-papers.md): the personal head teaches the global one, KL(p_i || p_g); E epochs for each
stage; tau is a server learning rate of 1 - tau on the head, because clients start stage 3 from h_g.
"""

from typing import Literal

from torch import nn

from polyfed.message import Message
from polyfed.methods.base import Client, Method, Server, Task, method
from polyfed.params import Params, body, head, nothing
from polyfed.parts.losses import LogitLoss, cross_entropy
from polyfed.registry import param


@method(
    "fedcrc",
    written="FedCRC",
    paper="Wang et al.",
    title="Federated Learning with Common Representation Learning Criterion and Personalized Predictor",
)
class FedCRC(Method):
    """A body learnt under a fixed global head, a personal head on it, and a global head taught by the personal one."""

    newcomer = "the global body under the global head"
    cost = "as FedAvg, one more pass of the data, and as many epochs of two heads on its features"
    keeps = {
        "personal_head": "the personal head h_i",
        "personal_body": "where per_body is local, the body that the personal head was trained on",
    }
    tau: float = param(0.99, "how much of the global head stays each round", ge=0, le=1)
    epochs: tuple[float, float, float] | None = param(None, "epochs of the three stages; by default train.epochs each")
    kl_weight: float = param(1.0, "weight of the personal head's teaching", ge=0)
    per_body: Literal["global", "local"] = param("global", "the body under a personal head when it answers")

    @property
    def one_body(self) -> bool:
        """Whether everybody answers with the global body: a client's own is only the head on it."""
        return self.per_body == "global" and self.kept == nothing

    def stages(self, task: Task) -> tuple[float, float, float]:
        """The epochs of the three stages."""
        return self.epochs or (task.train.epochs,) * 3

    def private_steps(self, n: int) -> int:
        return sum(round(self.per_epoch(n) * epochs) for epochs in self.stages(self.task))

    def train(self, client: Client) -> Message:
        one, two, three = self.stages(client.task)
        client.fit(cross_entropy, epochs=one, train=body)  # 1: f under the fixed h_g, eq. 4
        h_g = client.live.get(head)
        rows = client.features("head")  # f is frozen from here on
        self.put_on_personal_head(client)
        client.fit(cross_entropy, on=rows, epochs=two, train=head)  # 2: h_i, eq. 5
        self.keep(client)
        teacher = client.frozen(client.live)
        client.live.put(head, *h_g)
        client.fit(  # 3: h_g learns from the data and from h_i, eqs. 6-7
            LogitLoss(teacher=teacher, weight=self.kl_weight),
            on=rows,
            epochs=three,
            train=head,
        )
        return self.upload(client)

    def update(self, server: Server, before: Params, mean: Params) -> None:
        """f_g <- sum p_i f_i (eq. 3); h_g <- tau h_g + (1 - tau) sum p_i h_gi (eqs. 8-9)."""
        mean.put(head, *mean.mix(before, self.tau).get(head))
        server.shared = mean

    def predictor(self, client: Client) -> nn.Module:
        """(f_g, h_i); h_i is h_g for a client that never trained."""
        if self.per_body == "local" and "personal_body" in client.memory:
            client.live.put(body, client.memory.personal_body)
        self.put_on_personal_head(client)
        return client.model

    def put_on_personal_head(self, client: Client) -> None:
        """Give the live model its personal head, if there is one."""
        if "personal_head" in client.memory:
            client.live.put(head, client.memory.personal_head)

    def keep(self, client: Client) -> None:
        """Remember the personal head, and the body it was trained on where that answers."""
        live: Params = client.live
        client.memory.personal_head, _ = live.get(head)
        if self.per_body == "local":
            client.memory.personal_body, _ = live.get(body)
