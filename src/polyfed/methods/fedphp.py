"""FedPHP: Li et al., Federated Personalization with Inherited Private Models, 2021; MAP's eqs. 10-13."""

from typing import Literal

from torch import Tensor, nn

from polyfed.message import Message
from polyfed.methods.base import Client, Method, method
from polyfed.methods.fedrs import FedRS
from polyfed.parts.distil import kl, mmd, soft_cross_entropy
from polyfed.parts.fit import Loss
from polyfed.parts.losses import cross_entropy
from polyfed.parts.resident import Batch, Frozen
from polyfed.registry import param


class Inherits(Method):
    """The inherited private model (HPM): a moving average of the client's personal models that teaches the next one."""

    newcomer = "the global model: it has inherited nothing yet"
    cost = "as FedAvg, and one pass of the data through the inherited model"
    keeps = {"hpm": "the inherited private model", "times": "how many of its rounds were accepted"}
    mu: float = param(0.9, "momentum of the inherited model at the end of training", ge=0, le=1)
    mu_cap: float = param(0.9, "largest momentum, so that it never freezes", ge=0, le=1)
    kt: Literal["kd", "mmd", "none"] = param("kd", "how knowledge is transferred: logits, features, or not")
    kd: Literal["paper", "official"] = param("paper", "distillation as printed or as released")
    kd_temp: float = param(4.0, "temperature of distillation", gt=0)
    lam: float = param(0.01, "share of the transfer in the loss", ge=0, le=1)

    @property
    def unbounded(self) -> str:  # type: ignore[override]
        """The maximum mean discrepancy compares samples with each other."""
        return "its loss compares samples with each other (method.kt=mmd)" if self.kt == "mmd" else ""

    def mu_k(self, client: Client) -> float:
        """mu_k = min(max(mu z / (Q T), 0), cap), z the number of earlier selections."""
        return min(max(self.mu * client.memory.get("times", 0) / client.task.expected_rounds, 0.0), self.mu_cap)

    def teach(self, client: Client) -> Loss:
        """Eq. 13: (1 - lambda) CE + lambda L_kt against the inherited model; without one lambda is 0."""
        inherited = client.memory.get("hpm")
        if inherited is None or self.kt == "none":
            return cross_entropy
        teacher = client.frozen(inherited)
        return lambda batch: (1 - self.lam) * cross_entropy(batch) + self.lam * self.transfer(teacher, batch)

    def transfer(self, teacher: Frozen, batch: Batch) -> Tensor:
        """L_kt: eq. 11 (distillation) or eq. 12 (maximum mean discrepancy of features)."""
        if self.kt == "mmd":
            return mmd(batch.features, teacher.features(batch))
        form = kl if self.kd == "paper" else soft_cross_entropy
        return form(teacher.logits(batch), batch.logits, self.kd_temp)

    def inherit(self, client: Client) -> None:
        """Eq. 10: psi_p <- (1 - mu_k) psi + mu_k psi_p over the whole model; counts when the upload is accepted."""
        inherited = client.memory.get("hpm")
        now = client.live.copy()
        client.memory.hpm = now if inherited is None else now.mix(inherited, self.mu_k(client))
        client.memory.times = client.memory.get("times", 0) + 1

    def predictor(self, client: Client) -> nn.Module:
        """The inherited model; the global one for a client that was never selected."""
        inherited = client.memory.get("hpm")
        if inherited is not None:
            client.load(inherited)
        return client.model


@method(
    "fedphp",
    written="FedPHP",
    paper="Li et al. 2021",
    title="FedPHP: Federated Personalization with Inherited Private Models",
)
class FedPHP(Inherits, FedRS):
    """One stage: every step learns from data and from the inherited model; the trained model is sent."""

    presumes = ""  # its loss is not restricted

    def train(self, client: Client) -> Message:
        client.fit(self.teach(client))
        self.inherit(client)
        return self.upload(client)
