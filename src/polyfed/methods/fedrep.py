"""FedRep: Collins et al., Exploiting Shared Representations for Personalized Federated Learning, 2021."""

from polyfed.message import Message
from polyfed.methods.base import Client, Task, method
from polyfed.methods.fedper import FedPer
from polyfed.params import body, head
from polyfed.registry import param


@method(
    "fedrep",
    written="FedRep",
    paper="Collins et al. 2021",
    title="Exploiting Shared Representations for Personalized Federated Learning",
)
class FedRep(FedPer):
    """The personal head is trained first, on the frozen body; then the shared body, under the frozen head."""

    cost = "less where train.epochs is above 2: only one epoch trains the body"
    head_epochs: float | None = param(
        None, "epochs of the head; by default one less than train.epochs, at least 1", gt=0
    )
    body_epochs: float = param(1.0, "epochs of the body", gt=0)

    def epochs_of_head(self, task: Task) -> float:
        """As given, or one less than a round has, at least 1."""
        return self.head_epochs or max(task.train.epochs - 1, 1)

    def private_steps(self, n: int) -> int:
        return sum(round(self.per_epoch(n) * epochs) for epochs in (self.epochs_of_head(self.task), self.body_epochs))

    def train(self, client: Client) -> Message:
        self.local(client, on=client.features("head"), epochs=self.epochs_of_head(client.task), train=head)
        self.local(client, epochs=self.body_epochs, train=body)
        return self.upload(client)
