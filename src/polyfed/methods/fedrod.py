"""FedROD: Chen and Chao, On Bridging Generic and Personalized Federated Learning for Image Classification, 2022.

Its linear variant: the personal head is learnt, not made by a hypernetwork.
"""

from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from polyfed.methods.base import Client, Method, method
from polyfed.models.base import Net
from polyfed.params import head, named
from polyfed.parts.losses import balanced_cross_entropy
from polyfed.parts.mixture import Personal, WithPrivate
from polyfed.parts.resident import Batch
from polyfed.registry import param


class TwoHeads(WithPrivate):
    """A network with a second head, zero at first, whose logits are added for its client."""

    def __init__(self, net: Net):
        super().__init__(net.trunk, net.last, net.head, net.listens)
        generic: Any = net.head
        self.own = nn.Linear(generic.in_features, generic.out_features, bias=generic.bias is not None)
        for values in self.own.parameters():
            nn.init.zeros_(values)

    def personal(self, x: Tensor) -> Tensor:
        """z_g + z_p."""
        features = self.features(x)
        return self.head(features) + self.own(features)


@method(
    "fedrod",
    written="FedROD",
    paper="Chen and Chao 2022",
    title="On Bridging Generic and Personalized Federated Learning for Image Classification",
)
class FedROD(Method):
    """A generic head learnt with balanced softmax, averaged with the body, and a personal head on top of it."""

    personal = named("own.*")
    no_masks = "its second head answers for whole images"
    cost = "as FedAvg, and the steps of a second head"
    edges = {"one class": "its balanced softmax has one class left, so that the generic head learns nothing from it"}
    newcomer = "the global model, with a personal head it trains at the end"
    presumes = "how many samples of each class a client holds, by which its loss is balanced"
    p_init: Literal["zeros", "copy"] = param("zeros", "where a personal head starts: at zero, or as the generic one")

    @property
    def has_global(self) -> bool:
        return True

    def build(self, model: Net) -> Net:
        return TwoHeads(super().build(model))

    def adapt(self, client: Client) -> None:
        if client.new and self.p_init == "copy":
            client.live.put(self.personal, *client.live.get(head))

    def loss(self, client: Client, batch: Batch) -> Tensor:
        """The balanced risk for body and generic head; the empirical one for the personal head, and for it alone."""
        own: Any = batch.model.own
        generic = balanced_cross_entropy(client.counts)(batch)
        return generic + F.cross_entropy(batch.logits.detach() + own(batch.features.detach()), batch.y)

    def predictor(self, client: Client) -> nn.Module:
        return Personal(client.model)  # type: ignore[arg-type]
