"""Hypernetworks that weigh clients layer by layer, and models mixed by such weights (pFedLA)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from polyfed.params import Entry, Layout, Params
from polyfed.parts.average import average

Layers = list[list[Entry]]


def layers_of(layout: Layout) -> Layers:
    """The float tensors of a model, those of one module together: its weight, its bias, its statistics."""
    layers: dict[str, list[Entry]] = {}
    for entry in layout.floats:
        layers.setdefault(entry.name.rpartition(".")[0], []).append(entry)
    return list(layers.values())


class Hypernetwork(nn.Module):
    """An embedding of a client, and a perceptron of three layers that makes a weight of it for every layer and client.

    It is built with random values of torch's global generator, or with values that it had before.
    """

    def __init__(self, layers: int, clients: int, embedding: int, hidden: int, values: Tensor | None = None):
        super().__init__()
        self.shape = layers, clients
        self.embedding = nn.Parameter(torch.randn(embedding))
        self.perceptron = nn.Sequential(
            nn.Linear(embedding, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, layers * clients),
            nn.ReLU(),
        )
        if values is not None:
            vector_to_parameters(values.clone(), self.parameters())

    def forward(self) -> Tensor:
        """The weights, at least 0 and not normalised: [layer, client]."""
        return self.perceptron(self.embedding).view(self.shape)

    def values(self) -> Tensor:
        """All its parameters as one vector."""
        return parameters_to_vector(self.parameters()).detach().clone()

    def descend(self, shares: Tensor, slopes: Tensor, lr: float) -> None:
        """A step of gradient descent; `slopes` are the derivatives in the shares that were made of its weights."""
        own = list(self.parameters())
        found = torch.autograd.grad(shares, own, grad_outputs=slopes)
        with torch.no_grad():
            for values, slope in zip(own, found, strict=True):
                values.sub_(slope, alpha=lr)


def shares_of(weights: Tensor, own: int | None) -> Tensor:
    """Weights [layer, model] so that each layer's add up to 1; a layer without any takes all from its own model.

    Where there is no own model, such a layer takes as much from each.
    """
    total, models = weights.sum(1, keepdim=True), weights.shape[1]
    instead = torch.full((models,), 1 / models) if own is None else torch.eye(models)[own]
    return torch.where(total > 0, weights / total.clamp(min=1e-30), instead)


def mixed(layers: Layers, models: Sequence[Params], shares: Tensor) -> Params:
    """Every layer as the weighted sum of that of all models; integer buffers are the first one's."""
    made = models[0].copy()
    for layer, each in zip(layers, shares.detach(), strict=True):
        for entry in layer:
            here = slice(entry.start, entry.stop)
            made.flat[here] = average([model.flat[here] for model in models], each)
    return made


def slopes_of(layers: Layers, models: Sequence[Params], change: Tensor) -> Tensor:
    """The derivative of <mixed model, -change> in every share [layer, model]; only weights count, buffers do not."""
    found = torch.zeros(len(layers), len(models))
    for at, layer in enumerate(layers):
        for entry in (e for e in layer if e.kind == "weight"):
            here = slice(entry.start, entry.stop)
            for k, model in enumerate(models):
                found[at, k] -= torch.dot(model.flat[here], change[here]).cpu()
    return found
