"""FLDA: Peterson et al., Private Federated Learning with Domain Adaptation, 2019.

Departures: the gate looks at the features of the shared network, where the paper gives it the input itself: a linear
gate on the pixels of an image sees little. The private network has the architecture of the shared one and starts as a
copy of it, unless `model.per_client` gives the client another.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyfed.methods.base import Client, Method, method
from polyfed.models.base import Net
from polyfed.params import named
from polyfed.parts.losses import cross_entropy
from polyfed.parts.mixture import Personal, WithPrivate
from polyfed.parts.resident import Batch
from polyfed.registry import param


class TwoNetworks(WithPrivate):
    """The shared network G, a private one P, and a private gate that weighs them for every sample."""

    def __init__(self, net: Net, own: Net | None = None):
        super().__init__(net.trunk, net.last, net.head, net.listens)
        generic: Any = net.head
        self.own, self.gate = copy.deepcopy(net) if own is None else own, nn.Linear(generic.in_features, 1)

    def personal(self, x: Tensor) -> Tensor:
        return self.mixture(self.features(x), x)

    def mixture(self, features: Tensor, x: Tensor) -> Tensor:
        """The logarithm of a softmax(G) + (1 - a) softmax(P), where a is the gate's share for the sample."""
        gate, shared, private = self.gate(features), self.head(features), self.own(x)
        of_shared, of_private = F.logsigmoid(gate), F.logsigmoid(-gate)
        return torch.logaddexp(of_shared + shared.log_softmax(1), of_private + private.log_softmax(1))


@method("flda", written="FLDA", paper="Peterson et al. 2019", title="Private Federated Learning with Domain Adaptation")
class FLDA(Method):
    """Every client mixes the averaged network with one of its own, by a gate of its own; all are trained together."""

    personal = named("own.*", "gate.*")
    own_models = True
    no_masks = "its mixture answers for whole images"
    cost = "twice FedAvg: every step trains two networks"
    newcomer = "the shared network, beside one of its own that it trains with its gate at the end"
    generic: float = param(
        0.0, "weight of a loss of the shared network alone, which keeps gates from starving it", ge=0
    )

    @property
    def has_global(self) -> bool:
        return True

    def build(self, model: Net) -> Net:
        return TwoNetworks(super().build(model))

    def build_own(self, own: Net, common: Callable[[], Net]) -> Net:
        """G is everybody's; the architecture of the client's own is P's."""
        return TwoNetworks(super().build(common()), own)

    def loss(self, client: Client, batch: Batch) -> Tensor:
        """The negative log-likelihood of the mixture, and of G alone where `generic` asks for it."""
        model: Any = batch.model
        loss = F.nll_loss(model.mixture(batch.features, batch.x), batch.y)
        return loss + self.generic * cross_entropy(batch) if self.generic else loss

    def predictor(self, client: Client) -> nn.Module:
        return Personal(client.model)  # type: ignore[arg-type]
