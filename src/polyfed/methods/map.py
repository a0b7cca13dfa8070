"""MAP: Li et al., MAP: Model Aggregation and Personalization in Federated Learning with Incomplete Classes, 2023.

Departures from the text (docs/changed-from-papers.md): stages are counted in steps; the momentum is capped at 0.9 and
uses the count before this round; the first time a client is selected lambda is 0.
"""

from polyfed.message import Message
from polyfed.methods.base import Client, method
from polyfed.methods.fedphp import Inherits
from polyfed.methods.fedrs import FedRS
from polyfed.registry import param


@method(
    "map",
    written="MAP",
    paper="Li et al. 2023",
    title="MAP: Model Aggregation and Personalization in Federated Learning with Incomplete Classes",
)
class MAP(Inherits, FedRS):
    """Restricted softmax for the model that is aggregated, then an inherited private model for the one that stays."""

    split: float = param(
        0.5, "share of the steps in the first stage; fedphp has the second stage only, fedrs the first", gt=0, lt=1
    )
    reset_between_stages: bool = param(False, "whether the second stage starts with fresh momentum and batches")

    def private_steps(self, n: int) -> int:
        return max(super().private_steps(n), 2)  # two stages

    def train(self, client: Client) -> Message:
        """Algorithm 1, client procedure."""
        first, second = client.halves(self.split)
        self.local(client, steps=first)  # lines 2-6, eq. 8
        upload = self.upload(client)  # line 7; a copy
        go_on = not self.reset_between_stages
        client.fit(self.teach(client), steps=second, go_on=go_on)  # lines 8-12, eq. 13
        self.inherit(client)  # line 14, eq. 10
        return upload
