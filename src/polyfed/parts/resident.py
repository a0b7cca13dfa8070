"""The one trained model of a process, its flat gradient, and the frozen copies a method asks for."""

import copy
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from polyfed.data.samples import VOID, Samples
from polyfed.models.base import Net, spread
from polyfed.params import Entry, Layout, Params, Slice, bind

Cut = Literal["last", "head"]


class Batch:
    """x, y, the positions in what is fitted on and, computed once when asked for, features and logits.

    Labels and logits are rows. Of a mask every pixel with a label is one, in the order of the pixels, and features are
    the rows of the network's map, which is coarser; a mask's length is that of its images.
    """

    def __init__(self, model: Net, x: Tensor, y: Tensor, index: Tensor, on: Samples):
        self.model, self.x, self.index, self.on = model, x, index, on
        self._samples, self._size = len(y), y.shape[1:]
        self._labelled = y != VOID if self.masks else None
        self.y = y if self._labelled is None else y[self._labelled]
        self.forget()

    def __len__(self) -> int:
        return self._samples

    @property
    def masks(self) -> bool:
        """Whether every pixel has a label of its own."""
        return len(self._size) > 0

    def forget(self) -> None:
        """Drop what was computed: the model has other weights now."""
        self._maps: Tensor | None = None
        self._logits: Tensor | None = None

    def put_to(self, model: Net) -> "Batch":
        """The same batch for another model."""
        other = copy.copy(self)
        other.model = model
        other.forget()
        return other

    @property
    def features(self) -> Tensor:
        """What the head sees, as rows; x itself where it already holds features."""
        maps = self._features()
        return maps.flatten(0, -2) if self.masks else maps

    @property
    def logits(self) -> Tensor:
        """What the model says, a row for every label."""
        if self._logits is None:
            said = self.model.head(self._features())
            if self._labelled is not None:
                said = spread(said.permute(0, 3, 1, 2), self._size).permute(0, 2, 3, 1)[self._labelled]
            self._logits = said
        return self._logits

    def _features(self) -> Tensor:
        if self._maps is None:
            self._maps = features_from(self.model, self.x, self.on.cut)
        return self._maps


def features_from(model: Net, x: Tensor, cut: str | None) -> Tensor:
    """Run what is left of the body: x are inputs (None), the trunk's output ("last") or features ("head")."""
    if cut == "head":
        return x
    return model.last(x) if cut == "last" else model.features(x)


class Frozen:
    """A further copy of the model: eval mode, no gradient; answers once per sample where inputs do not change."""

    def __init__(self, model: Net, params: Params, augmented: bool):
        self.model, self.params, self.augmented = model, params, augmented
        self._tables: dict[tuple[int, str], tuple[Samples, Tensor]] = {}

    def logits(self, batch: Batch) -> Tensor:
        """Its answers for a batch."""
        return self._answer("logits", batch)

    def features(self, batch: Batch) -> Tensor:
        """Its features for a batch."""
        return self._answer("features", batch)

    def _answer(self, what: str, batch: Batch) -> Tensor:
        on = batch.on
        if batch.masks:  # answers for every pixel of every sample are too many to keep
            with torch.no_grad():
                answer: Tensor = getattr(batch.put_to(self.model), what)
            return answer
        if (self.augmented or on.anew is not None) and on.cut is None:
            with torch.no_grad():
                return self._run(what, batch.x, on.cut)
        return self.table(what, on)[batch.index]

    def table(self, what: str, on: Samples) -> Tensor:
        """Its logits or features for all samples, computed once."""
        key = (id(on), what)
        if key not in self._tables:
            self._tables[key] = (on, in_batches(lambda x: self._run(what, x, on.cut), on, 128))
        return self._tables[key][1]

    def _run(self, what: str, x: Tensor, cut: str | None) -> Tensor:
        rows = features_from(self.model, x, cut)
        return rows if what == "features" else self.model.head(rows)


def in_batches(run: Callable[[Tensor], Tensor], samples: Samples, size: int) -> Tensor:
    """A function of inputs over all samples, in order, without gradient."""
    outputs = []
    with torch.no_grad():
        for start in range(0, len(samples), size):
            x, _ = samples.take(torch.arange(start, min(start + size, len(samples)), device=samples.rows.device))
            outputs.append(run(x))
    return torch.cat(outputs)


