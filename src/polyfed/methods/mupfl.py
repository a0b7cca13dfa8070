"""MuPFL: Zhang et al., Multi-level Personalized Federated Learning on Heterogeneous and Long-Tailed Data.

BAVD on the client, ACMU where models meet, PKCF between server and client. By the paper's design the head of the
trained model does leave the client (ACMU averages whole models); only the copy kept between rounds stays. Readings
where the text is open are parameters; their defaults are those under which its equations agree with its prose.
"""

from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from polyfed.message import Bundle, Field, Message, Wire
from polyfed.methods.base import Client, Server, Site, Upload, method
from polyfed.methods.cluster_updates import ClusterUpdates
from polyfed.methods.federated_features import FederatedFeatures
from polyfed.models.base import Net
from polyfed.params import body, everything, head
from polyfed.parts import bavd
from polyfed.registry import param


@method("mupfl", paper="Zhang et al. 2024")
class MuPFL(FederatedFeatures, ClusterUpdates):
    """Biased dropout on clients, cluster-wise updates, heads tuned on federated features; each can be switched off."""

    newcomer = "the global model; its head is tuned on the federated features, then it trains, like everybody at last"
    bavd: bool = param(True, "biased activation value dropout")
    bavd_psi: Literal["improvement", "printed"] = param("improvement", "sign of the map's growth")
    bavd_granularity: Literal["channel", "spatial"] = param("channel", "a map per channel or one for all")
    bavd_compare: Literal["map", "activation"] = param("map", "what is compared with the map's mean")
    bavd_reset: Literal["round", "epoch", "never"] = param("round", "when the maps start again")
    bavd_keep_ratio: float | None = param(None, "compare nothing: keep this top share of each slice", gt=0, le=1)
    pkcf: bool = param(True, "prior-knowledge-assisted classifier fine-tuning")
    tau: float = param(50.0, "epochs of head tuning on federated features", ge=0)
    grad_at: Literal["global", "local"] = param("global", "where class gradients are taken: received or trained model")
    tune_from: Literal["private", "global"] = param("private", "the head that is tuned: the client's or the received")
    tune_lr: float | None = param(None, "learning rate of tuning; by default the round's", gt=0)
    tune_batch: int = param(64, "batch of tuning", ge=1)
    train_after_tune: Literal["all", "body"] = param("all", "what the local epochs train")

    @property
    def matches(self) -> bool:
        return self.pkcf and self.m > 0

    @property
    def private(self) -> bool:
        """Whether a client keeps the head it trained and tunes that."""
        return self.matches and self.tune_from == "private"

    @property
    def maps(self) -> bool:
        """Whether clusters look at activation maps."""
        return self.bavd and self.acmu and self.metric == "cosine"

    # ---- what is built and sent

    def build(self, model: Net) -> Net:
        options = self.bavd_psi, self.bavd_granularity, self.bavd_compare, self.bavd_keep_ratio
        return bavd.listen(model, *options) if self.bavd else model

    def wire(self) -> Wire:
        up = {"w": Field("the trained model, its head too", part=self.shared, against="w", summed=not self.acmu)}
        if self.private and self.acmu:
            up["start_head"] = Field("the tuned head its training began with", part=head, summed=False)
        if self.maps:
            up["map"] = Field("its activation map", rows=("map",), summed=False)
        return super().wire().also(self.feature_fields(), up)

    def start(self, server: Server) -> None:
        super().start(server)
        if self.bavd and not bavd.layers(server.model):
            server.say("the model names no place where BAVD may listen: nothing is masked")

    def send(self, server: Server, id: int) -> Message:
        return Message(**super().send(server, id).tensors(), **self.known(server))  # features from the second round on

    # ---- the client (algorithm 1, lines 11-21)

    def train(self, client: Client) -> Message:
        if self.matches and self.grad_at == "global":
            self.take_gradients(client)  # eq. 16, before the head is tuned
        self.adapt(client)
        client.scratch.start_head, _ = client.params.get(head)
        self.epochs(client)
        if self.matches and self.grad_at == "local":
            self.take_gradients(client)
        if self.private:
            client.memory.own_head, _ = client.params.get(head)
        return self.upload(client)

    def adapt(self, client: Client) -> None:
        """Eq. 21: the client's own head (the received one at first), tuned; after `finish`, the personal model."""
        if "tuned" in client.memory:
            client.load(client.memory.tuned)
            return
        if self.private and "own_head" in client.memory:
            client.params.put(head, client.memory.own_head, client.params.get(head)[1])
        self.tune(client, client.received)

    def tune(self, site: Site, known: Bundle) -> None:
        """tau epochs on the features; where everybody tunes the same head, everybody draws the same batches."""
        key = "batches" if self.tune_from == "private" else "pkcf"
        self.fit_head(site, known, epochs=self.tau, lr=self.tune_lr, batch=self.tune_batch, key=key)

    def epochs(self, client: Client) -> None:
        """E epochs of SGD (eqs. 2-3) with BAVD (eq. 6)."""
        only_body = self.matches and self.train_after_tune == "body"
        with bavd.mapping(client.model, self.bavd_reset, client.memory) as order:
            self.local(client, train=body if only_body else everything, batches=order)

    def upload(self, client: Client) -> Message:
        message = super().upload(client)
        if self.private and self.acmu:
            message["start_head"] = client.scratch.start_head
        if self.maps:
            message["map"] = bavd.uploaded_map(client.model)
        return message

    def finish(self, client: Client) -> None:
        """Personalise: tuned by `adapt` already, then the local epochs; the stored head is read, never written."""
        self.epochs(client)
        client.memory.tuned = client.params.copy()

    # ---- interface (lines 22-30) and server (lines 9, 31-36)

    def merge(self, server: Server, uploads: Sequence[Upload]) -> None:
        sent = server.params
        super().merge(server, uploads)  # ACMU, eqs. 7-15
        if self.matches:
            self.match_gradients(server, uploads, sent if self.grad_at == "global" else server.params)

    def starts(self, server: Server, uploads: Sequence[Upload]) -> list[Tensor]:
        """w_i^start, weights only: the shared body under the head each client began with."""
        server.live.set(server.params)
        if self.tune_from == "global":
            self.tune(server, self.send(server, uploads[0].client))  # as every client did
        common, rows = server.live.get(head), []
        for upload in uploads:
            server.live.put(head, upload.message.get("start_head", common[0]), common[1])
            rows.append(server.live.weights.cpu().clone())
        return rows
