"""LWS: Kang et al., Decoupling Representation and Classifier for Long-Tailed Recognition, 2020, eq. 5.

Departure: the paper learns one scale per class on central data. Here every client learns its own after the last
round, as ECL compares it; the scale of a class that the client does not hold stays 1.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from polyfed.config import Train
from polyfed.methods.base import Client, Method, OnTop, method
from polyfed.methods.fedavg import FedAvg
from polyfed.parts.fit import balanced
from polyfed.parts.heads import scale_head
from polyfed.parts.scales import scaling
from polyfed.registry import param


@method(
    "lws",
    written="LWS",
    paper="Kang et al. 2020",
    title="Decoupling Representation and Classifier for Long-Tailed Recognition",
)
class LWS(OnTop):
    """After any method, every client learns how much each of its classes should count."""

    late = True
    no_masks = "it draws whole images by their class"
    cost = "its base's; at the end one pass of the data and epochs of a number per class"
    edges = {"one class": "only the scale of that class is learnt"}
    newcomer = "the base's model, whose classes it scales at the end like everybody"
    keeps = {"scales": "after finish, a factor for the logit of every class"}
    base: Method = param(FedAvg(), "the method whose head is scaled")
    epochs: float = param(10.0, "epochs of learning the scales", ge=0)
    lr: float = param(0.1, "learning rate of the scales", gt=0)
    momentum: float = param(0.9, "momentum of the scales, whatever train.momentum is", ge=0, lt=1)
    decay: float = param(5e-4, "weight decay of the scales", ge=0)

    def finish(self, client: Client) -> None:
        """Only the scales are trained, on classes drawn equally often; the model is frozen."""
        self.begin_finish(client)
        held, rows = torch.ones(len(client.classes), device=client.live.flat.device), client.features("head")
        client.fit(
            lambda batch: cross_entropy(batch.logits * self.scales(client, held), batch.y),
            on=rows,
            step=scaling(client.model, rows, client.classes),  # on features without autograd
            train=[held],
            batches=balanced,
            epochs=self.epochs,
            lr=self.lr,
            batch=client.task.train.batch,
            rule=Train(momentum=self.momentum, weight_decay=self.decay),
        )
        client.memory.scales = self.scales(client, held)

    @staticmethod
    def scales(client: Client, held: Tensor) -> Tensor:
        """f_c of every class: learnt where the client holds it, else 1."""
        return torch.ones(client.task.classes, device=held.device).scatter(0, client.classes.to(held.device), held)

    def predictor(self, client: Client) -> nn.Module:
        """f_c (w_c h + b_c), a head with scaled rows; the base's model for a client that is not finished yet."""
        scales = client.memory.get("scales")
        if scales is None:
            return client.model
        return scale_head(client.frozen(client.live).model, scales, bias=scales)
