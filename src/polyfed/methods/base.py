"""A federated algorithm: what the server sends, what a client does, what the server makes of the answers."""

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from inspect import get_annotations
from typing import Any, ClassVar

from pydantic import ConfigDict, PrivateAttr, field_validator
from torch import Tensor, nn

from polyfed import params as slices
from polyfed.message import PERSONAL, Field, Memory, Message, Wire
from polyfed.methods.sites import Client, Server, Site, Task, Upload
from polyfed.models.base import Net
from polyfed.params import Params, Slice, everything, nothing
from polyfed.parts.losses import cross_entropy
from polyfed.parts.resident import Batch
from polyfed.registry import Registry, Spec

__all__ = ["Client", "Method", "OnTop", "Server", "Site", "Task", "Upload", "method", "methods"]


FAMILIES = ("global", "personal", "clustered", "on top", "long tail")  # as the catalogue sorts methods
EDGES = {
    "one class": "it trains like any other client",
    "one sample": "it trains on it, with BatchNorm in eval mode, and is not tested",
    "no BatchNorm": "nothing changes",
}


class Method(Spec):
    """FedAvg, with a default for every hook; a method overrides what its paper changes and calls super for the rest."""

    model_config = ConfigDict(ignored_types=(Slice, int, float, str, tuple, list, dict))  # plain constants of a class
    kind: ClassVar[str] = "method"
    personal: ClassVar[Any] = nothing  # a slice: never sent, kept in memory, counted, checkpointed
    keeps: ClassVar[Mapping[str, str]] = {}  # what it puts into a client's memory: name (or a pattern) and words
    trains: ClassVar[Any] = everything  # a slice
    weighting: ClassVar[str] = "sample"
    buffers: ClassVar[str] = "shared"
    everyone: ClassVar[bool] = False  # all clients every round, whoever is selected
    own_models: ClassVar[bool] = False  # whether clients may have architectures of their own
    newcomer: ClassVar[str] = "the global model"  # what a client that never trained gets, in words
    family: ClassVar[str] = ""  # one of FAMILIES; by default global or personal, by who answers for a client
    cost: ClassVar[str] = "as FedAvg"  # what a round computes, in words
    no_masks: ClassVar[str] = ""  # why it cannot learn masks, in words; empty: it can
    no_ids: ClassVar[str] = ""  # why it cannot learn from tokens or categories, in words; empty: it can
    edges: ClassVar[Mapping[str, str]] = EDGES  # what happens to a client that holds hardly anything, in words
    unbounded: ClassVar[str] = ""  # why one sample's part in a step cannot be bounded, in words; empty: it can
    presumes: ClassVar[str] = ""  # what its loss takes for known about all samples of a client, in words
    _task: Task = PrivateAttr(default_factory=Task)

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        """Refuse `mu = 0.5` for a parameter of the class above: its range and its description would be lost."""
        for name in cls.model_fields.keys() - get_annotations(cls).keys():
            above = next(fields[name] for c in cls.__mro__[1:] if name in (fields := getattr(c, "model_fields", {})))
            if cls.model_fields[name].description != above.description:
                raise TypeError(
                    f"'{name}' is a parameter of {cls.__name__}: give its type and `param(...)` to change it"
                )

    # ---- what is declared, as the run sees it

    def bind(self, task: Task) -> None:
        """Tell the method which experiment it runs in."""
        self._task = task

    @property
    def task(self) -> Task:
        """The experiment that the method runs in."""
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

    def remembers(self) -> dict[str, str]:
        """What stays on a client, by name and in words: the personal slice, and `keeps` of this class and its bases."""
        declared = {} if self.kept == nothing else {PERSONAL[0]: f"the slice '{self.kept}' of the model"}
        return declared | self._declared("keeps")

    def at_the_edges(self) -> dict[str, str]:
        """What it does where a client holds one class or one sample, and where a model has no BatchNorm, in words."""
        return self._declared("edges")

    def _declared(self, name: str) -> dict[str, str]:
        """A mapping of this class and its bases as one; the nearer class holds."""
        found: dict[str, str] = {}
        for cls in reversed(type(self).__mro__):
            found |= vars(cls).get(name, {})
        return found

    def check_memory(self, memory: Memory) -> None:
        """Refuse a memory that holds something which is not declared in `keeps`."""
        declared = self.remembers()
        for name in memory:
            if name not in PERSONAL and not any(fnmatchcase(name, pattern) for pattern in declared):
                raise ValueError(
                    f"method '{self.name}' put '{name}' into a client's memory without declaring it: add it to its "
                    f'class as keeps = {{"{name}": "what it is, in words"}}'
                )

    def wire(self) -> Wire:
        """What goes down and up."""
        shared = Field("the shared model", part=self.shared)
        trained = Field("the trained shared model", part=self.shared, against="w")
        wire = Wire(down={"w": shared}, up={"w": trained})
        return wire.summing("w") if type(self).merge is Method.merge else wire  # another merge speaks for itself

    # ---- hooks

    def build(self, model: Net) -> Net:
        """Change the model before anything is laid out; everywhere, once."""
        return model

    def build_own(self, own: Net, common: Callable[[], Net]) -> Net:
        """Build the model of a client that has an architecture of its own; by default it has nothing of the common."""
        return self.build(own)

    def start(self, server: Server) -> None:
        """Prepare the server; its shared model already has the seeded initial values."""

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
        own = type(self).loss is not Method.loss
        return client.fit((lambda batch: self.loss(client, batch)) if own else cross_entropy, **fit)

    def loss(self, client: Client, batch: Batch) -> Tensor:
        """The loss of a batch: terms in samples."""
        return cross_entropy(batch)

    def correct(self, client: Client, grad: Tensor) -> None:
        """Change the flat gradient in place: terms in parameters."""

    def upload(self, client: Client) -> Message:
        """What the client sends: a copy of the shared slice."""
        return part_message("w", *client.live.get(self.shared))

    def merge(self, server: Server, uploads: Sequence[Upload]) -> None:
        """What the server makes of the uploads, in client-id order."""
        self.update(server, server.shared, server.average(uploads))

    def update(self, server: Server, before: Params, mean: Params) -> None:
        """What the mean of the uploads makes of the model that was shared before; by default it takes its place."""
        server.shared = mean

    def private_steps(self, n: int) -> int:
        """The most steps on its data that a client with n samples takes in a round: what private training pays for."""
        return self.task.train.steps(self.per_epoch(n))

    def per_epoch(self, n: int) -> int:
        """The batches of one pass over n samples."""
        return -(-n // self.task.train.batch)

    def finish(self, client: Client) -> None:
        """Once after the last round, on every client: a client that never trained learns its personal slice."""
        if client.new and self.personal != nothing:
            self.local(client, train=self.personal & self.trains)

    def predictor(self, client: Client) -> nn.Module:
        """What answers for this client: an nn.Module from x to logits."""
        return client.model

    def global_predictor(self, site: Site) -> nn.Module | None:
        """What answers for all, from the shared model as this site knows it; None where there is no global model."""
        return site.frozen(site.shared).model if self.has_global else None

    # ---- what follows from the hooks

    @property
    def has_global(self) -> bool:
        """Whether one model answers for all; a method with a personal slice has none, unless it says so."""
        return self.personal == nothing

    @property
    def personalises(self) -> bool:
        """Whether a client's predictor can differ from the global model."""
        return self._changes_the_answer or self.kept != nothing or not self.has_global

    @property
    def sorted_under(self) -> str:
        """Where the catalogue has it: its family, or by what it does."""
        return self.family or ("personal" if self.personalises else "global")

    @property
    def answers_as_sent(self) -> bool:
        """Whether what is declared says that a client answers with what it is sent and nothing else."""
        return self.kept == nothing and not self._changes_the_answer

    @property
    def one_body(self) -> bool:
        """Whether what is declared says that all clients answer with one body: each keeps no more than a head."""
        return self.kept == slices.head and not self._changes_the_answer

    @property
    def _changes_the_answer(self) -> bool:
        hooks = ("adapt", "finish", "predictor")
        return any(getattr(type(self), hook) is not getattr(Method, hook) for hook in hooks)


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
    family = "on top"
    late: ClassVar[bool] = False  # its own `predictor` answers as the default one does, until `finish` has run

    @field_validator("base")
    @classmethod
    def _own(cls, base: Method) -> Method:
        """Copy the base, because binding a shared default to one experiment would change it for all."""
        return base.model_copy()

    @property
    def has_global(self) -> bool:
        """Whether the base has a global model; where it has none, a client builds on its own."""
        return self.base.has_global

    @property
    def everyone(self) -> bool:  # type: ignore[override]
        """The base's."""
        return self.base.everyone

    @property
    def own_models(self) -> bool:  # type: ignore[override]
        """The base's; a method that builds something into the models must say for itself."""
        return self.base.own_models and type(self).build is OnTop.build

    def begin_finish(self, client: Client) -> None:
        """Make live the model that `finish` builds on: the client's, finished by its base where no model is global."""
        if not self.base.has_global:
            self.base.finish(client)

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

    @property
    def no_masks(self) -> str:  # type: ignore[override]
        """Why the base cannot learn masks, if it cannot."""
        return self.base.no_masks

    @property
    def no_ids(self) -> str:  # type: ignore[override]
        """Why the base cannot learn from ids, if it cannot."""
        return self.base.no_ids

    def bind(self, task: Task) -> None:
        """Tell the base which experiment it runs in, too."""
        super().bind(task)
        self.base.bind(task)

    @property
    def unbounded(self) -> str:  # type: ignore[override]
        """The base's."""
        return self.base.unbounded

    @property
    def presumes(self) -> str:  # type: ignore[override]
        """The base's."""
        return self.base.presumes

    def private_steps(self, n: int) -> int:
        """The base's."""
        return self.base.private_steps(n)

    def remembers(self) -> dict[str, str]:
        """What the base remembers, and what this method adds."""
        return self.base.remembers() | super().remembers()

    def wire(self) -> Wire:
        """What the base's wire declares."""
        return self.base.wire()

    def build(self, model: Net) -> Net:
        """Change the model as the base does."""
        return self.base.build(model)

    def build_own(self, own: Net, common: Callable[[], Net]) -> Net:
        """Build a client's own model as the base does."""
        return self.base.build_own(own, common)

    def start(self, server: Server) -> None:
        """Prepare the server as the base does."""
        self.base.start(server)

    def send(self, server: Server, id: int) -> Message:
        """Send what the base sends."""
        return self.base.send(server, id)

    def adapt(self, client: Client) -> None:
        """Personalise as the base does."""
        self.base.adapt(client)

    def train(self, client: Client) -> Message:
        """Train as the base does."""
        return self.base.train(client)

    def loss(self, client: Client, batch: Batch) -> Tensor:
        """The base's terms in samples."""
        return self.base.loss(client, batch)

    def correct(self, client: Client, grad: Tensor) -> None:
        """The base's terms in parameters."""
        self.base.correct(client, grad)

    def upload(self, client: Client) -> Message:
        """Upload what the base uploads."""
        return self.base.upload(client)

    def merge(self, server: Server, uploads: Sequence[Upload]) -> None:
        """Merge as the base does."""
        self.base.merge(server, uploads)

    def global_predictor(self, site: Site) -> nn.Module | None:
        """The base's global model."""
        return self.base.global_predictor(site)
