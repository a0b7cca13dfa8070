"""CReFF: Shang et al., Federated Learning on Heterogeneous and Long-Tailed Data via Classifier Re-training, 2022.

Departure: the head is re-trained on the classes matched so far; before the first matching it is FedAvg's own.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from polyfed.config import Train
from polyfed.message import Field, Message, Wire
from polyfed.methods.base import Client, Server, Site, Upload, method
from polyfed.methods.federated_features import FederatedFeatures
from polyfed.params import Params, head, nothing
from polyfed.registry import param


@method(
    "creff",
    written="CReFF",
    paper="Shang et al. 2022",
    title="Federated Learning on Heterogeneous and Long-Tailed Data via Classifier Re-training",
)
class CReFF(FederatedFeatures):
    """FedAvg, and a head re-trained on federated features each round that answers for all."""

    newcomer = "the shared body under the re-trained head, like everybody"
    family = "long tail"
    cost = "more: clients take gradients of the head per class; the server matches features and re-trains a head"
    head_lr: float = param(0.01, "learning rate of re-training", gt=0)
    head_batch: int = param(32, "batch of re-training", ge=1)
    head_epochs: float = param(300.0, "epochs of re-training", ge=0)
    head_momentum: float = param(0.0, "momentum of re-training, whatever train.momentum is", ge=0, lt=1)
    head_decay: float = param(0.0, "weight decay of re-training", ge=0)
    head_clip: float | None = param(None, "longest gradient of re-training", gt=0)

    @property
    def personalises(self) -> bool:
        """All answer with the shared body under the re-trained head, unless they keep buffers of their own."""
        return self.kept != nothing

    def wire(self) -> Wire:
        retrained = Field("the re-trained head, the point of the next gradients", part=head)
        return super().wire().also(down={"head": retrained}).summing("w")

    def start(self, server: Server) -> None:
        super().start(server)
        server.state.head, _ = server.shared.get(head)

    def send(self, server: Server, id: int) -> Message:
        message = super().send(server, id)
        message["head"] = server.state.head
        return message

    def adapt(self, client: Client) -> None:
        """What answers, and where gradients are taken: the shared body under the re-trained head."""
        client.load(self.under(client.received.w, client.received.head.get(head)[0]))

    def train(self, client: Client) -> Message:
        """Gradients at the re-trained head; training starts from the FedAvg model."""
        self.adapt(client)
        if self.matches:
            self.take_gradients(client)
        client.load(client.received.w)
        self.local(client)
        return self.upload(client)

    def merge(self, server: Server, uploads: Sequence[Upload]) -> None:
        at = self.under(server.shared, server.state.head)  # where the gradients of these uploads were taken
        super().merge(server, uploads)
        if self.matches:
            self.match_gradients(server, uploads, at)
        server.live.set(server.shared)
        known = self.known(server)
        if known:
            server.fresh(head)
            rule = Train(momentum=self.head_momentum, weight_decay=self.head_decay, clip=self.head_clip)
            self.fit_head(server, known, rule, epochs=self.head_epochs, lr=self.head_lr, batch=self.head_batch)
        server.state.head, _ = server.live.get(head)

    def global_predictor(self, site: Site) -> nn.Module | None:
        v = site.state.head if isinstance(site, Server) else site.received.head.get(head)[0]  # type: ignore[attr-defined]
        return site.frozen(self.under(site.shared, v)).model

    @staticmethod
    def under(params: Params, v: Tensor) -> Params:
        """A copy of a model with another head."""
        made = params.copy()
        made.put(head, v)
        return made
