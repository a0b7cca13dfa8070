"""FedAvg-FT: after the last round every client fine-tunes the final global model (DistFL calls it LG-Net)."""

from torch import nn

from polyfed.methods.base import Client, Method, OnTop, method
from polyfed.methods.fedavg import FedAvg
from polyfed.registry import param


@method(
    "fedavg-ft",
    written="FedAvg-FT",
    paper="Wang et al. 2019; LG-Net of Liu et al. (DistFL)",
    title="Federated Evaluation of On-device Personalization",
)
class FedAvgFT(OnTop):
    """Any method, then local fine-tuning of all layers on every client."""

    late = True
    cost = "its base's; at the end `epochs` epochs of all layers"
    newcomer = "the base's model, fine-tuned at the end like everybody's"
    keeps = {"tuned": "after finish, the fine-tuned model"}
    base: Method = param(FedAvg(), "the method whose model is tuned: the global one, if any, or the client's own")
    epochs: float = param(10.0, "local epochs of tuning", gt=0)
    lr: float | None = param(None, "learning rate of tuning; by default that of the last round", gt=0)

    def finish(self, client: Client) -> None:
        self.begin_finish(client)
        client.fit(lambda batch: self.loss(client, batch), epochs=self.epochs, lr=self.lr)
        client.memory.tuned = client.live.copy()

    def predictor(self, client: Client) -> nn.Module:
        tuned = client.memory.get("tuned")
        if tuned is not None:
            client.load(tuned)
        return client.model
