"""pFedLA: Ma et al., Layer-wised Model Aggregation for Personalized Federated Learning, 2022 (algorithm 1).

Readings (docs/changed-from-papers.md): a layer is a module, whose weight, bias and statistics share one weight vector.
Only clients that have uploaded are weighed, since a model that was never trained has nothing to give.

The server keeps the last model and the hypernetwork of every client that took part; the size of a hypernetwork grows
with the number of clients times the number of layers.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from polyfed import rng
from polyfed.message import Message
from polyfed.methods.base import Method, Server, Upload, method, part_message
from polyfed.params import Params
from polyfed.parts.hypernet import Hypernetwork, layers_of, mixed, shares_of, slopes_of
from polyfed.registry import param


@method(
    "pfedla",
    written="pFedLA",
    paper="Ma et al. 2022",
    title="Layer-wised Model Aggregation for Personalized Federated Learning",
)
class PFedLA(Method):
    """Each client's model is mixed from everybody's, layer by layer, with weights that its own hypernetwork learns."""

    newcomer = "what a hypernetwork that has learnt nothing yet mixes from everybody's models"
    cost = "as FedAvg; the server keeps a model and a hypernetwork of every client, and mixes a model for each"
    lr: float = param(5e-3, "learning rate of the hypernetworks", gt=0)
    embedding: int = param(100, "width of a client's embedding", ge=1)
    hidden: int = param(100, "width of the hidden layers of a hypernetwork", ge=1)

    @property
    def has_global(self) -> bool:
        return False

    def send(self, server: Server, id: int) -> Message:
        return part_message("w", *self.personal_model(server, id).get(self.shared))

    def merge(self, server: Server, uploads: Sequence[Upload]) -> None:
        """Each hypernetwork follows its client's change; then the trained models take their places."""
        learnt = {u.client: self.learn(server, u) for u in uploads if self.senders(server)}
        for upload in uploads:
            server.state[f"model_{upload.client}"] = server.model_of(upload)
        for client, values in learnt.items():
            server.state[f"hypernetwork_{client}"] = values

    def learn(self, server: Server, upload: Upload) -> Tensor:
        """phi <- phi - lr times the gradient of <mixed model, -change>."""
        layers, models = layers_of(server.shared.layout), self.models(server)
        hyper = self.hypernetwork(server, upload.client)
        shares = self.shares(server, upload.client, hyper)
        change = server.model_of(upload).flat - mixed(layers, models, shares).flat
        hyper.descend(shares, slopes_of(layers, models, change), self.lr)
        return hyper.values()

    def personal_model(self, server: Server, id: int) -> Params:
        """Each layer is a weighted sum of that of every client; the initial model before any client has sent one."""
        if not self.senders(server):
            return server.shared
        shares = self.shares(server, id, self.hypernetwork(server, id))
        made = mixed(layers_of(server.shared.layout), self.models(server), shares)
        made.integers.copy_(server.state.get(f"model_{id}", server.shared).integers)
        return made

    def shares(self, server: Server, id: int, hyper: Hypernetwork) -> Tensor:
        """alpha [layer, sender] of a client: its own hypernetwork's answer, normalised."""
        senders, everybody = self.senders(server), list(server.clients)
        columns = torch.tensor([everybody.index(k) for k in senders])
        return shares_of(hyper()[:, columns], senders.index(id) if id in senders else None)

    def hypernetwork(self, server: Server, id: int) -> Hypernetwork:
        """A client's hypernetwork: as it was left, or at its seeded start."""
        sizes = len(layers_of(server.shared.layout)), len(server.clients), self.embedding, self.hidden
        with rng.seeded(server.task.seed, "hypernetwork", id):
            return Hypernetwork(*sizes, values=server.state.get(f"hypernetwork_{id}"))

    @staticmethod
    def senders(server: Server) -> list[int]:
        """The clients whose model the server has, by id."""
        return [k for k in server.clients if f"model_{k}" in server.state]

    def models(self, server: Server) -> list[Params]:
        """The models of the senders, in the same order."""
        return [server.state[f"model_{k}"] for k in self.senders(server)]
