"""nominal: the noise of a paper's figures, which guarantees nothing."""

import math
from typing import Any

import torch

from polyfed import params as slices
from polyfed import rng
from polyfed.measure.guarantee import NOMINAL
from polyfed.message import Message
from polyfed.methods.base import Client
from polyfed.methods.sites import PrivateFits
from polyfed.parts.steps import Within
from polyfed.registry import param
from polyfed.threats.privacy.base import Privacy, Setting, privacy
from polyfed.threats.privacy.noise import clipped


@privacy("nominal", paper="Liu et al. (DistFL), figures 3 and 4")
class Nominal(Privacy):
    """Noise on clipped updates as a paper has it: a nominal noise level, no privacy guarantee."""

    epsilon: float = param(1.0, "the nominal noise level of the figures; no privacy budget", gt=0)
    delta: float = param(1e-5, "the delta of the formula", gt=0, lt=1)
    clip: float = param(0.1, "the longest update S", gt=0)
    scale_by_n: bool = param(True, "whether the noise is divided by the client's samples")
    per_step: bool = param(False, "whether the update is kept below S after every step, not only at the end")

    def deviation(self, n: int) -> float:
        """s = S sqrt(2 ln(1.25 / delta)) / (epsilon n_k)."""
        scale = self.epsilon * (n if self.scale_by_n else 1)
        return self.clip * math.sqrt(2 * math.log(1.25 / self.delta)) / max(scale, 1e-12)

    def fits(self, setting: Setting, client: Client) -> PrivateFits | None:
        """Every step ends within S of what was sent, where `per_step` asks for it."""
        part = setting.wire.up["w"].part if "w" in setting.wire.up else None
        if not self.per_step or part is None:
            return None
        return PrivateFits(Within(client.shared, part & slices.weights, self.clip), None, None, poisson=False)

    def leave(self, setting: Setting, client: Client, up: Message, down: Message) -> None:
        """Clip the weights of the update and add noise to them; buffers stay as trained."""
        generator = rng.torch_generator(client.task.seed, "nominal-noise", client.round, client.id)
        for name in setting.updates():
            count = setting.shared_weights(name)
            sent = down[str(setting.wire.up[name].against)][:count]
            update, _ = clipped(up[name][:count] - sent, self.clip)
            noise = torch.randn(count, generator=generator).to(sent.device) * self.deviation(client.n)
            up[name] = torch.cat([sent + update + noise, up[name][count:]])

    def facts(self, setting: Setting) -> dict[str, Any]:
        """The nominal level, and that it is no guarantee."""
        return {"kind": self.name, "nominal": self.epsilon, "clip": self.clip, "outside": [NOMINAL]}
