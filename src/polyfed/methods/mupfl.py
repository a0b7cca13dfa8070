"""MuPFL: Zhang et al., Multi-level Personalized Federated Learning on Heterogeneous and Long-Tailed Data.

BAVD on the client, ACMU where models meet, PKCF between server and client. By the paper's design the head of the
trained model does leave the client (ACMU averages whole models); only the copy kept between rounds stays. Readings
where the text is open are parameters; their defaults are those under which its equations agree with its prose.
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from polyfed import rng
from polyfed.errors import UsageError
from polyfed.message import Field, Message, Wire
from polyfed.methods.base import Client, Server, Site, Upload, method
from polyfed.methods.creff import FederatedFeatures, labelled, linear
from polyfed.models.base import Net
from polyfed.params import body, everything, head
from polyfed.parts import bavd
from polyfed.parts.cluster import Grouping, embedding, group_adaptively, group_fixed, similarity
from polyfed.parts.losses import cross_entropy
from polyfed.registry import param


@method("mupfl", paper="Zhang et al. 2024")
class MuPFL(FederatedFeatures):
    """Biased dropout on clients, cluster-wise updates, heads tuned on federated features; each can be switched off."""

    bavd: bool = param(True, "biased activation value dropout")
    bavd_psi: Literal["improvement", "printed"] = param("improvement", "sign of the map's growth")
    bavd_granularity: Literal["channel", "spatial"] = param("channel", "a map per channel or one for all")
    bavd_compare: Literal["map", "activation"] = param("map", "what is compared with the map's mean")
    bavd_reset: Literal["round", "epoch", "never"] = param("round", "when the maps start again")
    bavd_keep_ratio: float | None = param(
        None, "keep this share of each slice instead of what is above the mean", gt=0, le=1
    )
    acmu: bool = param(True, "adaptive cluster-based model update")
    alpha: float = param(0.5, "share of the updates in the similarity; the maps have the rest (eq. 8)", ge=0, le=1)
    kappa: int | Literal["adaptive"] = param("adaptive", "number of clusters")
    kappa_min: int = param(2, "fewest clusters tried", ge=2)
    kappa_max: int = param(6, "most clusters tried", ge=2)
    metric: Literal["cosine", "weights"] = param("cosine", "cluster by eq. 8 or by the weights themselves")
    pkcf: bool = param(True, "prior-knowledge-assisted classifier fine-tuning")
    tau: float = param(50.0, "epochs of head tuning on federated features", ge=0)
    grad_at: Literal["global", "local"] = param("global", "where class gradients are taken: received or trained model")
    tune_from: Literal["private", "global"] = param(
        "private", "which head is tuned: the client's own or the received one"
    )
    tune_lr: float | None = param(None, "learning rate of tuning; by default the round's", gt=0)
    tune_batch: int = param(64, "batch of tuning", ge=1)
    train_after_tune: Literal["all", "body"] = param("all", "what the local epochs train")

    # ---- what is built and sent

    def build(self, model: Net) -> Net:
        if not self.bavd:
            return model
        return bavd.listen(
            model,
            psi=self.bavd_psi,
            granularity=self.bavd_granularity,
            compare=self.bavd_compare,
            keep_ratio=self.bavd_keep_ratio,
        )

    def wire(self) -> Wire:
        features = {
            "features": Field(
                "federated features of the matched classes", rows=("matched", self.m, "d"), optional=True
            ),
            "feature_classes": Field("which classes those are", rows=("matched",), kind="integer", optional=True),
        }
        up = self.gradient_fields() if self.pkcf else {}
        if self.pkcf and self.tune_from == "private":
            up["start_head"] = Field("the tuned head its training began with", part=head, summed=False)
        if self.bavd and self.acmu:
            up["map"] = Field("its activation map", rows=("map",), summed=False)
        wire = super().wire().also(features if self.pkcf else {}, up)
        model = Field("the trained model, its head too", part=self.shared, against="w", summed=not self.acmu)
        return wire.also(up={"w": model})

    def start(self, server: Server) -> None:
        super().start(server)
        selected = max(1, round(server.task.participation * server.task.clients))
        if self.acmu and self.kappa != "adaptive" and self.kappa >= selected:
            raise UsageError(f"method.kappa={self.kappa} needs more than the {selected} clients selected each round")

    def send(self, server: Server, id: int) -> Message:
        message = super().send(server, id)
        classes = server.state.matched.nonzero().flatten()
        if self.pkcf and self.m and len(classes):  # from the second round on
            message["features"], message["feature_classes"] = server.state.features[classes], classes
        return message

    # ---- the client (algorithm 1)

    def train(self, client: Client) -> Message:
        message = Message()
        if self.pkcf and self.grad_at == "global":
            self.gradients(client, message)  # eq. 16, before the head is tuned
        self.adapt(client)
        start, _ = client.params.get(head)
        self.epochs(client)
        if self.pkcf and self.grad_at == "local":
            self.gradients(client, message)
        if self.pkcf and self.tune_from == "private":
            message["start_head"] = start
            client.memory.own_head, _ = client.params.get(head)
        if self.bavd and self.acmu:
            message["map"] = bavd.uploaded_map(client.model)
        for name, value in super().upload(client).items():
            message[name] = value
        return message

    def epochs(self, client: Client) -> None:
        """E epochs of SGD with BAVD."""
        trains = {"train": body if self.pkcf and self.train_after_tune == "body" else everything}
        layers = bavd.layers(client.model)
        if self.bavd_reset == "never":
            for i, layer in enumerate(layers):
                layer.map = client.memory.get(f"map_{i}")
        if self.bavd_reset == "epoch":
            for epoch in range(max(1, round(client.task.train.epochs))):
                self.local(client, epochs=1, go_on=epoch > 0, **trains)
                for layer in layers if epoch + 1 < client.task.train.epochs else []:
                    layer.reset()
        else:
            self.local(client, **trains)
        if self.bavd_reset == "never":
            for i, layer in enumerate(layers):
                if layer.map is not None:
                    client.memory[f"map_{i}"] = layer.map

    def adapt(self, client: Client) -> None:
        """Eq. 21: the client's own head (the received one at first), tuned on the federated features."""
        if not self.pkcf:
            return
        if self.tune_from == "private" and "own_head" in client.memory:
            client.params.put(head, client.memory.own_head, client.params.get(head)[1])
        if "features" in client.received:
            self.tune(client, client.received.features, client.received.feature_classes)

    def tune(self, site: Site, features: Tensor, classes: Tensor) -> None:
        """tau epochs on the features; where everybody tunes the same head, everybody draws the same batches."""
        options: dict[str, Any] = {"epochs": self.tau, "lr": self.tune_lr, "batch": self.tune_batch, "train": head}
        key = "pkcf" if self.tune_from == "global" else "batches"
        site.fit(cross_entropy, labelled(features, classes), key=key, **options)

    def finish(self, client: Client) -> None:
        """Personalise: tuned by `adapt` already, then the local epochs; the stored head is read, never written."""
        self.epochs(client)
        client.memory.tuned = client.params.copy()

    def predictor(self, client: Client) -> nn.Module:
        if "tuned" in client.memory:
            client.load(client.memory.tuned)
        return client.model

    # ---- interface and server

    def merge(self, server: Server, uploads: Sequence[Upload]) -> None:
        sent = server.params
        server.live.set(sent)
        at = linear(server.model.head)
        starts = self.starts(server, uploads)
        super().merge(server, uploads)
        if self.acmu:
            self.cluster_update(server, uploads, starts)
        if self.pkcf:
            if self.grad_at == "local":
                server.live.set(server.params)
                at = linear(server.model.head)
            self.match_round(server, uploads, at)

    def starts(self, server: Server, uploads: Sequence[Upload]) -> Tensor:
        """w_i^start, weights only: the shared body under the head each client began with."""
        made = server.params.copy()
        classes = server.state.matched.nonzero().flatten()
        if self.pkcf and self.tune_from == "global" and len(classes) and self.m:
            self.tune(server, server.state.features[classes], classes)  # as every client did
            made.put(head, *server.live.get(head))
        rows = []
        for upload in uploads:
            if "start_head" in upload.message:
                made.put(head, upload.message["start_head"], made.get(head)[1])
            rows.append(made.weights.clone())
        return torch.stack(rows)

    def cluster_update(self, server: Server, uploads: Sequence[Upload], starts: Tensor) -> None:
        """Eqs. 14-15: every model takes its cluster's mean update; then the weighted average. Buffers stay averaged."""
        count = server.params.layout.n_weights
        trained = torch.stack([u.message["w"][:count] for u in uploads])
        updates = trained - starts  # eq. 7
        grouping = self.group(server, uploads, trained, updates)
        moved = starts.clone()
        for members in grouping.members():
            moved[members] += updates[members].mean(0)  # eq. 14
        made = server.params.copy()
        made.weights.copy_(server.weights(uploads) @ moved)  # eq. 15
        server.params = made
        server.record("kappa", [grouping.kappa, *grouping.scores.values()])
        server.record("clusters", [[u.client, label] for u, label in zip(uploads, grouping.labels, strict=True)])

    def group(self, server: Server, uploads: Sequence[Upload], trained: Tensor, updates: Tensor) -> Grouping:
        seed = rng.number(server.task.seed, "acmu", server.round) % 2**32
        if self.metric == "weights":
            return group_fixed(trained.numpy(), 5 if self.kappa == "adaptive" else self.kappa, seed)
        maps = torch.stack([u.message["map"] for u in uploads]) if self.bavd else None
        gram = similarity(updates, maps, self.alpha)
        if self.kappa == "adaptive":
            return group_adaptively(gram, self.kappa_min, self.kappa_max, seed)
        return group_fixed(embedding(gram), self.kappa, seed)
