"""FedLoRA: low-rank adapters, averaged or personal.

Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, 2022; its equation is in models/lora.py.

Sharing adapters over a frozen network is FedIT's way (Zhang et al., Towards Building the Federated GPT, 2024); keeping
them personal over what is shared is FedPer's idea on another slice. A frozen base is what every site starts from (its
seed, or `init`), so it is never sent. The head is trained and averaged in every case: without it a random head stays.
"""

from typing import Literal

from polyfed.errors import UsageError
from polyfed.methods.base import Method, Server, method
from polyfed.models.lora import has_adapters
from polyfed.params import Slice, everything, head, lora, nothing
from polyfed.registry import param


@method(
    "fedlora",
    written="FedLoRA",
    paper="Hu et al. 2022; Zhang et al. 2024",
    title="LoRA: Low-Rank Adaptation of Large Language Models",
)
class FedLoRA(Method):
    """Adapters of linear layers (model.lora) are personal or averaged; the layers beneath are trained or frozen."""

    adapters: Literal["personal", "shared"] = param("personal", "whether adapters stay on the client or are averaged")
    body: Literal["trained", "frozen"] = param("trained", "whether the rest of the body is trained and averaged too")
    newcomer = "the shared model, with adapters it trains at the end"

    @property
    def personal(self) -> Slice:
        """The adapters, where they are personal."""
        return lora if self.adapters == "personal" else nothing

    @property
    def trains(self) -> Slice:
        """Everything, or what is not frozen."""
        return everything if self.body == "trained" else lora | head

    @property
    def shared(self) -> Slice:
        """What is trained and not kept: a frozen base is known to everybody."""
        return super().shared & self.trains

    def start(self, server: Server) -> None:
        """Refuse a model without adapters: nothing would be personal."""
        if not has_adapters(server.model):
            raise UsageError("method 'fedlora' trains low-rank adapters, and the model has none: set model.lora.rank=4")
        super().start(server)
