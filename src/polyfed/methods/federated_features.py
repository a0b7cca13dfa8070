"""What CReFF and MuPFL share: features the server makes so that their classifier gradients match the clients'.

Departures: `augment` shifts and flips real images where CReFF's released code draws one of six changes. A head is
trained on the features of matched classes only, those somebody has sent a gradient of: the released code trains on all,
and the features of a class that was never matched are noise.
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from polyfed import rng
from polyfed.config import Train
from polyfed.data.augment import augmenter
from polyfed.message import Bundle, Field, Message, Wire
from polyfed.methods.base import Client, Method, Server, Site, Upload
from polyfed.params import Params, head
from polyfed.parts.losses import cross_entropy
from polyfed.parts.match import class_gradients, class_means, labelled, linear, match_features
from polyfed.registry import param


class FederatedFeatures(Method):
    """Class gradients up, features matched to them on the server (CReFF; MuPFL eqs. 16-20)."""

    edges = {"one class": "it sends gradients of that class alone"}
    m: int = param(100, "federated features per class; without any nothing is matched", ge=0)
    match_steps: int = param(100, "steps of gradient matching a round", ge=1)
    lr_feat: float = param(0.1, "learning rate of matching", gt=0)
    b_real: int = param(32, "real samples of a class in one draw", ge=1)
    draws: int = param(10, "draws whose gradients are averaged", ge=1)
    augment: bool = param(False, "shift and flip the real images of each draw")
    match: Literal["rows", "flat"] = param("rows", "cosine distance per row of the gradient, or of the whole (eq. 20)")

    @property
    def matches(self) -> bool:
        """Whether there are features to match."""
        return self.m > 0

    def wire(self) -> Wire:
        z = Field("mean classifier gradient of each class held", rows=("classes", "C", "h"), like="w", sees="data")
        ids = Field("which those are", rows=("classes",), kind="integer", below="C", distinct=True, sees="data")
        return super().wire().also(up={"z": z, "classes": ids} if self.matches else {})

    def feature_fields(self) -> dict[str, Field]:
        """What goes down where clients are given the features."""
        features = Field("federated features of the matched classes", rows=("matched", self.m, "d"), optional=True)
        ids = Field("which classes those are", rows=("matched",), kind="integer", optional=True)
        return {"features": features, "feature_classes": ids} if self.matches else {}

    def start(self, server: Server) -> None:
        """H^c ~ N(0, 1), once; kept across rounds."""
        super().start(server)
        if self.matches:
            width = linear(server.model.head)[0].shape[1]
            generator = rng.torch_generator(server.task.seed, "federated-features")
            server.state.features = torch.randn(server.task.classes, self.m, width, generator=generator)
            server.state.matched = torch.zeros(server.task.classes, dtype=torch.int64)

    def take_gradients(self, client: Client) -> None:
        """z_i^c (eq. 16) at the live model in eval mode, for the upload."""
        augment = augmenter("crop+flip") if self.augment else None
        draw, size, draws = client.draw("classifier-gradients"), self.b_real, self.draws
        client.scratch.z = class_gradients(client.model, client.data, client.classes, size, draws, draw, augment)

    def upload(self, client: Client) -> Message:
        message = super().upload(client)
        if self.matches:
            message["z"], message["classes"] = client.scratch.z, client.classes
        return message

    def match_gradients(self, server: Server, uploads: Sequence[Upload], at: Params) -> None:
        """H^c moves until its gradient at the head of `at` points as z^c, the mean of what was sent (eqs. 17-20)."""
        classes, goals = class_means([(u.message["classes"], u.message["z"]) for u in uploads])
        if len(classes):
            server.live.set(at)
            v, state, flat = linear(server.model.head), server.state, self.match == "flat"
            moved = match_features(state.features[classes], goals, classes, v, self.match_steps, self.lr_feat, flat)
            state.features = state.features.index_copy(0, classes, moved)
            state.matched = state.matched.index_fill(0, classes, 1)

    def known(self, server: Server) -> dict[str, Tensor]:
        """H of the matched classes, and which those are; nothing before the first matching."""
        classes = server.state.matched.nonzero().flatten() if self.matches else torch.empty(0)
        return {"features": server.state.features[classes], "feature_classes": classes} if len(classes) else {}

    @staticmethod
    def fit_head(site: Site, known: Bundle | dict[str, Tensor], rule: Train, alike: bool = False, **fit: Any) -> None:
        """Train the live head on matched features, if there are any, by a rule of its own: the run's is for clients.

        Where all sites do so alike, they draw the same batches, and a process does it once. A site that does so by
        itself draws its own, and if it is asked again from the same start (evaluated, then trained), it remembers.
        """
        if "features" not in known:
            return
        given = known["features"], known["feature_classes"]
        rows = labelled(*given, site.resident.device)
        key = "pkcf" if alike else "batches"
        site.once(head, given, lambda: site.fit(cross_entropy, rows, train=head, rule=rule, key=key, **fit), alike)
