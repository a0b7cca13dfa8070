"""CReFF: Shang et al., Federated Learning on Heterogeneous and Long-Tailed Data via Classifier Re-training, 2022."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from polyfed import rng
from polyfed.data.samples import Samples
from polyfed.message import Field, Message, Wire
from polyfed.methods.base import Client, Method, Server, Site, Upload, method
from polyfed.params import head
from polyfed.parts.invert import class_shares, head_gradients, match_features
from polyfed.parts.losses import cross_entropy
from polyfed.parts.resident import in_batches
from polyfed.registry import param

Head = tuple[Tensor, Tensor | None]


class FederatedFeatures(Method):
    """Features the server makes so that their classifier gradients match the clients' (MuPFL eqs. 16-20)."""

    m: int = param(100, "federated features per class", ge=0)
    match_steps: int = param(100, "steps of gradient matching a round", ge=0)
    lr_feat: float = param(0.1, "learning rate of matching", gt=0)
    b_real: int = param(32, "real samples of a class in one draw", ge=1)
    draws: int = param(10, "draws whose gradients are averaged", ge=1)
    match: Literal["rows", "flat"] = param("rows", "cosine distance per row of the gradient, or of the whole (eq. 20)")

    def gradient_fields(self) -> dict[str, Field]:
        """What a client sends of its classes."""
        return {
            "z": Field("mean classifier gradient of each class held", rows=("classes", "C", "h"), summed=False),
            "classes": Field("which classes those are", rows=("classes",), kind="integer", summed=False),
        }

    def gradients(self, client: Client, message: Message) -> None:
        """z_i^c (eq. 16) at the live model in eval mode: the mean of some draws of each class held."""
        client.model.eval()
        rows, y = in_batches(client.model.features, client.data, 128), client.data.y
        weight, bias = linear(client.model.head)
        found, draw = [], client.draw("classifier-gradients")
        for c in client.classes.tolist():
            own = rows[y == c]
            share = class_shares(len(own), self.b_real, self.draws, draw).to(own)
            found.append(head_gradients(own, torch.full((len(own),), c, device=own.device), weight, bias, share))
        message["z"], message["classes"] = torch.stack(found), client.classes

    def match_round(self, server: Server, uploads: Sequence[Upload], at: Head) -> None:
        """z^c = mean over those who sent it (eq. 17); move H^c until its gradient at the same head points there."""
        goals: dict[int, list[Tensor]] = {}
        for upload in uploads:
            for c, z in zip(upload.message["classes"].tolist(), upload.message["z"], strict=True):
                goals.setdefault(c, []).append(z)
        means = {c: torch.stack(zs).mean(0) for c, zs in sorted(goals.items())}
        sent = [c for c, z in means.items() if z.norm() > 0]  # a class that is fitted perfectly says nothing
        if not sent or not self.m:
            return
        classes, goal = torch.tensor(sent), torch.stack([means[c] for c in sent])
        features = server.state.features.clone()
        flat = self.match == "flat"
        features[classes] = match_features(features[classes], goal, classes, *at, self.match_steps, self.lr_feat, flat)
        server.state.features = features
        server.state.matched = server.state.matched.index_fill(0, classes, 1)

    def start(self, server: Server) -> None:
        """H^c ~ N(0, 1), once; kept across rounds."""
        super().start(server)
        width = linear(server.model.head)[0].shape[1]
        generator = rng.torch_generator(server.task.seed, "federated-features")
        server.state.features = torch.randn(server.task.classes, self.m, width, generator=generator)
        server.state.matched = torch.zeros(server.task.classes, dtype=torch.int64)


def linear(layer: nn.Module) -> Head:
    """Weight and bias of a linear head, without gradient."""
    assert isinstance(layer, nn.Linear)
    return layer.weight.detach().clone(), None if layer.bias is None else layer.bias.detach().clone()


def labelled(features: Tensor, classes: Tensor) -> Samples:
    """Federated features [n, m, d] of these classes as rows to train a head on."""
    return Samples.of(features.flatten(0, 1), classes.repeat_interleave(features.shape[1]), cut="head")


@method("creff", paper="Shang et al. 2022")
class CReFF(FederatedFeatures):
    """FedAvg, and a head re-trained on federated features each round that answers for all."""

    head_lr: float = param(0.01, "learning rate of re-training", gt=0)
    head_batch: int = param(32, "batch of re-training", ge=1)
    head_epochs: float = param(300.0, "epochs of re-training", ge=0)

    def wire(self) -> Wire:
        retrained = Field("the re-trained head, the point of the next gradients", part=head)
        return super().wire().also(down={"head": retrained}, up=self.gradient_fields())

    def start(self, server: Server) -> None:
        super().start(server)
        server.state.head, _ = server.params.get(head)

    def send(self, server: Server, id: int) -> Message:
        message = super().send(server, id)
        message["head"] = server.state.head
        return message

    def train(self, client: Client) -> Message:
        """Gradients at (body, re-trained head); training from the FedAvg model."""
        aside = Message()
        client.params.put(head, client.received.head.get(head)[0], client.params.get(head)[1])
        self.gradients(client, aside)
        client.load(client.received.w)
        message = super().train(client)
        for name, value in aside.items():
            message[name] = value
        return message

    def merge(self, server: Server, uploads: Sequence[Upload]) -> None:
        self.wear(server)
        at = linear(server.model.head)
        super().merge(server, uploads)
        self.match_round(server, uploads, at)
        self.retrain(server)

    def retrain(self, server: Server) -> None:
        """A fresh head on the features of all matched classes."""
        classes = server.state.matched.nonzero().flatten()
        server.live.set(server.params)
        server.fresh(head)
        rows = labelled(server.state.features[classes], classes)
        server.fit(cross_entropy, rows, epochs=self.head_epochs, lr=self.head_lr, batch=self.head_batch, train=head)
        server.state.head, _ = server.live.get(head)

    def wear(self, server: Server) -> None:
        """The shared body under the re-trained head, live."""
        server.live.set(server.params)
        server.live.put(head, server.state.head, server.live.get(head)[1])

    def adapt(self, client: Client) -> None:
        """In evaluation the re-trained head answers; training puts its own start back."""

    def predictor(self, client: Client) -> nn.Module:
        model = self.global_predictor(client)
        assert model is not None
        return model

    def global_predictor(self, site: Site) -> nn.Module | None:
        """The FedAvg body with the re-trained head."""
        values = site.state.head if isinstance(site, Server) else site.received.head.get(head)[0]  # type: ignore[attr-defined]
        params = site.common.copy()
        params.put(head, values, params.get(head)[1])
        return site.frozen(params).model
