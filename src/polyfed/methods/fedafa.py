"""FedAFA: Lu et al., Personalized Federated Learning on Long-Tailed Data via Adversarial Feature Augmentation, 2023.

Readings (docs/changed-from-papers.md): samples are drawn as sources with the weights of the released code; the model is
cut before its last stage; BN after the cut keeps its statistics; where no generated feature of a batch is accepted, the
batch is trained on as it is.
"""

from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from polyfed.config import Train
from polyfed.methods.base import Client, Method, OnTop, method
from polyfed.methods.fedavg import FedAvg
from polyfed.models.base import Net
from polyfed.params import head, last
from polyfed.parts.adversarial import Towards, wanted
from polyfed.parts.fit import balanced
from polyfed.parts.resident import Batch
from polyfed.registry import param


@method(
    "fedafa",
    written="FedAFA",
    paper="Lu et al. 2023",
    title="Personalized Federated Learning on Long-Tailed Data via Adversarial Feature Augmentation",
)
class FedAFA(OnTop):
    """After any method, every client makes features of its rare classes and trains the last layers with them."""

    late = True
    no_masks = "it makes features of whole images"
    cost = "its base's; at the end epochs of the last layers, with `steps` passes of them for every feature made"
    edges = {"one class": "nothing is generated; it tunes on what it has"}
    newcomer = "the base's model, whose last layers it tunes at the end like everybody"
    keeps = {"tuned": "after finish, the last stage and the head"}
    base: Method = param(FedAvg(), "the method whose last layers are tuned")
    c: float = param(0.6, "share of generated features in the loss", ge=0, le=1)
    epochs: float = param(10.0, "epochs of tuning", ge=0)
    lr: float = param(0.005, "learning rate of tuning", gt=0)
    momentum: float = param(0.9, "Nesterov momentum of tuning, whatever train.momentum is", gt=0, lt=1)
    decay: float = param(5e-4, "weight decay of tuning", ge=0)
    steps: int = param(10, "steps that a feature is moved", ge=0)
    size: float = param(0.5, "length of such a step, and of the noise before the first", gt=0)
    accept: float = param(0.5, "least probability of the wanted class for a generated feature to be used", ge=0, le=1)
    bn: Literal["eval", "train"] = param("eval", "statistics of BN after the cut")

    def finish(self, client: Client) -> None:
        """Real and generated features, c CE(generated) + (1 - c) CE(real), on the layers after the cut."""
        self.begin_finish(client)
        start, draw = client.live.copy(), client.draw("generated")
        teacher = client.frozen(start).model
        client.fit(
            lambda batch: self.mixed_loss(client, batch, teacher, draw),
            on=client.features("last"),
            train=head | last,
            batches=balanced,
            epochs=self.epochs,
            lr=self.lr,
            batch=client.task.train.batch,
            bn=self.bn,
            rule=Train(momentum=self.momentum, nesterov=True, weight_decay=self.decay),
        )
        client.memory.tuned, _ = client.live.get(head | last)
        client.load(start)  # what the base keeps on the client stays as it was

    def mixed_loss(self, client: Client, batch: Batch, teacher: Net, draw: np.random.Generator) -> Tensor:
        """The loss of a batch and of what is generated from it; of the batch alone where nothing is accepted."""
        h, y = self.generated(client, batch, teacher, draw)
        real = cross_entropy(batch.logits, batch.y)
        if not len(y):
            return real
        net = batch.model
        return self.c * cross_entropy(net.head(net.last(h)), y) + (1 - self.c) * real

    def generated(self, client: Client, batch: Batch, teacher: Net, draw: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Accepted features at the cut and their classes, made as the global model sees them."""
        with torch.no_grad():
            h = batch.x if batch.on.cut == "last" else batch.model.trunk(batch.x)
        chosen, source = wanted(batch.y, client.counts.to(h.device), draw)
        noise = torch.from_numpy(draw.random((len(chosen), *h.shape[1:]), dtype=np.float32) - np.float32(0.5))
        towards, y = Towards(self.steps, self.size, self.accept), batch.y[chosen]
        made, sure = towards(lambda rows: teacher.head(teacher.last(rows)), h[source], y, noise.to(h.device))
        return made[sure], y[sure]

    def predictor(self, client: Client) -> nn.Module:
        """The tuned layers on the client's trunk; the base's model for a client that is not finished yet."""
        if "tuned" in client.memory:
            client.live.put(head | last, client.memory.tuned)
        return client.model
