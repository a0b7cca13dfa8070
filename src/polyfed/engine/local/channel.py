"""A pipe between two of our own processes; the tensors of a message and a memory go through shared memory beside it."""

import mmap
import os
import tempfile
import weakref
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Mapping
from multiprocessing.connection import Connection
from multiprocessing.reduction import DupFd
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polyfed.message import Message, only_numbers

ALIGNED = 64  # bytes: where a tensor may start
TOLD = 256  # regions that are given back with one message at the most, so that no message fills a pipe
Place = tuple[str, str, tuple[int, ...], int]  # name, type, shape, start in its region
Versions = list[tuple[Tensor, int]]  # tensors, and how often each was written to


class Written(NamedTuple):
    """A blob and tensors, one after the other in a region of a slate."""

    start: int
    size: int
    blob: int
    places: list[Place]


class Slate:
    """Memory that two processes see, as one of them sees it; without a name, so that nothing is left behind."""

    def __init__(self, file: int, private: bool = False):
        self.file, self.private = file, private  # private: what is written at this end stays its own
        self.map: mmap.mmap | None = None

    def __getstate__(self) -> dict[str, Any]:
        """A spawned process gets the file itself."""
        return {**vars(self), "file": DupFd(self.file), "map": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, file=state["file"].detach())

    def view(self, written: Written) -> memoryview:
        """A region's bytes, where they lie."""
        stop = written.start + written.size
        if self.map is None or len(self.map) < stop:
            size, access = os.fstat(self.file).st_size, mmap.ACCESS_COPY if self.private else mmap.ACCESS_WRITE
            self.map = mmap.mmap(self.file, size, access=access)
        return memoryview(self.map)[written.start : stop]

    def forget(self) -> None:
        """Look at the memory as if for the first time: what was written privately is gone."""
        self.map = None

    def close(self) -> None:
        """Give the memory back; tensors that are still in use keep theirs."""
        os.close(self.file)
        self.map = None


class Writer(Slate):
    """The end that writes, each time into a region that nobody reads any more."""

    def __init__(self, file: int, repeats: bool = False):
        super().__init__(file)
        self.repeats = repeats  # whether the same tensors may come again, as a round's model does
        self.end = 0
        self.free: list[tuple[int, int]] = []  # size and start of regions, sorted
        self._sizes: dict[int, int] = {}  # of all regions, by their start
        self._readers: Counter[int] = Counter()
        self._last: tuple[Versions, Written] | None = None

    def write(self, tensors: Mapping[str, Tensor], blob: bytes) -> Written:
        """Put a blob and tensors here; what lies here already is not copied again."""
        given = _versions(tensors) if self.repeats and not blob else []
        if self._last and _same(given, self._last[0]):
            written = self._last[1]
        else:
            written = self._copied(tensors, blob)
            self._keep(given, written)
        self._readers[written.start] += 1
        return written

    def given_back(self, start: int) -> None:
        """A reader has done with a region; without any, it is written again."""
        self._readers[start] -= 1
        if not self._readers[start]:
            del self._readers[start]
            insort(self.free, (self._sizes[start], start))

    def _keep(self, given: Versions, written: Written) -> None:
        """The last message that may come again counts as read until another one takes its place."""
        if not given:
            return
        if self._last:
            self.given_back(self._last[1].start)
        self._last = given, written
        self._readers[written.start] += 1

    def _copied(self, tensors: Mapping[str, Tensor], blob: bytes) -> Written:
        places, at = [], _aligned(len(blob))
        for name, tensor in tensors.items():
            places.append((name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), at))
            at += _aligned(tensor.numel() * tensor.element_size())
        written = Written(self._region(at), at, len(blob), places)
        view = self.view(written)
        view[: len(blob)] = blob
        for place in places:
            _tensor(view, place).copy_(tensors[place[0]].detach())
        return written

    def _region(self, size: int) -> int:
        """Where so many bytes may be written: the smallest free region that holds them, or a new one."""
        found = bisect_left(self.free, (size, 0))
        if found < len(self.free):
            return self.free.pop(found)[1]
        start = self.end
        self._sizes[start] = max(_aligned(size), ALIGNED)  # two regions never start at one place
        self.end += self._sizes[start]
        if os.fstat(self.file).st_size < self.end:
            os.ftruncate(self.file, 2 * self.end)  # memory comes with the first touch, not with the size
        return start


class Reader(Slate):
    """The end that reads, where things lie, and tells when it has done."""

    def __init__(self, file: int, private: bool = False):
        super().__init__(file, private)
        self.done: list[int] = []  # regions that nobody reads here any more
        self._read: Versions = []  # what came last, where a write of ours stays our own

    def read(self, written: Written) -> tuple[dict[str, Tensor], bytes]:
        """What was written; once nobody holds any of the tensors, their region is done with."""
        if any(tensor._version != version for tensor, version in self._read):
            self.forget()  # a message that comes again must be what was sent
        view = self.view(written)
        weakref.finalize(view, self.done.append, written.start).atexit = False
        tensors = {place[0]: _tensor(view, place) for place in written.places}
        self._read = _versions(tensors) if self.private else []
        return tensors, bytes(view[: written.blob])

    def told(self) -> list[int]:
        """Some of what is done with, for the next message to the writer."""
        some, self.done[:TOLD] = self.done[:TOLD], []
        return some


def _tensor(view: memoryview, place: Place) -> Tensor:
    """One tensor of a region; it keeps the view."""
    _, kind, shape, start = place
    dtype: torch.dtype = getattr(torch, kind)
    count = torch.Size(shape).numel()
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(view, dtype=dtype, count=count, offset=start).view(shape)


def _versions(tensors: Mapping[str, Tensor]) -> Versions:
    return [(tensor, tensor._version) for tensor in tensors.values()]


def _same(some: Versions, others: Versions) -> bool:
    """Whether these are the same tensors, unchanged."""
    pairs = zip(some, others, strict=False)
    return len(some) == len(others) > 0 and all(a is b and v == w for (a, v), (b, w) in pairs)


def unnamed_file() -> int:
    """A file in memory, or one without a name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("polyfed")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


class Channel:
    """One end: several messages may be under way, and what was received is read where it lies."""

    def __init__(self, pipe: Connection, out: Writer, into: Reader):
        self.pipe, self.out, self.into = pipe, out, into

    def send(self, value: Any, message: Message | None = None, blob: bytes | None = None) -> None:
        """Hand over a value, a message and a memory."""
        message = message if message is not None else Message()
        numbers, tensors = only_numbers(message.numbers()), message.tensors()
        written = self.out.write(tensors, blob or b"") if tensors or blob else None
        self.pipe.send((value, numbers, written, blob is not None, self.into.told()))

    def receive(self) -> tuple[Any, Message, bytes | None]:
        """The next value, message and memory."""
        value, numbers, written, remembers, done = self.pipe.recv()
        for start in done:
            self.out.given_back(start)
        tensors, blob = self.into.read(written) if written else ({}, b"")
        return value, Message(**numbers, **tensors), blob if remembers else None

    def close(self) -> None:
        """Close this end of the channel."""
        self.pipe.close()
        self.out.close()
        self.into.close()


def channels(context: Any) -> tuple[Channel, Channel]:
    """Both ends, made before the worker: ours, which sends a round's model again and again, and the worker's."""
    mine, theirs = context.Pipe()
    down, up = unnamed_file(), unnamed_file()
    ours = Channel(mine, Writer(down, repeats=True), Reader(up))
    return ours, Channel(theirs, Writer(up), Reader(down, private=True))
