"""What a fit trains: a slice of the resident model, or tensors of the method's own; as tensors and as one vector."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from polyfed.errors import UsageError
from polyfed.params import Slice, nothing
from polyfed.parts.resident import Resident


@dataclass(frozen=True, eq=False)
class Trained:
    """The trained parameters by name, and the flat gradient with a view for each of them."""

    names: list[str]
    parameters: list[Tensor]
    grad: Tensor
    views: list[Tensor]
    memory: list[Tensor]  # where the values of the flat vector lie, in its order
    own: bool  # whether they are no part of the model
    partly: bool = False  # whether the flat vector also holds what is not trained

    @property
    def weights(self) -> Tensor:
        """The values as one vector of its own."""
        return torch.cat([values.flatten() for values in self.memory])

    def place(self, flat: Tensor) -> None:
        """Write such a vector back."""
        sizes = [values.numel() for values in self.memory]
        if flat.shape != (sum(sizes),):
            raise ValueError(f"a fit of {sum(sizes)} numbers cannot take values of shape {list(flat.shape)}")
        for values, part in zip(self.memory, flat.split(sizes), strict=True):
            values.copy_(part.view_as(values))

    def gather(self, found: Sequence[Tensor]) -> None:
        """Write a gradient per parameter into the flat one."""
        if self.partly:
            self.grad.zero_()  # an earlier correction may have touched what is not trained
        torch._foreach_copy_(self.views, list(found))

    def release(self) -> None:
        """Tensors of the method's own are plain numbers again when the fit is over."""
        for parameter in self.parameters if self.own else ():
            parameter.requires_grad_(False)


def of_model(resident: Resident, part: Slice, bn: str) -> Trained:
    """A slice of the model; the vector is that of all weights."""
    chosen = resident.choose(part, bn)
    names, parameters, views = [e.name for e, _, _ in chosen], [p for _, p, _ in chosen], [v for _, _, v in chosen]
    partly = len(chosen) < resident.n_parameters
    return Trained(names, list(parameters), resident.grad, views, [resident.params.weights], False, partly)


def of_tensors(resident: Resident, tensors: Sequence[Tensor]) -> Trained:
    """Tensors that are no part of the model, which is frozen meanwhile; the vector is theirs, one after another."""
    for tensor in tensors:
        if not (isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.is_leaf):
            raise UsageError("'train' must be a slice or a list of floating-point tensors that are leaves of autograd")
    resident.choose(nothing, "eval")
    own = [tensor.requires_grad_(True) for tensor in tensors]
    grad = torch.zeros(sum(t.numel() for t in own), device=resident.device)
    views = [part.view(t.shape) for t, part in zip(own, grad.split([t.numel() for t in own]), strict=True)]
    return Trained([f"tensor {i}" for i in range(len(own))], own, grad, views, [t.detach() for t in own], True)
