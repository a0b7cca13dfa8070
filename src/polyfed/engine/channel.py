"""A pipe between two of our own processes; the tensors of a message and a memory go through shared memory beside it."""

import mmap
import os
import tempfile
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from polyfed.message import Message, only_numbers

ALIGNED = 64  # bytes: where a tensor may start
Place = tuple[str, str, tuple[int, ...], int]  # name, type, shape, start
Versions = list[tuple[Tensor, int]]  # tensors, and how often each was written to


class Slate:
    """Memory that both ends of a fork see, without a name: nothing is left behind, however a process ends."""

    def __init__(self, repeats: bool = False) -> None:
        self.repeats = repeats  # whether the same tensors may come again, as a round's model does
        self.file = os.memfd_create("polyfed") if hasattr(os, "memfd_create") else _nameless_file()
        self.map: mmap.mmap | None = None
        self._written: tuple[Versions, list[Place]] = [], []

    def write(self, tensors: Mapping[str, Tensor], blob: bytes) -> list[Place]:
        """Put a blob and tensors here, one after the other; where each lies. What lies here already is not copied."""
        if self.repeats and not blob:
            given = _versions(tensors)
            if _same(given, self._written[0]):
                return self._written[1]
        places, at = [], _aligned(len(blob))
        for name, tensor in tensors.items():
            places.append((name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), at))
            at += _aligned(tensor.numel() * tensor.element_size())
        if at:
            if self.map is None or len(self.map) < at:
                os.ftruncate(self.file, at)
            self._mapped(at)[: len(blob)] = blob
            for place in places:
                self._tensor(place).copy_(tensors[place[0]].detach())
        self._written = (given if self.repeats and not blob else []), places
        return places

    def read(self, places: list[Place], blob: int) -> tuple[dict[str, Tensor], bytes]:
        """What was written; the tensors change with the next write."""
        kept = bytes(self._mapped(blob)[:blob]) if blob else b""
        return {place[0]: self._tensor(place) for place in places}, kept

    def forget(self) -> None:
        """What lies here is no longer what was written."""
        self._written = [], []

    def close(self) -> None:
        """Give the memory back; tensors that are still in use keep theirs."""
        os.close(self.file)
        self.map = None

    def _tensor(self, place: Place) -> Tensor:
        _, kind, shape, start = place
        dtype: torch.dtype = getattr(torch, kind)
        count = torch.Size(shape).numel()
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        whole = self._mapped(start + count * dtype.itemsize)
        return torch.frombuffer(whole, dtype=dtype, count=count, offset=start).view(shape)

    def _mapped(self, size: int) -> mmap.mmap:
        if self.map is None or len(self.map) < size:
            self.map = mmap.mmap(self.file, os.fstat(self.file).st_size)
        return self.map


def _versions(tensors: Mapping[str, Tensor]) -> Versions:
    return [(tensor, tensor._version) for tensor in tensors.values()]


def _same(some: Versions, others: Versions) -> bool:
    """Whether these are the same tensors, unchanged."""
    pairs = zip(some, others, strict=False)
    return len(some) == len(others) > 0 and all(a is b and v == w for (a, v), (b, w) in pairs)


def _nameless_file() -> int:
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


class Channel:
    """One end. Messages alternate with answers, so that a slate is read before it is written again."""

    def __init__(self, pipe: Connection, out: Slate, into: Slate, keeps: bool):
        self.pipe, self.out, self.into = pipe, out, into
        self.keeps = keeps  # whether a received message outlives the next one, and so is copied
        self._read: Versions = []  # what was received, where it lies

    def send(self, value: Any, message: Message | None = None, blob: bytes | None = None) -> None:
        """Hand over a value, a message and a memory."""
        message = message if message is not None else Message()
        numbers = only_numbers(message.numbers())
        places = self.out.write(message.tensors(), blob or b"")
        intact = all(tensor._version == version for tensor, version in self._read)
        self.pipe.send((value, numbers, places, None if blob is None else len(blob), intact))

    def receive(self) -> tuple[Any, Message, bytes | None]:
        """The next value, message and memory."""
        value, numbers, places, length, intact = self.pipe.recv()
        if not intact:  # the other end has written into what it was sent
            self.out.forget()
        tensors, blob = self.into.read(places, length or 0)
        if self.keeps:
            tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        else:
            self._read = _versions(tensors)
        return value, Message(**numbers, **tensors), None if length is None else blob

    def close(self) -> None:
        """Hang up."""
        self.pipe.close()
        self.out.close()
        self.into.close()


def channels(context: Any) -> tuple[Channel, Channel]:
    """Both ends, made before the fork: the parent keeps what it receives, a worker lives with one job at a time."""
    mine, theirs = context.Pipe()
    down, up = Slate(repeats=True), Slate()
    return Channel(mine, down, up, keeps=True), Channel(theirs, up, down, keeps=False)
