"""A federated algorithm: what the server sends, what a client does, what the server makes of the answers."""

from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import ConfigDict, PrivateAttr, field_validator
from torch import Tensor, nn

from polyfed import params as slices
from polyfed.message import Field, Message, Wire
from polyfed.methods.sites import Client, Server, Site, Task, Upload
from polyfed.models.base import Net
from polyfed.params import Slice, everything, nothing
from polyfed.parts.losses import cross_entropy
from polyfed.parts.resident import Batch
from polyfed.registry import Registry, Spec

__all__ = ["Client", "Method", "OnTop", "Server", "Site", "Task", "Upload", "method", "methods"]


class Method(Spec):
    """FedAvg, with a default for every hook; a method overrides what its paper changes and calls super for the rest."""

    model_config = ConfigDict(ignored_types=(Slice,))
    kind: ClassVar[str] = "method"
    personal: ClassVar[Any] = nothing  # a slice: never sent, kept in memory, counted, checkpointed
    trains: ClassVar[Any] = everything  # a slice
    weighting: ClassVar[str] = "sample"
    buffers: ClassVar[str] = "shared"
    everyone: ClassVar[bool] = False  # all clients every round, whoever is selected
    newcomer: ClassVar[str] = "the global model"  # what a client that never trained gets, in words
    _task: Task = PrivateAttr(default_factory=Task)

    # ---- what is declared, as the run sees it

    def bind(self, task: Task) -> None:
        """Tell the method of the experiment it is in."""
        self._task = task

    @property
    def task(self) -> Task:
        """The experiment."""
        return self._task

    @property
    def kept(self) -> Slice:
        """What stays on the client: the personal slice, and the buffers where they are local."""
        local = (self._task.buffers or self.buffers) == "local"
        return self.personal | slices.buffers if local else self.personal

    @property
    def shared(self) -> Slice:
        """What is sent: everything else."""
        return ~self.kept

    def wire(self) -> Wire:
        """What goes down and up."""
        shared = Field("the shared model", part=self.shared)
        return Wire(down={"w": shared}, up={"w": Field("the trained shared model", part=self.shared, against="w")})

    # ---- hooks

    def build(self, model: Net) -> Net:
        """Change the model before anything is laid out; everywhere, once."""
        return model

    def start(self, server: Server) -> None:
        """Prepare the server; its params are already the seeded initial ones."""

    def send(self, server: Server, id: int) -> Message:
        """What this client is sent: pure, also used to evaluate."""
        return part_message("w", *server.part(self.shared))

    def adapt(self, client: Client) -> None:
        """Cheap personalisation, before training and before every evaluation."""

    def train(self, client: Client) -> Message:
        """A client's round."""
        self.adapt(client)
        self.local(client)
        return self.upload(client)

    def local(self, client: Client, **fit: Any) -> int:
        """One fit with this method's loss and correction; gives the steps taken."""
        if type(self).correct is not Method.correct:
            fit.setdefault("correct", lambda grad: self.correct(client, grad))
        fit.setdefault("train", self.trains)
        return client.fit(lambda batch: self.loss(client, batch), **fit)

    def loss(self, client: Client, batch: Batch) -> Tensor:
        """Terms in samples."""
        return cross_entropy(batch)

    def correct(self, client: Client, grad: Tensor) -> None:
        """Terms in parameters: added to the flat gradient, in place."""

    def upload(self, client: Client) -> Message:
        """What the client sends: a copy of the shared slice."""
        return part_message("w", *client.params.get(self.shared))

    def merge(self, server: Server, uploads: Sequence[Upload]) -> None:
        """What the server makes of the uploads, in client-id order."""
        server.params = server.average(uploads)

    def finish(self, client: Client) -> None:
        """Once after the last round, on every client: a client that never trained learns its personal slice."""
        if client.new and self.personal != nothing:
            self.local(client, train=self.personal & self.trains)

    def predictor(self, client: Client) -> nn.Module:
        """What answers for this client: an nn.Module from x to logits."""
        return client.model

    def global_predictor(self, site: Site) -> nn.Module | None:
        """What answers for all, from the shared model as this site knows it; None where there is no global model."""
        return site.frozen(site.common).model if self.has_global else None

    # ---- what follows from the hooks

    @property
    def has_global(self) -> bool:
        """Whether one model answers for all; a method with a personal slice has none, unless it says so."""
        return self.personal == nothing

    @property
    def personalises(self) -> bool:
        """Whether a client's predictor can differ from the global model."""
        hooks = ("adapt", "finish", "predictor")
        changed = any(getattr(type(self), hook) is not getattr(Method, hook) for hook in hooks)
        return changed or self.kept != nothing or not self.has_global


def part_message(name: str, floats: Tensor, integers: Tensor) -> Message:
    """A message with one slice of a model; integer buffers ride beside it."""
    message = Message()
    message[name] = floats
    if len(integers):
        message[f"{name}.integers"] = integers
    return message


methods = Registry("method", "polyfed.methods", Method)
method = methods.register


class OnTop(Method):
    """A method on top of any other: send, train and merge are the base's; finish and predictor are its own."""

    base: Method

    @field_validator("base")
    @classmethod
    def _base_has_a_global_model(cls, base: Method) -> Method:
        if not base.has_global:
            raise ValueError(f"method '{base.name}' has no global model to build on")
        return base

    @property
    def kept(self) -> Slice:
        """The base's."""
        return self.base.kept

    @property
    def shared(self) -> Slice:
        """The base's."""
        return self.base.shared

    @property
    def trains(self) -> Slice:
        """The base's."""
        return self.base.trains

    @property
    def weighting(self) -> str:  # type: ignore[override]
        """The base's."""
        return self.base.weighting

    @property
    def buffers(self) -> str:  # type: ignore[override]
        """The base's."""
        return self.base.buffers

    def bind(self, task: Task) -> None:
        super().bind(task)
        self.base.bind(task)

    def wire(self) -> Wire:
        return self.base.wire()

    def build(self, model: Net) -> Net:
        return self.base.build(model)

    def start(self, server: Server) -> None:
        self.base.start(server)

    def send(self, server: Server, id: int) -> Message:
        return self.base.send(server, id)

    def adapt(self, client: Client) -> None:
        self.base.adapt(client)

    def train(self, client: Client) -> Message:
        return self.base.train(client)

    def loss(self, client: Client, batch: Batch) -> Tensor:
        return self.base.loss(client, batch)

    def correct(self, client: Client, grad: Tensor) -> None:
        self.base.correct(client, grad)

    def upload(self, client: Client) -> Message:
        return self.base.upload(client)

    def merge(self, server: Server, uploads: Sequence[Upload]) -> None:
        self.base.merge(server, uploads)

    def global_predictor(self, site: Site) -> nn.Module | None:
        return self.base.global_predictor(site)
