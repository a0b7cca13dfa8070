"""FedBABU: Oh et al., Towards Enhanced Representation for Federated Image Classification, 2022.

Departure: clients know the seed of the common initial head, so that it is never sent, not even in the first round.
"""

from torch import nn

from polyfed.methods.base import Client, Method, method
from polyfed.params import Slice, body
from polyfed.registry import param


@method(
    "fedbabu",
    written="FedBABU",
    paper="Oh et al. 2022",
    title="FedBABU: Towards Enhanced Representation for Federated Image Classification",
)
class FedBABU(Method):
    """Only the body is trained and averaged, under a head that stays random; at the end each client tunes the whole."""

    trains = body
    cost = "as FedAvg; at the end every client fine-tunes the whole model"
    weighting = "uniform"
    newcomer = "the shared body under the common head, both fine-tuned at the end like everybody's"
    keeps = {"tuned": "after finish, the fine-tuned model"}
    ft_epochs: float = param(5.0, "epochs of fine-tuning at the end", ge=0)
    ft_lr: float = param(0.01, "learning rate of fine-tuning", gt=0)

    @property
    def shared(self) -> Slice:
        return super().shared & body

    def finish(self, client: Client) -> None:
        """Fine-tune everything, once, on every client."""
        client.fit(lambda batch: self.loss(client, batch), epochs=self.ft_epochs, lr=self.ft_lr)
        client.memory.tuned = client.live.copy()

    def predictor(self, client: Client) -> nn.Module:
        if "tuned" in client.memory:
            client.load(client.memory.tuned)
        return client.model
