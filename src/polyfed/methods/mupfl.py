"""MuPFL: Zhang et al., Multi-level Personalized Federated Learning on Heterogeneous and Long-Tailed Data.

BAVD on the client, ACMU where models meet, PKCF between server and client. By the paper's design the head of the
trained model does leave the client (ACMU averages whole models); only the copy kept between rounds stays. Readings
where the text is open are parameters; their defaults are those under which its equations agree with its prose, and
docs/changed-from-papers.md lists them. Departures: ACMU may choose one cluster, and heads are tuned on matched classes.
"""

from collections.abc import Sequence
from typing import Literal

from pydantic import model_validator
from torch import Tensor, nn

from polyfed.config import Train
from polyfed.message import Bundle, Field, Message, Wire
from polyfed.methods.base import Client, Server, Site, Upload, method
from polyfed.methods.cluster_updates import ClusterUpdates
from polyfed.methods.federated_features import FederatedFeatures
from polyfed.models.base import Net
from polyfed.params import body, everything, head
from polyfed.parts import bavd
from polyfed.registry import contradiction, param


@method(
    "mupfl",
    written="MuPFL",
    paper="Zhang et al. 2024",
    title="Multi-level Personalized Federated Learning on Heterogeneous and Long-Tailed Data",
)
class MuPFL(FederatedFeatures, ClusterUpdates):
    """Biased dropout on clients, cluster-wise updates, heads tuned on federated features; each can be switched off."""

    newcomer = "the global model; its head is tuned on the federated features, then it trains, like everybody at last"
    family = "long tail"
    cost = "more: gradients of the head per class, its tuning on federated features; the server clusters and matches"
    keeps = {
        "own_head": "where tune_from is private, the head that the client trained last",
        "tuned": "after finish, the personal model",
        "map_*": "where bavd_reset is never, the activation map and the last loss of each dropout layer",
    }
    bavd: bool | Literal["dropout"] = param(True, "biased activation value dropout; `dropout`: plain dropout of .5")
    bavd_psi: Literal["improvement", "printed"] = param("improvement", "sign of the map's growth")
    bavd_granularity: Literal["channel", "spatial"] = param("channel", "a map per channel or one for all")
    bavd_compare: Literal["activation", "map"] = param("activation", "what is compared with the map's mean")
    bavd_reset: Literal["round", "epoch", "never"] = param("round", "when the maps start again")
    bavd_keep_ratio: float | None = param(None, "compare nothing: keep this top share of each slice", gt=0, le=1)
    bavd_soft: bool = param(False, "compare nothing: keep a value with the probability .5 + .5 of its place in the map")
    bavd_inverse: bool = param(False, "divide by the kept share, as dropout does")
    pkcf: bool = param(True, "prior-knowledge-assisted classifier fine-tuning")
    tau: float = param(50.0, "epochs of head tuning on federated features", ge=0)
    grad_at: Literal["global", "local"] = param("global", "where class gradients are taken: received or trained model")
    tune_from: Literal["private", "global"] = param("private", "the head that is tuned: the client's or the received")
    tune_lr: float | None = param(None, "learning rate of tuning; by default the round's", gt=0)
    tune_batch: int = param(64, "batch of tuning", ge=1)
    tune_momentum: float = param(0.0, "momentum of tuning, whatever train.momentum is", ge=0, lt=1)
    tune_decay: float = param(0.0, "weight decay of tuning", ge=0)
    tune_clip: float | None = param(None, "longest gradient of tuning", gt=0)
    train_after_tune: Literal["all", "body"] = param("all", "what the local epochs train")

    @model_validator(mode="after")
    def _one_mask(self) -> "MuPFL":
        if self.bavd_soft and self.bavd_keep_ratio is not None:
            raise contradiction("method.bavd_soft and method.bavd_keep_ratio are two ways to mask: choose one of them")
        return self

    @property
    def unbounded(self) -> str:  # type: ignore[override]
        return "its masks come from means over batches (method.bavd=true)" if self.bavd is True else ""

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
        return self.bavd is True and self.acmu and self.metric == "cosine"

    # ---- what is built and sent

    def build(self, model: Net) -> Net:
        how = self.bavd_psi, self.bavd_granularity, self.bavd_compare, self.bavd_keep_ratio, self.bavd_soft
        layer = nn.Dropout if self.bavd == "dropout" else lambda: bavd.BAVD(*how, self.bavd_inverse)
        return bavd.listen(model, layer) if self.bavd else model

    def wire(self) -> Wire:
        up = {"w": Field("the trained model, its head too", part=self.shared, against="w", summed=not self.acmu)}
        if self.private and self.acmu:
            up["start_head"] = Field("the tuned head its training began with", part=head, like="w")
        if self.maps:
            up["map"] = Field("its activation map", rows=("map",), bound=1.0, sees="data")
        return super().wire().also(self.feature_fields(), up)

    def start(self, server: Server) -> None:
        super().start(server)
        if self.bavd and not server.model.listens:
            server.say("the model names no place where BAVD may listen: nothing is masked")

    def send(self, server: Server, id: int) -> Message:
        return Message(**super().send(server, id).tensors(), **self.known(server))  # features from the second round on

    # ---- the client (algorithm 1, lines 11-21)

    def train(self, client: Client) -> Message:
        if self.matches and self.grad_at == "global":
            self.take_gradients(client)  # eq. 16, before the head is tuned
        self.begin_tuned(client)
        client.scratch.start_head, _ = client.live.get(head)
        self.epochs(client)
        if self.matches and self.grad_at == "local":
            self.take_gradients(client)
        if self.private:
            client.memory.own_head, _ = client.live.get(head)
        return self.upload(client)

    def adapt(self, client: Client) -> None:
        """Eq. 21, as the client will begin its next round (or `finish`): that need not tune the same head again."""
        client.begin(min(client.round + 1, client.task.rounds + 1))
        self.begin_tuned(client)

    def begin_tuned(self, client: Client) -> None:
        """The client's own head (the received one at first), tuned; after `finish`, the personal model."""
        if "tuned" in client.memory:
            client.load(client.memory.tuned)
            return
        if self.private and "own_head" in client.memory:
            client.live.put(head, client.memory.own_head)
        self.tune(client, client.received)

    def tune(self, site: Site, known: Bundle) -> None:
        """tau epochs on the features, if there are any; where everybody tunes the same head, it is tuned once."""
        rule = Train(momentum=self.tune_momentum, weight_decay=self.tune_decay, clip=self.tune_clip)
        self.fit_head(site, known, rule, not self.private, epochs=self.tau, lr=self.tune_lr, batch=self.tune_batch)

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
        client.memory.tuned = client.live.copy()

    # ---- interface (lines 22-30) and server (lines 9, 31-36)

    def merge(self, server: Server, uploads: Sequence[Upload]) -> None:
        sent = server.shared
        super().merge(server, uploads)  # ACMU, eqs. 7-15
        if self.matches:
            self.match_gradients(server, uploads, sent if self.grad_at == "global" else server.shared)

    def starts(self, server: Server, uploads: Sequence[Upload]) -> list[Tensor]:
        """w_i^start, weights only: the shared body under the head each client began with."""
        server.live.set(server.shared)
        if self.tune_from == "global":
            self.tune(server, self.send(server, uploads[0].client))  # as every client did
        rows = [server.live.weights.cpu().clone()] * len(uploads)  # one tensor for all who tell no head of their own
        for place, upload in enumerate(uploads):
            if "start_head" in upload.message:
                server.live.put(head, upload.message["start_head"])
                rows[place] = server.live.weights.cpu().clone()
        return rows
