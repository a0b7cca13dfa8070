"""Credit: an autoencoder of clean rounds says how strange an upload is."""

from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from polyfed import rng
from polyfed.params import Layout, Slice, head
from polyfed.parts.chunks import in_chunks, ranges
from polyfed.registry import param
from polyfed.threats import robust
from polyfed.threats.defences.base import Case, Verdict, Weighted, defence, without_say
from polyfed.threats.robust import Array


@defence("credit", paper="Li et al. 2019")
class Credit(Weighted):
    """Uploads that an autoencoder of clean rounds cannot reconstruct weigh less, or nothing. Approximate."""

    approximate = True
    rule: Literal["hard", "credit"] = param("hard", "hard: nothing above the mean error; credit: p_k over the error")
    clean: int = param(3, "the first rounds, whose uploads are assumed to be honest", ge=1)
    width: int = param(512, "numbers in the surrogate of an upload", ge=1)
    hidden: int = param(100, "width of the autoencoder", ge=1)
    epochs: int = param(100, "passes in which it is fitted", ge=1)

    def judge(self, case: Case) -> Verdict:
        surrogates = self.surrogates(case)
        if case.round <= self.clean:
            self.learn_from(case, surrogates)
            return Verdict(robust.weighted(case.rows, case.p), case.p, idle=True)
        if "defence.autoencoder" not in case.state:
            self.fit(case)
        errors = self.errors(case, surrogates)
        if self.rule == "hard":
            weights = robust.share_among(np.flatnonzero(errors <= errors.mean()).tolist(), case.p)
        else:
            weights = case.p / np.maximum(errors, np.finfo(np.float64).tiny)
            weights = weights / weights.sum()
        weights = case.unmixed(weights)
        return Verdict(robust.weighted(case.rows, weights), weights, without_say(weights))

    def surrogates(self, case: Case) -> Tensor:
        """The last convolution of every upload, or its last linear layer below the head, projected if it is long."""
        assert case.layout is not None
        assert case.part is not None
        here = surrogate_range(case.layout, case.part)
        rows = torch.stack([row[here] for row in case.rows])
        if rows.shape[1] > self.width:
            rows = projected(rows, self.width, self.seed_of(case))
        return rows if case.mix is None else (torch.from_numpy(case.mix) @ rows.double()).float()

    @staticmethod
    def seed_of(case: Case) -> int:
        """The seed of projection and autoencoder, drawn in the first round and kept, so that all rounds have it."""
        if "defence.seed" not in case.state:
            case.state["defence.seed"] = int(case.draw("credit").integers(2**62))
        return int(case.state["defence.seed"])

    def learn_from(self, case: Case, surrogates: Tensor) -> None:
        """Keep the surrogates of a clean round; a client that is averaged twice in it counts once."""
        if case.call == 0:
            kept = case.state.get("defence.clean")
            case.state["defence.clean"] = surrogates if kept is None else torch.cat([kept, surrogates])

    def fit(self, case: Case) -> None:
        """Fit the autoencoder to the standardised surrogates of the clean rounds."""
        rows = case.state.get("defence.clean")
        if rows is None:
            raise ValueError("defence=credit saw no upload in its clean rounds")
        mean, spread = rows.mean(0), rows.std(0, correction=0).clamp(min=1e-12)
        model = self.autoencoder(case, rows.shape[1])
        steps, inputs = torch.optim.Adam(model.parameters(), lr=1e-3), (rows - mean) / spread
        with torch.enable_grad():
            for _ in range(self.epochs):
                steps.zero_grad()
                nn.functional.mse_loss(model(inputs), inputs).backward()
                steps.step()
        case.state["defence.autoencoder"] = parameters_to_vector(model.parameters()).detach().clone()
        case.state["defence.mean"], case.state["defence.spread"] = mean, spread
        del case.state["defence.clean"]

    def errors(self, case: Case, surrogates: Tensor) -> Array:
        """A_k: the squared error with which each surrogate is reconstructed."""
        model = self.autoencoder(case, surrogates.shape[1])
        vector_to_parameters(case.state["defence.autoencoder"], model.parameters())
        inputs = (surrogates - case.state["defence.mean"]) / case.state["defence.spread"]
        with torch.no_grad():
            return (model(inputs) - inputs).double().square().sum(1).numpy()

    def autoencoder(self, case: Case, width: int) -> nn.Module:
        """d - 100 - d with a ReLU, at its keyed start."""
        with rng.seeded(self.seed_of(case), "autoencoder"):
            return nn.Sequential(nn.Linear(width, self.hidden), nn.ReLU(), nn.Linear(self.hidden, width))


def projected(rows: Tensor, width: int, seed: int) -> Tensor:
    """Rows under a random Gaussian projection to this width, which is made again block by block."""

    def part(here: slice) -> Tensor:
        draw = rng.torch_generator(seed, "projection", here.start)
        return rows[:, here] @ torch.randn(here.stop - here.start, width, generator=draw)

    return torch.stack(in_chunks(part, ranges(rows.shape[1], 1 << 12, rows.shape[1]))).sum(0) / width**0.5


def surrogate_range(layout: Layout, part: Slice) -> slice:
    """Where in a slice the last convolution's weights lie; without one, the last matrix below the head, or any."""
    found: dict[str, slice] = {}
    at = 0
    for entry in layout.floats:
        if not part.test(entry):
            continue
        size = entry.stop - entry.start
        if entry.kind == "weight" and len(entry.shape) >= 2:
            kind = "head" if head.test(entry) else "linear" if len(entry.shape) == 2 else "convolution"
            found[kind] = slice(at, at + size)
        at += size
    return next((found[kind] for kind in ("convolution", "linear", "head") if kind in found), slice(0, at))
