"""ACMU, MuPFL's adaptive cluster-based model update, for any method whose clients send whole models (eqs. 7-14).

Departure: the adaptive number of clusters may be one, where no number from `kappa_min` on has a silhouette above 0.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal

import torch
from annotated_types import Ge
from pydantic import model_validator
from torch import Tensor

from polyfed import rng
from polyfed.errors import UsageError
from polyfed.message import Message
from polyfed.methods.base import Method, Server, Upload
from polyfed.parts.bavd import as_rows
from polyfed.parts.cluster import cluster_update, cosines, embedding, group, similarity, spread
from polyfed.registry import contradiction, param


class ClusterUpdates(Method):
    """Models whose updates and maps are alike take the mean update of their cluster; then all are averaged."""

    acmu: bool = param(True, "adaptive cluster-based model update")
    alpha: float = param(0.5, "share of the updates in the similarity; the maps have the rest (eq. 8)", ge=0, le=1)
    kappa: Annotated[int, Ge(1)] | Literal["adaptive"] = param("adaptive", "number of clusters")
    kappa_min: int = param(2, "fewest clusters tried", ge=2)
    kappa_max: int = param(6, "most clusters tried", ge=2)
    metric: Literal["cosine", "weights"] = param("cosine", "cluster by eq. 8 or by the weights themselves")

    @model_validator(mode="after")
    def _agrees(self) -> "ClusterUpdates":
        if self.kappa_min > self.kappa_max:
            raise contradiction(f"method.kappa_min={self.kappa_min} is above method.kappa_max={self.kappa_max}")
        if self.metric == "weights" and self.kappa == "adaptive":
            raise contradiction("method.metric=weights needs a number of clusters, method.kappa (5 in the paper)")
        return self

    def start(self, server: Server) -> None:
        super().start(server)
        selected = max(1, round(server.task.participation * server.task.clients))
        if self.acmu and self.kappa != "adaptive" and self.kappa >= max(selected, 2):
            raise UsageError(f"method.kappa={self.kappa} needs more than the {selected} clients selected each round")

    def starts(self, server: Server, uploads: Sequence[Upload]) -> list[Tensor]:
        """w_i^start, weights only: the model each training began with."""
        return [server.shared.weights.cpu()] * len(uploads)

    def merge(self, server: Server, uploads: Sequence[Upload]) -> None:
        super().merge(server, self.cluster(server, uploads) if self.acmu else uploads)  # eq. 15 (5)

    def cluster(self, server: Server, uploads: Sequence[Upload]) -> list[Upload]:
        """Eqs. 7-14: every model takes its cluster's mean update instead of its own; buffers stay its own."""
        starts = self.starts(server, uploads)
        trained = [u.message["w"][: len(starts[0])].cpu() for u in uploads]
        maps = as_rows([u.message["map"] for u in uploads]) if "map" in uploads[0].message else None
        alike, alike_maps = cosines(trained, starts), None if maps is None else cosines(maps)  # eq. 7: dw = w - start
        gram = similarity(alike, alike_maps, self.alpha)  # eq. 8
        points = torch.stack(trained).numpy() if self.metric == "weights" else embedding(gram)
        seed = rng.number(server.task.seed, "acmu", server.round)
        found = group(gram, points, self.kappa, self.kappa_min, self.kappa_max, seed)  # eqs. 9-13
        if self.kappa != "adaptive" and found.kappa < self.kappa:
            server.say(f"{len(uploads)} uploads make {found.kappa} clusters, not method.kappa={self.kappa}")
        server.record("cosines", [spread(each) for each in (alike, alike_maps) if each is not None])
        server.record("silhouette", list(found.scores.items()))
        server.record("clusters", [[u.client, label] for u, label in zip(uploads, found.labels, strict=True)])
        moved = cluster_update(starts, trained, found)  # eq. 14
        return [_with(u, w) for u, w in zip(uploads, moved, strict=True)]


def _with(upload: Upload, weights: Tensor) -> Upload:
    """An upload with other weights in its model."""
    buffers = upload.message["w"][len(weights) :].cpu()
    w = torch.cat([weights, buffers]) if len(buffers) else weights
    return replace(upload, message=Message(**{**upload.message.tensors(), "w": w}))
