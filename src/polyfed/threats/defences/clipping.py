"""Rules that shorten updates: to a given length, around a centre, or to the length of the server's own (FLTrust)."""

from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Gt
from torch import Tensor

from polyfed.registry import param
from polyfed.threats import robust
from polyfed.threats.defences.base import (
    Case,
    Defence,
    Verdict,
    Weighted,
    defence,
    mean_start,
    mean_update,
    without_say,
)

Tau = Annotated[float, Gt(0)] | Literal["median"]


class Clipping(Weighted):
    """A rule that shortens updates; their length does not reveal forged buffers, so these take their median."""

    tau: Tau = param("median", "the length that updates keep; median: that of the lengths of the round's updates")

    def moved(self, case: Case, update: Tensor) -> Tensor:
        """The model sent, moved by an update of its weights; buffers are the median."""
        return torch.cat([mean_start(case).add_(update), case.median_buffers()])


@defence("norm-clip", paper="Sun et al. 2019")
class NormClip(Clipping):
    """The mean of updates, each of which is shortened to tau; it bounds how far each can pull, but excludes nobody."""

    def judge(self, case: Case) -> Verdict:
        weights = case.unmixed(robust.norm_clip(case.update_gram(), case.p, self.tau))
        return Verdict(self.moved(case, mean_update(case, weights)), weights)


@defence("centred-clipping", paper="Karimireddy et al. 2021")
class CentredClipping(Clipping):
    """Updates are shortened to tau around a centre, which starts where the last round's ended."""

    steps: int = param(3, "how often the centre moves in a round", ge=1)

    def judge(self, case: Case) -> Verdict:
        key = f"defence.centre{case.call}"
        before = case.state.get(key)
        if before is None or len(before) != case.n_weights:
            before = torch.zeros(case.n_weights)
        found = robust.centred_clipping(case.update_gram(before), case.p, self.tau, self.steps)
        coefficients = np.concatenate([found[:1], case.unmixed(found[1:])])
        case.state[key] = centre = mean_update(case, coefficients, before)
        return Verdict(self.moved(case, centre), coefficients[1:])


@defence("fltrust", paper="Cao et al. 2021")
class FLTrust(Defence):
    """Updates weigh by their cosine with an update that the server itself trains on `split.public` samples."""

    def judge(self, case: Case) -> Verdict:
        assert case.own_update is not None
        own = case.own_update()
        gram = case.update_gram(own)
        lengths = np.sqrt(gram.diagonal())
        trusted = robust.trust(gram[0, 1:], lengths[1:], float(lengths[0]))
        if not trusted.any():
            case.say("defence=fltrust trusts no upload: the model stays as it was")
            return Verdict(robust.weighted(case.sent, case.p), trusted, without_say(trusted))
        weights = case.unmixed(trusted / trusted.sum())
        scaled = trusted * np.divide(lengths[0], lengths[1:], out=np.zeros_like(trusted), where=lengths[1:] > 0)
        update = mean_update(case, case.unmixed(scaled / trusted.sum()))
        buffers = robust.weighted(case.buffers, weights)
        return Verdict(torch.cat([mean_start(case).add_(update), buffers]), weights, without_say(weights))
