"""Methods from outside the package, as a user would write them: some keep a memory, some misbehave on one client."""

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from polyfed.methods import (
    Client,
    Field,
    Message,
    Method,
    Samples,
    Server,
    Upload,
    Wire,
    cross_entropy,
    gated,
    mix,
    param,
)


class Counting(Method):
    """FedAvg whose clients count their rounds and keep the running mean of their models."""

    keeps = {"times": "how many rounds it trained", "mean": "the running mean of its models"}

    def train(self, client: Client) -> Message:
        upload = super().train(client)
        memory = client.memory
        memory.times = memory.get("times", 0) + 1
        mean = memory.get("mean")
        memory.mean = client.live.copy() if mean is None else mean.mix(client.live, 1 / memory.times)
        return upload


class Lying(Method):
    """FedAvg in whose first round client 1 sends no numbers and client 2 another shape, later a very long update."""

    def upload(self, client: Client) -> Message:
        upload = super().upload(client)
        w = upload["w"]
        lies = {(1, 1): w * float("nan"), (2, 1): w[:-1].clone(), (2, 2): w * 1e9}
        upload["w"] = lies.get((client.id, client.round), w)
        return upload


class Mixed(Counting):
    """The shared model and the client's running mean answer together."""

    def predictor(self, client: Client) -> nn.Module:
        own = client.frozen(client.memory.get("mean", client.shared)).model
        return mix([(client.model, 1), (own, 3)], how="probabilities")


class MixedByGate(Counting):
    """A gate that the client trains for itself shares every sample out between the same two networks."""

    keeps = {**Counting.keeps, "gate": "weights and bias of its gate"}

    def train(self, client: Client) -> Message:
        upload = super().train(client)
        gate, answer = self.gate(client), self.predictor(client)
        client.fit(lambda batch: nn.functional.cross_entropy(answer(batch.x), batch.y), train=list(gate.parameters()))
        client.memory.gate = torch.cat([gate.weight, gate.bias[:, None]], 1).detach()
        return upload

    def gate(self, client: Client) -> nn.Linear:
        """The gate of this work, made once from what the client remembers."""
        if "gate" not in client.scratch:
            gate = client.scratch["gate"] = nn.Linear(torch.Size(client.task.shape).numel(), 2)
            kept = client.memory.get("gate", torch.zeros(2, gate.in_features + 1))
            gate.weight.data, gate.bias.data = kept[:, :-1].clone(), kept[:, -1].clone()
        return client.scratch["gate"]

    def predictor(self, client: Client) -> nn.Module:
        own = client.frozen(client.memory.get("mean", client.shared)).model
        return gated([client.model, own], nn.Sequential(nn.Flatten(), self.gate(client)))


class Striking(Counting):
    """Does something on one client, in one round or in all of them."""

    who: int = param(1, "the client, -1 for all", ge=-1)
    when: int = param(2, "the round, 0 for all", ge=0)

    def strikes(self, client: Client) -> bool:
        return self.who in (-1, client.id) and self.when in (0, client.round)


Evil = Literal["nan", "infinite", "shape", "undeclared", "missing", "type", "norm", "float integers", "more integers"]


class Spoiling(Striking):
    """Uploads what no server should average."""

    evil: Evil = param("nan", "what is wrong with it")

    def train(self, client: Client) -> Message:
        upload = super().train(client)
        return spoiled(upload, self.evil) if self.strikes(client) else upload


def spoiled(upload: Message, evil: str) -> Message:
    """A good upload made bad."""
    made = Message(**dict(upload.items()))
    if evil == "nan":
        made.w[3] = float("nan")
    elif evil == "infinite":
        made.w[-1] = float("inf")
    elif evil == "shape":
        made.w = made.w[:-1].clone()
    elif evil == "undeclared":
        made.extra = 1
    elif evil == "missing":
        del made.w
    elif evil == "type":
        made.w = made.w.double()
    elif evil == "norm":
        made.w = made.w * 1e6
    elif evil == "float integers":
        made["w.integers"] = torch.zeros(1)
    elif evil == "more integers":
        made["w.integers"] = torch.zeros(10_000, dtype=torch.int64)
    return made


class Failing(Striking):
    """Dies, raises, is late, or gives what cannot be sent."""

    how: Literal["exit", "once", "raise", "sleep", "tangle", "nothing"] = param("raise", "in which way")
    seconds: float = param(600.0, "how long it sleeps", ge=0)
    marker: str = param("", "a file that gets a letter whenever it strikes")

    def train(self, client: Client) -> Message:
        upload = super().train(client)
        if self.strikes(client):
            before = self._mark()
            self._fail(upload, first=not before)
        return upload

    def _mark(self) -> str:
        """Leave a letter; those of before."""
        if not self.marker:
            return ""
        with Path(self.marker).open("a+") as file:
            file.seek(0)
            before = file.read()
            file.write("x")
        return before

    def _fail(self, upload: Message, first: bool) -> None:
        if self.how == "exit":
            os._exit(9)
        if self.how == "once" and first:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "sleep":
            time.sleep(self.seconds)
        if self.how == "tangle":
            upload.v = {1, 2}  # neither a tensor nor a number
        if self.how == "raise":
            raise ArithmeticError("this client cannot count")


class Sharing(Method):
    """Uploads its live values instead of a copy and changes what it received: must not matter to anybody else."""

    def wire(self) -> Wire:
        size = Field("numbers", rows=("any",), bound=100.0)
        return super().wire().also(down={"sent": size}, up={"seen": size})

    def send(self, server, id: int) -> Message:
        message = super().send(server, id)
        if "sent" not in server.state:
            server.state.sent = torch.ones(3)
        message.sent = server.state.sent
        return message

    def train(self, client: Client) -> Message:
        self.local(client)
        client.received.sent.add_(client.id)
        upload = Message(w=client.live.flat, seen=client.received.sent)
        if len(client.live.integers):
            upload["w.integers"] = client.live.integers
        return upload


class Finishing(Counting):
    """Counts in `finish` too, so that a finish round done twice would show."""

    keeps = {"ends": "how often it finished", "last": "the model it finished with"}

    def finish(self, client: Client) -> None:
        client.memory.ends = client.memory.get("ends", 0) + 1
        client.memory.last = client.live.copy()


class FinishesSometimes(Method):
    """FedAvg whose finish trains on, and raises on the first clients."""

    keeps = {"tuned": "the model that finish trained on"}
    fails: int = param(1, "so many clients fail", ge=0)

    def finish(self, client: Client) -> None:
        if client.id < self.fails:
            raise RuntimeError("no time for that")
        self.local(client)
        client.memory.tuned = client.live.copy()

    def adapt(self, client: Client) -> None:
        if "tuned" in client.memory:
            client.load(client.memory.tuned)


class ServerFits(Method):
    """FedAvg whose server trains the averaged model on rows of its own, in two stages that share their momentum."""

    def merge(self, server: Server, uploads: Sequence[Upload]) -> None:
        super().merge(server, uploads)
        server.live.set(server.shared)
        draw = server.draw("rows")
        x = torch.from_numpy(draw.normal(size=(24, *server.task.shape)).astype("float32"))
        rows = Samples.of(x, torch.arange(24) % server.task.classes)
        server.fit(cross_entropy, rows, steps=2, batch=5)
        server.fit(cross_entropy, rows, steps=2, batch=5, go_on=True)
        server.fit(cross_entropy, rows, steps=1, batch=5)
        server.record("steps", [server.steps, len(server.tally.losses)])
        server.shared = server.live.copy()