class Modes:
    """Training and eval mode of a module and all in it; what `train` and `eval` do, at a tenth of the cost."""

    def __init__(self, module: nn.Module):
        self.module, self.all = module, list(module.modules())
        self.own = any(type(m).train is not nn.Module.train for m in self.all)  # a user's module may do it its own way

    def set(self, training: bool) -> None:
        """Training mode, or eval mode."""
        if self.own:
            self.module.train(training)
            return
        for module in self.all:
            module.__dict__["training"] = training


class _Piece:
    """Trunk, last, head or what a method built beside them: its parameters and its BN modules, by identity."""

    def __init__(self, module: nn.Module):
        self.weights, self.modes = _weights(module), Modes(module)
        self.norms = [(m, _weights(m)) for m in module.modules() if isinstance(m, _BatchNorm)]

    def set_mode(self, trained: set[int], bn: str) -> None:
        """Training mode where something is trained; BN also where it has nothing to train, if `bn` says so."""
        training = bool(trained) if not self.weights else not trained.isdisjoint(self.weights)
        self.modes.set(training)
        for norm, weights in self.norms:
            frozen = norm.affine and trained.isdisjoint(weights)
            norm.train(training and bn == "train" and not frozen)


def _weights(module: nn.Module) -> set[int]:
    return {id(p) for p in module.parameters()}


class Resident:
    """The model that is trained in this process, as a live flat vector with a flat gradient."""

    def __init__(self, make: Callable[[], Net], device: torch.device | None = None):
        self.device = device or torch.device("cpu")
        self.make = make
        self.model = model = make().to(self.device)
        self.layout = Layout(model)
        self.params = bind(model, self.layout, self.device)
        self.initial = self.params.copy()
        self.grad = torch.zeros(self.layout.n_weights, device=self.device)
        named = dict(model.named_parameters())
        weights = [e for e in self.layout.floats if e.kind == "weight"]
        self._weights = [(e, named[e.name], e.view(self.grad)) for e in weights]
        self._spare: list[Net] = []
        self._lent: list[Net] = []
        # asked once: a network keeps its modules, and looking through them takes longer than a small step
        self.modes = Modes(model)
        parts = {"trunk": model.trunk, "last": model.last, "head": model.head}
        beside = [child for name, child in model.named_children() if name not in parts]
        self._pieces = [_Piece(piece) for piece in (*beside, *parts.values())]  # the three have the last word
        self._resets = [reset for m in model.modules() if callable(reset := getattr(m, "reset", None))]
        self.fitted: dict[str, Any] = {}  # what fits left that are asked for again, by the site that did them
        self.listeners = [m for m in model.modules() if hasattr(m, "after_step")]

    def reset(self, start: Params | None = None) -> None:
        """A clean start for the next work: initial values or these, no mask, no frozen copies, nothing from before."""
        self.params.set(self.initial if start is None else start)
        self._spare.extend(self._lent)
        self._lent.clear()
        for reset in self._resets:
            reset()
        self.modes.set(training=False)

    def choose(self, train: Slice, bn: str) -> list[tuple[Entry, nn.Parameter, Tensor]]:
        """Make one slice trainable; what is frozen is in eval mode. Gives its parameters and their gradient views."""
        chosen = [one for one in self._weights if train.test(one[0])]
        trained = {id(p) for _, p, _ in chosen}
        for _, parameter, _ in self._weights:
            parameter.requires_grad_(id(parameter) in trained)
        self.model.training = bool(trained)
        for piece in self._pieces:
            piece.set_mode(trained, bn)
        return chosen

    @property
    def n_parameters(self) -> int:
        """How many tensors could be trained."""
        return len(self._weights)

    def norms_in_training(self) -> list[nn.Module]:
        """The BN modules that now use the statistics of the batch."""
        return [norm for piece in self._pieces for norm, _ in piece.norms if norm.training]

    def fresh(self) -> Params:
        """New initial values, drawn from torch's global generator."""
        return bind(self.make(), self.layout, self.device)

    def frozen(self, params: Params, augmented: bool) -> Frozen:
        """A frozen copy with these values, until the work ends."""
        model = self._spare.pop() if self._spare else copy.deepcopy(self.model)
        self._lent.append(model)
        live = bind(model, self.layout, self.device)
        live.set(params)
        model.eval().requires_grad_(False)
        return Frozen(model, live, augmented)
