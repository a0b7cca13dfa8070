"""DistFL: Liu et al., Distribution-aware Federated Learning for Mobile Scenarios, 2021.

Departures: inputs are really optimised, where the released code detaches them and clusters on noise; the threshold is
found automatically; boosted uploads stay out of the pre-aggregate. A client that missed the clustering keeps its model
and is placed at its next upload; one that never trained gets the model of before the clustering.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from polyfed import rng
from polyfed.errors import UsageError
from polyfed.message import Field, Message, Wire
from polyfed.methods.base import Client, Method, Server, Upload, method, part_message
from polyfed.params import Params
from polyfed.parts.average import average, shares
from polyfed.parts.cluster import Threshold, automatic_threshold, divergences, link
from polyfed.parts.invert import Knowledge, activation_statistics, bn_layers, extract, responses
from polyfed.registry import param


@method("distfl", paper="Liu et al. 2021")
class DistFL(Method):
    """Clients whose models answer alike to inputs extracted from batch statistics share a model."""

    weighting = "uniform"
    z: int = param(200, "inputs extracted", ge=1)
    channel_ratio: float = param(0.5, "share of the channels whose statistics are matched (E %)", gt=0, le=1)
    abs_gamma: bool = param(False, "rank channels by |gamma| instead of gamma")
    steps: int = param(500, "steps of the extraction", ge=0)
    lr: float = param(0.1, "learning rate of the extraction (Adam)", gt=0)
    warm_start: bool = param(False, "start the extraction from the last inputs instead of noise")
    threshold: float | Literal["auto"] = param("auto", "divergence below which clients belong together")
    min_log_gap: float = param(1.1, "smallest gap of log-divergences that separates clusters (auto)", ge=0)
    linkage: Literal["components", "greedy"] = param("components", "how near pairs become clusters")
    warmup_rounds: int = param(5, "rounds of one shared model before the first clustering", ge=0)
    recluster: Literal["once", "every", "until_stable"] = param("once", "how often clusters are made")
    target: Literal["preaggregate", "client0"] = param("preaggregate", "the model that is inverted")
    pre_norm_gate: float = param(10.0, "updates longer than this many medians stay out of the pre-aggregate", gt=0)
    no_bn: Literal["stats", "noise", "error"] = param("stats", "without BN: uploaded statistics, noise, or refuse")

    @property
    def has_global(self) -> bool:
        return False

    def wire(self) -> Wire:
        ask = Field("whether activation statistics are wanted (models without BN)", kind="number", optional=True)
        row = Field("mean and variance of activations (models without BN)", rows=(2, "channels"), optional=True)
        mine = Field("the trained model", part=self.shared, against="w", summed=False)
        return super().wire().also({"ask": ask}, {"w": mine, "statistics": row})

    def start(self, server: Server) -> None:
        """One cluster, everybody's."""
        if self.no_bn == "error" and not bn_layers(server.model):
            raise UsageError("distfl needs batch normalisation in the model, or method.no_bn=stats or noise")
        server.state.model_0, server.state.opened = server.params, 1
        server.state.assigned = torch.zeros(len(server.clients), dtype=torch.int64)
        server.state.placed = torch.ones(len(server.clients), dtype=torch.int64)
        server.state.clustered = server.state.stable = 0

    def send(self, server: Server, id: int) -> Message:
        message = part_message("w", *self.model_of(server, id).get(self.shared))
        if self.no_bn == "stats" and not bn_layers(server.model) and self.due(server):
            message["ask"] = 1
        return message

    def upload(self, client: Client) -> Message:
        message = super().upload(client)
        if "ask" in client.received:
            message["statistics"] = activation_statistics(client.model, client.data)
        return message

    def merge(self, server: Server, uploads: Sequence[Upload]) -> None:
        good = list(uploads)
        if self.due(server) and len(uploads) > 1:
            good = self.make_clusters(server, uploads)
        elif server.state.clustered:
            self.place(server, [u for u in uploads if not server.state.placed[u.client]])
        for g in sorted({int(server.state.assigned[u.client]) for u in good}):
            members = [u for u in good if server.state.assigned[u.client] == g]
            server.state[f"model_{g}"] = server.average(members)  # eq. 7
        self.forget(server)
        server.record("clusters", server.state.assigned.numpy().copy())

    def due(self, server: Server) -> bool:
        """Whether this round's uploads are clustered."""
        if not server.state.clustered:
            return server.round > self.warmup_rounds or server.round == server.task.rounds
        return self.recluster == "every" or (self.recluster == "until_stable" and not server.state.stable)

    def make_clusters(self, server: Server, uploads: Sequence[Upload]) -> list[Upload]:
        """Extraction, responses, divergences, threshold (4.2, 4.3); gives the uploads that may be averaged."""
        state = server.state
        state.inputs = self.extract(server, uploads)
        answers = self.answers(server, [self.params_of(server, u) for u in uploads])
        usable = [i for i, answer in enumerate(answers) if torch.isfinite(answer).all()]
        sim = divergences(answers[usable])  # eq. 6
        limit = automatic_threshold(sim, self.min_log_gap) if self.threshold == "auto" else Threshold(self.threshold)
        labels = link(sim, limit.value, self.linkage == "greedy")
        state.placed = torch.zeros_like(state.placed)
        opened: dict[int, int] = {}
        for i, upload in enumerate(uploads):
            label = labels[usable.index(i)] if i in usable else -1 - i  # who gives no answer is quarantined alone
            if label not in opened:
                opened[label] = self.open(server, self.model_of(server, upload.client))
            state.assigned[upload.client], state.placed[upload.client] = opened[label], 1
        self.conclude(server, sim, limit, labels)
        return [uploads[i] for i in usable]

    def conclude(self, server: Server, sim: Tensor, limit: Threshold, labels: list[int]) -> None:
        """Remember and report what was found."""
        state, count = server.state, len(set(labels))
        if not state.clustered and server.round <= self.warmup_rounds:
            server.say(f"fewer rounds than warmup_rounds={self.warmup_rounds}: clustered in the last round")
        state.stable = int("partition" in state and state.partition.tolist() == labels)
        state.partition, state.threshold, state.clustered = torch.tensor(labels), limit.value, 1
        server.record("similarity", sim.numpy())
        server.say(f"{count} clusters; threshold {limit.value:.3g}, log-gap {limit.gap:.2f}, next {limit.second:.2f}")
        if limit.warning:
            server.say(limit.warning)
        if count == len(labels) > 1:
            server.say("every client is a cluster of its own: this is local training")

    def place(self, server: Server, late: Sequence[Upload]) -> None:
        """Who missed the clustering joins the nearest cluster on the kept inputs, or stays alone."""
        state = server.state
        for upload in late:
            known = sorted({int(g) for g in state.assigned[state.placed == 1]})
            models = [self.params_of(server, upload), *(state[f"model_{g}"] for g in known)]
            sim = divergences(self.answers(server, models))[0, 1:]
            near = sorted((float(s), g) for s, g in zip(sim, known, strict=True) if s < state.threshold)
            state.assigned[upload.client] = near[0][1] if near else self.open(server, models[0])
            state.placed[upload.client] = 1

    def extract(self, server: Server, uploads: Sequence[Upload]) -> Tensor:
        """Inputs with the target's statistics (eqs. 2-4), from noise or from the last ones."""
        generator = rng.torch_generator(server.task.seed, "distfl-noise", server.round)
        noise = torch.randn(self.z, *server.task.shape, generator=generator)
        start = server.state.inputs if self.warm_start and "inputs" in server.state else noise
        model = server.frozen(self.target_model(server, uploads)).model
        sent = [u.message["statistics"] for u in uploads if "statistics" in u.message]
        goals = average(sent, shares([1] * len(sent), "uniform")) if sent else None
        knowledge = Knowledge.of(model, goals, self.channel_ratio, self.abs_gamma)
        return start if knowledge is None else extract(model, start, knowledge, self.steps, self.lr)

    def target_model(self, server: Server, uploads: Sequence[Upload]) -> Params:
        """Eq. 3: the mean of the uploads whose update is not out of all proportion."""
        if self.target == "client0":
            return self.params_of(server, uploads[0])
        each = [self.params_of(server, u) for u in uploads]
        moved = [
            (p.weights - self.model_of(server, u.client).weights).norm() for p, u in zip(each, uploads, strict=True)
        ]
        lengths = torch.stack(moved)
        kept = [i for i in range(len(each)) if lengths[i] <= self.pre_norm_gate * lengths.median()]
        if len(kept) < len(each):
            server.say(f"{len(each) - len(kept)} uploads stay out of the pre-aggregate: their updates are too long")
        return server.average([uploads[i] for i in kept])

    def answers(self, server: Server, models: Sequence[Params]) -> Tensor:
        """Eq. 5: probabilities [N, z, C] of each model for the inputs."""
        frozen = server.frozen(models[0])
        found = []
        for params in models:
            frozen.params.set(params)
            found.append(responses(frozen.model, server.state.inputs))
        server.resident.reset()
        return torch.stack(found)

    def params_of(self, server: Server, upload: Upload) -> Params:
        """An upload as a whole model."""
        params = self.model_of(server, upload.client).copy()
        params.put(self.shared, upload.message["w"], upload.message.get("w.integers", params.integers[:0]))
        return params

    @staticmethod
    def model_of(server: Server, id: int) -> Params:
        """The model a client is given."""
        return server.state[f"model_{int(server.state.assigned[id])}"]

    @staticmethod
    def open(server: Server, params: Params) -> int:
        """A new cluster that starts with this model."""
        number = server.state.opened
        server.state[f"model_{number}"], server.state.opened = params, number + 1
        return number

    @staticmethod
    def forget(server: Server) -> None:
        """Drop the models nobody is given; the only one left is everybody's."""
        used = {f"model_{int(g)}" for g in server.state.assigned}
        for name in [n for n in server.state if n.startswith("model_") and n not in used]:
            del server.state[name]
        if len(used) == 1:
            server.params = server.state[used.pop()]


@method("distfl-paper", paper="Liu et al. 2021, as printed")
class DistFLPaper(DistFL):
    """DistFL clustered anew every round from fresh noise, without warm-up."""

    steps: int = param(2000, "steps of the extraction", ge=0)
    warmup_rounds: int = param(0, "rounds of one shared model before the first clustering", ge=0)
    recluster: Literal["once", "every", "until_stable"] = param("every", "how often clusters are made")


@method("distfl-official", paper="Liu et al. 2021, as released")
class DistFLOfficial(DistFL):
    """DistFL with the released code's schedule and threshold (but with the paper's optimisation)."""

    steps: int = param(2000, "steps of the extraction", ge=0)
    threshold: float | Literal["auto"] = param(0.2, "divergence below which clients belong together")
