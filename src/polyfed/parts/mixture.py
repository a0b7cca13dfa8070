"""Several networks that answer together: with fixed shares, or with the shares that a gate gives to each sample."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from polyfed.errors import UsageError
from polyfed.models.base import Ensemble, Net

How = Literal["logits", "probabilities"]


def mix(members: Sequence[tuple[nn.Module, float]], how: How = "logits") -> "Mixture":
    """A predictor that adds up what networks answer, each with its weight.

    Logits are added up as they are; of probabilities the weighted mean is taken, and given as its logarithm.
    """
    return Mixture([net for net, _ in members], [float(weight) for _, weight in members], how)


def gated(networks: Sequence[nn.Module], gate: nn.Module, how: How = "probabilities") -> nn.Module:
    """A predictor in which a gate, from inputs to a number per network, shares out every sample by softmax.

    The gate may be any module, so that this predictor is exported as onnx or torch-export, not as safetensors.
    """
    return Gated(networks, gate, how)


class Mixture(Ensemble):
    """Networks under fixed weights; it can be built again from them."""

    def __init__(self, networks: Sequence[nn.Module], weights: Sequence[float], how: How):
        super().__init__()
        total = sum(weights)
        if not networks or how not in get_args(How):
            raise UsageError(f"a mixture is of at least one network, by logits or probabilities, not by {how!r}")
        if how == "probabilities" and (min(weights) < 0 or total <= 0):
            raise UsageError("probabilities are mixed with weights of at least 0 that are not all 0")
        self.networks, self.how = nn.ModuleList(networks), how
        shares = [weight / total for weight in weights] if how == "probabilities" else list(weights)
        self.register_buffer("weights", torch.tensor(shares, device=next(networks[0].parameters()).device))

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return _mixed([net(x) for net in self.networks], self.get_buffer("weights")[None], self.how)

    def plan(self) -> dict[str, Any]:
        """What `planned` needs to build it again."""
        return {"count": len(self.networks), "how": self.how}

    @classmethod
    def planned(cls, plan: dict[str, Any], make: Callable[[], Net]) -> "Mixture":
        """Build it again from a plan; its weights are loaded afterwards."""
        return cls([make() for _ in range(plan["count"])], [1.0] * plan["count"], plan["how"])


class Gated(nn.Module):
    """Networks under the shares of a gate."""

    def __init__(self, networks: Sequence[nn.Module], gate: nn.Module, how: How):
        super().__init__()
        self.networks, self.gate, self.how = nn.ModuleList(networks), gate, how

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return _mixed([net(x) for net in self.networks], torch.softmax(self.gate(x), 1), self.how)


def _mixed(answers: list[Tensor], shares: Tensor, how: str) -> Tensor:
    """Logits from [network][sample, class] and shares [sample or 1, network]."""
    z = torch.stack(answers, 1)
    if how == "logits":
        return (shares[:, :, None] * z).sum(1)
    return torch.logsumexp(torch.log_softmax(z, 2) + shares.log()[:, :, None], 1)


class WithPrivate(Net):
    """A network with private parts beside it: `forward` is the shared network, `personal` what its client answers."""

    def personal(self, x: Tensor) -> Tensor:
        """Logits of the shared network and the private parts together."""
        raise TypeError(f"{type(self).__name__} must say how a client answers")


class Personal(Ensemble):
    """A network with private parts, as its client answers."""

    def __init__(self, net: WithPrivate):
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.net.personal(x)

    def plan(self) -> dict[str, Any]:
        """Nothing: the method builds the private parts into the network."""
        return {}

    @classmethod
    def planned(cls, plan: dict[str, Any], make: Callable[[], Net]) -> "Personal":
        """Build it again; its weights are loaded afterwards."""
        net = make()
        assert isinstance(net, WithPrivate)
        return cls(net)
