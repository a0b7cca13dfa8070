"""DistFL: Liu et al., Distribution-aware Federated Learning for Mobile Scenarios, 2021.

Departures: inputs are really optimised, where the released code detaches them and clusters on noise; responses are
softened and the threshold is where a dendrogram's heights jump, because plain divergences of models that are too sure
of themselves hide the groups; boosted uploads stay out of the pre-aggregate. `distfl-paper` and `distfl-official` are
presets; docs/changed-from-papers.md has the evidence. A client that missed the clustering keeps its model and is
placed at its next upload.
"""

from collections.abc import Sequence
from itertools import compress
from typing import Annotated, Literal

import torch
from annotated_types import Gt
from torch import Tensor

from polyfed import rng
from polyfed.errors import UsageError
from polyfed.message import Field, Message, Wire
from polyfed.methods.base import Client, Method, Server, Upload, method, part_message
from polyfed.params import everything
from polyfed.parts.dendrogram import Knowledge, Linkage, partition, proportionate
from polyfed.parts.invert import activation_statistics, bn_layers, bn_statistics, extract, knowledge_of, responses
from polyfed.parts.membership import Clusters
from polyfed.registry import param

Limit = Annotated[float, Gt(0)] | Literal["auto"]
When = Literal["once", "every", "until_stable"]


