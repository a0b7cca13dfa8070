"""What several models have in common below a cut is asked about a common test set only once in an evaluation."""

import hashlib
from collections.abc import Hashable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from polyfed.data.samples import Samples
from polyfed.models.base import Ensemble, Net

MOST = 1 << 27  # bytes of outputs kept at once


@dataclass
class Table:
    """The outputs of one part of a model, by the first position of each batch.

    They lie in one piece of memory: each in a piece of its own, between those that a network needs for a moment, they
    would keep these from being used again, and a process could grow by a gigabyte.
    """

    samples: Samples  # kept, so that no other samples can take their identity
    outputs: dict[int, Tensor] = field(default_factory=dict)
    room: Tensor | None = None  # a row per sample, or as many as may be kept

    @property
    def size(self) -> int:
        """Bytes."""
        return 0 if self.room is None else self.room.numel() * self.room.element_size()

    def put(self, at: int, output: Tensor) -> None:
        """Keep a copy of an output, if there is room and the copy lies in memory as the output does."""
        assert self.room is not None
        here = self.room[at : at + len(output)]
        if here.shape == output.shape and here.stride() == output.stride():
            self.outputs[at] = here.copy_(output)


class SharedFeatures:
    """Outputs of bodies and trunks on a common test set, found again by a digest of all values below the cut.

    The same values on the same batches give the same bits, so a model that finds them answers as if it had computed
    them. They live for one evaluation; the tables used least recently make room for new ones.
    """

    def __init__(self, most: int = MOST):
        self.most = most
        self._belongs: Hashable = None
        self._tables: dict[tuple[str, int, int], Table] = {}  # the last one was used most recently
        self._held = 0
        self._at = 0  # the first position of the batch that is asked about

    def begin(self, what: Hashable) -> None:
        """Forget everything unless it belongs to this very evaluation."""
        if what != self._belongs:
            self._belongs, self._held = what, 0
            self._tables.clear()

    def logits(self, predictor: nn.Module, samples: Samples, batch: int) -> Iterator[Tensor]:
        """What a predictor says, batch by batch."""
        with ExitStack() as remembering:
            tables = [remembering.enter_context(part) for part in self._parts(predictor, samples, batch)]
            own = tables[0].outputs if type(predictor).forward is Net.forward and _plain(predictor) else {}
            for self._at, index in batches(samples, batch):
                if self._at in own:  # the inputs need not even be gathered
                    yield predictor.head(own[self._at])  # type: ignore[operator]
                else:
                    yield predictor(samples.take(index)[0])

    def _parts(self, predictor: nn.Module, samples: Samples, batch: int) -> Iterator[AbstractContextManager[Table]]:
        """The bodies of the networks in a predictor, and the trunks of its ensembles."""
        for module in list(predictor.modules()):
            if isinstance(module, Net) and _plain(module):
                yield self._remembering(module, "features", digest(module.trunk, module.last), samples, batch)
            elif isinstance(module, Ensemble) and isinstance(getattr(module, "trunk", None), nn.Module):
                trunk = module.get_submodule("trunk")
                yield self._remembering(trunk, "forward", digest(trunk), samples, batch)

    @contextmanager
    def _remembering(self, module: nn.Module, name: str, values: str, samples: Samples, batch: int) -> Iterator[Table]:
        """Inside, this function of a module is computed only where its output is not known yet."""
        table, compute = self._table((values, id(samples), batch), samples), getattr(module, name)

        def recall(x: Tensor) -> Tensor:
            known = table.outputs.get(self._at)
            return self._keep(table, compute(x)) if known is None else known

        module.__dict__[name] = recall
        try:
            yield table
        finally:
            del module.__dict__[name]

    def _table(self, key: tuple[str, int, int], samples: Samples) -> Table:
        self._tables[key] = self._tables.pop(key) if key in self._tables else Table(samples)
        return self._tables[key]

    def _keep(self, table: Table, output: Tensor) -> Tensor:
        """Keep an output if there is room for it, without the tables used less recently."""
        if table.room is None and not self._makes_room(table, output):
            return output
        table.put(self._at, output)
        return output

    def _makes_room(self, table: Table, output: Tensor) -> bool:
        """Give a table memory for outputs like this one."""
        row = output[0].numel() * output.element_size()
        rows = min(len(table.samples), self.most // max(row, 1))
        if rows < len(output) or not _row_by_row(output):
            return False
        while self._held + rows * row > self.most:
            oldest = next(iter(self._tables))
            if self._tables[oldest] is table:
                return False
            self._held -= self._tables.pop(oldest).size
        table.room = output.new_empty_strided((rows, *output.shape[1:]), output.stride())
        self._held += table.size
        return True


def _row_by_row(output: Tensor) -> bool:
    """Whether samples follow each other in memory, each in one piece."""
    dense = torch.empty_like(output, device="meta").stride() == output.stride()
    return dense and output.stride(0) == output[0].numel()


def batches(samples: Samples, size: int) -> Iterator[tuple[int, Tensor]]:
    """All positions of samples in order: the first of each batch, and all of it."""
    size = samples.at_once(size)
    for start in range(0, len(samples), size):
        yield start, torch.arange(start, min(start + size, len(samples)), device=samples.rows.device)


def _plain(net: nn.Module) -> bool:
    """Whether nothing but trunk and last makes a network's features."""
    return isinstance(net, Net) and type(net).features is Net.features


def digest(*modules: nn.Module) -> str:
    """A hash of how modules are built and of all their values, bit for bit."""
    found = hashlib.sha256()
    for module in modules:
        found.update(repr(module).encode())
        for tensor in (*module.parameters(), *module.buffers()):
            found.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
            found.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()
