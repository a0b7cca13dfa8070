"""Sites made by hand: a tiny net, some samples, a client and a server without an engine."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from polyfed import rng
from polyfed.config import Train
from polyfed.data.samples import Samples
from polyfed.message import Bundle, Memory, Message
from polyfed.methods.base import Method, Task
from polyfed.methods.sites import Client, Known, Server, Upload
from polyfed.models.base import Net
from polyfed.params import Params
from polyfed.parts.resident import Resident

INTO, HIDDEN, WIDTH, CLASSES = 4, 6, 5, 3


def tiny_net(bn: bool = False, bias: bool = True, classes: int = CLASSES) -> Net:
    """Two hidden layers, with BatchNorm after each if asked; its weights come from torch's global generator."""

    def layer(i: int, into: int, out: int) -> nn.Sequential:
        norm = [(f"norm{i}", nn.BatchNorm1d(out))] if bn else []
        return nn.Sequential(OrderedDict([(f"fc{i}", nn.Linear(into, out)), *norm, (f"relu{i}", nn.ReLU())]))

    return Net(layer(1, INTO, HIDDEN), layer(2, HIDDEN, WIDTH), nn.Linear(WIDTH, classes, bias=bias))


def resident(seed: int = 3, make: Callable[[], Net] | None = None, **shape: Any) -> Resident:
    """A resident tiny net; under this seed its features are alive."""
    with rng.seeded(seed, "init"):
        return Resident(make or (lambda: tiny_net(**shape)))


def some(n: int = 12, classes: int = CLASSES, seed: int = 0, labels: Sequence[int] | None = None) -> Samples:
    """Random rows; the labels go round unless given."""
    y = torch.arange(n) % classes if labels is None else torch.tensor(labels)
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(len(y), INTO, generator=generator)
    x[:, 0] += y  # so that there is something to learn
    return Samples.of(x, y)


def client(
    home: Resident,
    data: Samples,
    *,
    received: Bundle | Params | None = None,
    memory: Memory | None = None,
    id: int = 0,
    round: int = 1,
    augment: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None,
    classes: int = CLASSES,
    train: dict[str, Any] | None = None,
    **task: Any,
) -> Client:
    """A client that received a model (by default the initial one) and is ready to work."""
    home.reset()
    if received is None or isinstance(received, Params):
        received = Bundle(w=(received or home.initial).copy())
    if "w" in received:
        home.params.set(received.w)
    counts = torch.bincount(data.y, minlength=classes)
    job = Task(classes=classes, train=Train(**(train or {})), **task)
    return Client(id, home, job, round, data, counts, received, Memory() if memory is None else memory, augment)


def server(home: Resident, sizes: Sequence[int], method: Method, **task: Any) -> Server:
    """A server that knows clients of these sizes, after the method's start."""
    job = Task(classes=CLASSES, clients=len(sizes), **task)
    method.bind(job)
    known = [Known(k, f"client-{k}", n, None) for k, n in enumerate(sizes)]
    made = Server(home, job, known, job.weighting or method.weighting, method.shared)
    method.start(made)
    return made


def uploads(*messages: Message, sizes: Sequence[int] | None = None) -> list[Upload]:
    """What clients 0, 1, ... sent."""
    return [Upload(k, sizes[k] if sizes else 1, message) for k, message in enumerate(messages)]


def as_params(home: Resident, value: float | Tensor) -> Params:
    """A model whose every weight and float buffer is this number, or these."""
    params = home.initial.copy()
    params.flat.copy_(torch.as_tensor(value, dtype=torch.float32).expand_as(params.flat))
    return params
