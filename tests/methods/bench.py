"""A server and clients of one process, without an engine: hooks are called by hand."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyfed.config import Train
from polyfed.data.samples import Samples
from polyfed.message import Memory, Message
from polyfed.methods.base import Client, Method, Server, Task, Upload
from polyfed.methods.sites import Known
from polyfed.models.base import Net
from polyfed.parts.resident import Resident


def two_layers() -> Net:
    trunk = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    return Net(trunk, nn.Identity(), nn.Linear(4, 2), ("trunk.1",))


class Bench:
    """The server, and a client with eight samples of two classes whenever one is asked for."""

    def __init__(self, method: Method, clients: int = 4, net: Callable[[], Net] = two_layers, **train: Any):
        torch.manual_seed(0)
        self.method = method
        self.task = Task(classes=2, clients=clients, train=Train(**{"batch": 4, "lr": 0.1} | train), rounds=5)
        method.bind(self.task)
        self.resident = Resident(lambda: method.build(net()))
        known = [Known(k, str(k), 10 + k, (5, 5 + k)) for k in range(clients)]
        self.server = Server(self.resident, self.task, known, "sample", method.shared)
        self.server.round = 1
        method.start(self.server)

    def client(self, id: int = 0, memory: Memory | None = None, **received: Any) -> Client:
        self.resident.reset()
        self.resident.params.set(self.server.shared)
        x = torch.randn(8, 3, generator=torch.Generator().manual_seed(id))
        y, down = torch.arange(8) % 2, Message(**received)
        down["w"] = self.server.shared
        return Client(id, self.resident, self.task, 1, Samples.of(x, y), torch.bincount(y), down, memory or Memory())

    def upload(self, id: int, **message: Tensor) -> Upload:
        return Upload(id, self.server.clients[id].n, Message(**message))


def descended(layer: Sequence[Tensor], h: Tensor, y: Tensor, steps: int, lr: float, rule: Train) -> Tensor:
    """A linear head (weight, perhaps bias) after some steps of torch's own SGD on all rows at once, as one vector."""
    values = [p.clone().requires_grad_(True) for p in layer]
    optimiser = torch.optim.SGD(values, lr, momentum=rule.momentum, weight_decay=rule.weight_decay)
    for _ in range(steps):
        optimiser.zero_grad()
        F.cross_entropy(F.linear(h, *values), y).backward()
        if rule.clip is not None:
            torch.nn.utils.clip_grad_norm_(values, rule.clip)
        optimiser.step()
    return torch.cat([p.detach().flatten() for p in values])