@method(
    "distfl",
    written="DistFL",
    paper="Liu et al. 2021",
    title="DistFL: Distribution-aware Federated Learning for Mobile Scenarios",
)
class DistFL(Method):
    """Clients whose models answer alike to inputs extracted from batch statistics share a model."""

    family = "clustered"
    no_masks = "it compares what models answer for whole images"
    no_ids = "it extracts inputs by gradient, and an id has none"
    cost = "as FedAvg; where clusters are made, the server optimises z inputs, and every model answers them"
    edges = {"no BatchNorm": "clients send statistics of their activations when the server asks (no_bn)"}
    weighting = "uniform"
    newcomer = "the model of before the clustering; after its first upload, that of the nearest cluster"
    z: int = param(100, "inputs extracted", ge=1)
    channel_ratio: float = param(0.5, "share of the channels whose statistics are matched (E %)", gt=0, le=1)
    abs_gamma: bool = param(False, "rank channels by |gamma| instead of gamma")
    steps: int = param(100, "steps of the extraction", ge=0)
    lr: float = param(0.1, "learning rate of the extraction (Adam)", gt=0)
    warm_start: bool = param(False, "start the extraction from the last inputs instead of noise")
    softness: float = param(2.0, "logits are divided by this many times their own size; 0: plain softmax", ge=0)
    threshold: Limit = param("auto", "divergence below which clients belong together")
    min_ratio: float = param(2.5, "auto: least ratio of heights that separates; 3 for up to 5 clients", gt=1)
    linkage: Linkage = param("average", "what is below: mean divergence, any pair's (components), the first's (greedy)")
    warmup_rounds: int = param(1, "rounds of one shared model before the first clustering", ge=0)
    recluster: When = param("until_stable", "how often; until_stable: up to the same twice, or one five times in a row")
    knowledge: Knowledge = param("responses", "what is compared: answers to extracted inputs, or BN statistics (bn)")
    target: Literal["preaggregate", "client0"] = param("preaggregate", "the model that is inverted")
    pre_norm_gate: float = param(10.0, "updates longer than this many medians stay out of the pre-aggregate", gt=0)
    no_bn: Literal["stats", "noise", "error"] = param("stats", "without BN: uploaded statistics, noise, or refuse")

    @property
    def has_global(self) -> bool:
        return False

    # ---- what is sent

    def wire(self) -> Wire:
        ask = Field("whether activation statistics are wanted (models without BN)", kind="number", optional=True)
        words, shape = "mean and variance of activations (models without BN)", (2, "channels")
        row = Field(words, rows=shape, optional=True, bound=1e12, sees="data")
        mine = Field("the trained model", part=self.shared, against="w")
        wire = super().wire().also(up={"w": mine})
        return wire.also({"ask": ask}, {"statistics": row}) if self.no_bn == "stats" else wire

    def start(self, server: Server) -> None:
        norms = bn_layers(server.model)
        if not norms and (self.no_bn == "error" or self.knowledge == "bn"):
            instead = "method.no_bn=stats or noise with method.knowledge=responses"
            raise UsageError(f"distfl needs batch normalisation in the model, or {instead}")
        if norms and self.shared != everything:
            raise UsageError("distfl reads the statistics of batch normalisation: leave out buffers=local")
        Clusters.begin(server.state, server.shared, len(server.clients))

    def send(self, server: Server, id: int) -> Message:
        message = part_message("w", *Clusters(server.state).model(id).get(self.shared))
        if self.no_bn == "stats" and not bn_layers(server.model) and self.due(server):
            message["ask"] = 1
        return message

    def upload(self, client: Client) -> Message:
        message = super().upload(client)
        if "ask" in client.received:
            message["statistics"] = activation_statistics(client.model, client.data)
        return message

    # ---- the server

    def due(self, server: Server) -> bool:
        """Whether this round's uploads are clustered: the same answer in `send` and in `merge`."""
        if not server.state.clustered:
            return server.round > self.warmup_rounds or server.round == server.task.rounds
        return self.recluster == "every" or (self.recluster == "until_stable" and not server.state.stable)

    def merge(self, server: Server, uploads: Sequence[Upload]) -> None:
        clusters, good = Clusters(server.state), list(uploads)
        if self.due(server) and len(uploads) > 1:
            good = self.cluster(server, uploads)
        elif server.state.clustered:
            good = self.place(server, uploads)
        for number in sorted({clusters.of(u.client) for u in good}):
            clusters[number] = server.average([u for u in good if clusters.of(u.client) == number])  # eq. 7
        used = clusters.forget()
        if len(used) == 1:  # everybody's
            server.shared = clusters[used[0]]
        server.record("clusters", server.state.assigned.clone())

    def cluster(self, server: Server, uploads: Sequence[Upload]) -> list[Upload]:
        """Extraction, responses, divergences, threshold (4.2, 4.3); gives the uploads that may be averaged."""
        state = server.state
        if not state.clustered and server.round <= self.warmup_rounds:
            server.say(f"warmup_rounds={self.warmup_rounds} leaves no round: clustered in the last one")
        if self.knowledge == "responses":
            state.inputs = self.extract(server, uploads)
        good, found = self.usable(server, uploads)
        if good:
            who, answers = [u.client for u in good], torch.stack(found)
            groups, sim = partition(answers, self.threshold, self.min_ratio, self.linkage, self.knowledge)
            Clusters(state).settle(who, answers, groups)
            server.record("similarity", sim)
            server.record("similarity_clients", who)
            for line in groups.lines():
                server.say(line)
        return good

    def extract(self, server: Server, uploads: Sequence[Upload]) -> Tensor:
        """Inputs whose statistics in the pre-aggregate (eq. 3) are those it has seen (eqs. 2 and 4)."""
        target = uploads[:1] if self.target == "client0" else self.trusted(server, uploads)
        model = server.frozen(server.average(target)).model
        sent = [u.message["statistics"] for u in target if "statistics" in u.message]
        knowledge = knowledge_of(model, sent, self.channel_ratio, self.abs_gamma)
        if not knowledge and self.no_bn == "stats":
            server.say("no upload has usable activation statistics: clustered on noise")
        generator = rng.torch_generator(server.task.seed, "distfl-noise", server.round)
        noise = torch.randn(self.z, *server.task.shape, generator=generator)
        start = server.state.get("inputs", noise) if self.warm_start else noise
        return extract(model, start.to(server.resident.device), knowledge, self.steps, self.lr).cpu()

    def trusted(self, server: Server, uploads: Sequence[Upload]) -> list[Upload]:
        """The uploads whose update is not longer than `pre_norm_gate` medians."""
        before = Clusters(server.state)
        moved = [float((server.model_of(u).weights - before.model(u.client).weights).norm()) for u in uploads]
        fine = proportionate(moved, self.pre_norm_gate)
        if not all(fine):
            server.say(f"{fine.count(False)} uploads stay out of the pre-aggregate: their updates are too long")
        return list(compress(uploads, fine))

    def usable(self, server: Server, uploads: Sequence[Upload]) -> tuple[list[Upload], list[Tensor]]:
        """Eq. 5: the uploads with finite responses, and these; who has none is left alone with the model it had."""
        models, frozen = (server.model_of(u) for u in uploads), server.frozen(server.shared)
        bn, inputs = self.knowledge == "bn", server.state.get("inputs")
        answers = bn_statistics(frozen, models) if bn else responses(frozen, models, inputs, self.softness)
        server.resident.reset()  # hands the frozen copy back
        finite = [bool(torch.isfinite(a).all()) for a in answers]
        for upload in compress(uploads, (not fine for fine in finite)):
            Clusters(server.state).quarantine(upload.client)
            server.say(f"client {upload.client} is in quarantine: its model gives no finite answers")
        return list(compress(uploads, finite)), list(compress(answers, finite))

    def place(self, server: Server, uploads: Sequence[Upload]) -> list[Upload]:
        """Who missed the clustering joins the cluster whose members answer most alike, or stays alone."""
        late = [u for u in uploads if not server.state.placed[u.client]]
        good, answers = self.usable(server, late)
        for upload, answer in zip(good, answers, strict=True):
            Clusters(server.state).join(upload.client, answer, server.model_of(upload), self.knowledge)
        return [u for u in uploads if u in good or u not in late]
