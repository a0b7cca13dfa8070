"""The client side of a round: a pure function (message, memory, data, key) -> (message, memory', report)."""

import math
import time
import traceback
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import itemgetter
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from polyfed import rng
from polyfed.config import Config
from polyfed.data.federation import ClientData, Federation, class_counts, federation
from polyfed.data.live import Anew, reading_anew
from polyfed.data.samples import Samples
from polyfed.data.sources.base import Dataset, load_cached
from polyfed.engine.heap import keep_freed_memory
from polyfed.engine.selection import most_appearances
from polyfed.engine.size import need_memory
from polyfed.engine.start import starting_params
from polyfed.errors import UsageError, trouble
from polyfed.measure.counts import confusion, confusions
from polyfed.measure.shared import SharedFeatures
from polyfed.message import Bundle, Memory, Message, digest_of
from polyfed.methods.base import Client, Method, Task
from polyfed.models.base import Model, Net
from polyfed.models.per_client import models_of
from polyfed.models.table import TableMLP
from polyfed.models.text import OfTokens
from polyfed.params import Params, Slice, nothing
from polyfed.parts.fit import Augment
from polyfed.parts.resident import Resident
from polyfed.threats.adversary import Adversary
from polyfed.threats.privacy import Privacy, Setting

Kind = Literal["hello", "train", "evaluate", "finish"]
CPU = torch.device("cpu")
TOKENS = ", or say data.tokens=true where these are token ids"
SPLITS: tuple[Literal["train", "test", "val"], ...] = ("train", "test", "val")
ON_GLOBAL_TEST = ("threat", "stamped")  # measures of an attack: on the global test set, plain and with a trigger
SIZES = {"d": "features", "h": "weights of a class", "P": "weights", "F": "floats", "I": "integers"}  # in shapes


@dataclass
class Job:
    """One piece of work for one client, from a memory version."""

    kind: Kind
    client: int
    round: int
    down: Message = field(default_factory=Message)
    version: int | None = None
    measures: tuple[str, ...] = ()
    size: int = 0  # samples; larger jobs are started first
    per_class: int = 0  # samples of each class that "classes" asks about; 0: the whole global test set


@dataclass
class Outcome:
    """The result of a job: an upload, a new memory and a report, or an error."""

    client: int
    up: Message = field(default_factory=Message)
    memory: bytes | None = None
    digest: str = ""
    numbers: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, np.ndarray] = field(default_factory=dict)
    error: str = ""
    trace: str = ""


def device_of(name: str) -> torch.device:
    """The device a config names; auto takes the best there is."""
    if name != "auto":
        return torch.device(name)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def side_of(config: Config, dataset: Dataset) -> int | None:
    """The side images must be resized to for the model, where the config leaves that open."""
    shape = dataset.shape
    if config.data.size != "auto" or len(shape) != 3:
        return None
    need, model = max(((one.smallest(shape), one.name) for one in config.model.architectures), key=itemgetter(0))
    if min(shape[1:]) >= need:
        return None
    if not dataset.images:
        told = f"the samples of {dataset.name} are numbers {list(shape)}, which have their channels first [C, H, W]"
        raise UsageError(
            f"model '{model}' takes images of at least {need} x {need}, and {told}: transpose them if they "
            "are not, or give images as uint8 [N, H, W, C], which are resized"
        )
    return need


_recent: dict[tuple[str, ...], Federation] = {}  # the last two; forked workers inherit them for free


def federation_of(config: Config, device: torch.device = CPU) -> Federation:
    """The federation a config describes; kept for the next run of this process that has the same."""
    size = side_of(config, load_cached(config.data))
    key = tuple(map(str, (config.data.dump(), config.dump()["split"], config.seed, size, device)))
    if key not in _recent:
        while len(_recent) > 1:
            _recent.pop(next(iter(_recent)))
        _recent[key] = federation(config.data, config.split, config.seed, size, device)
    return _recent[key]


def check_masks(config: Config, federation: Federation) -> None:
    """Refuse a model or a method that answers for something else than what the data have labels for."""
    name, masks = federation.dataset.name, federation.masks
    for model in config.model.architectures:
        if masks and not model.of_pixels:
            fitting = "model=lraspp-small or model=lraspp"
            raise UsageError(
                f"model '{model.name}' answers for whole images, and the labels of {name} are masks: {fitting}"
            )
        if model.of_pixels and not masks:
            fitting = "model=resnet8, say"
            raise UsageError(f"model '{model.name}' answers for pixels, and {name} has one label per sample: {fitting}")
    if masks and config.method.no_masks:
        raise UsageError(f"method '{config.method.name}' cannot learn masks: {config.method.no_masks}")
    if masks and config.attack.name != "none" and config.attack.no_masks:
        raise UsageError(f"attack '{config.attack.name}' cannot attack masks: {config.attack.no_masks}")
    if masks and config.privacy.name == "dp-sgd":
        raise UsageError("privacy=dp-sgd bounds the gradient of each sample's one label, and here are masks")


def check_inputs(config: Config, federation: Federation) -> None:
    """Refuse a model that eats something else than the data hold: numbers, tokens, or categories beside numbers."""
    data = federation.dataset
    held = "tokens" if data.tokens else "categories" if data.categories else "numbers"
    if config.method.no_ids and any(model.eats != "numbers" for model in config.model.architectures):
        raise UsageError(f"method '{config.method.name}' cannot learn from {config.model.eats}: {config.method.no_ids}")
    for model in config.model.architectures:
        if model.eats != held and (held, model.eats) != ("numbers", "categories"):
            fitting = {"tokens": "text-bag or text-transformer", "categories": "table-mlp", "numbers": "mlp"}[held]
            or_else = TOKENS if model.eats == "tokens" else ""
            told = f"model '{model.name}' eats {model.eats}, and {data.name} holds {held}"
            raise UsageError(f"{told}: set model.name to {fitting}{or_else}")
        if isinstance(model, OfTokens) and (most := int(data.x.max(initial=0))) >= model.kinds:
            told = f"model '{model.name}' has ids up to {model.kinds - 1}"
            raise UsageError(f"{data.name} has the token id {most}, and {told}: set model.ids={most + 1}")
        if isinstance(model, TableMLP) and held == "categories" and data.categories != model.sizes:
            declared = list(data.categories)
            raise UsageError(f"{data.name} has columns of {declared} categories: set model.categories={declared}")


class World:
    """What every process builds for itself from the config: the federation, the model, the method."""

    def __init__(
        self,
        config: Config,
        federation: Federation | None = None,
        device: torch.device = CPU,
        secret: bool = False,  # between real sites: their noise is theirs alone
    ):
        self.config = config
        self.federation = federation_of(config, device) if federation is None else federation
        self.method: Method = config.method
        self.task = Task(
            seed=config.seed,
            rounds=config.rounds,
            participation=config.participation,
            classes=self.federation.outputs,
            train=config.train,
            weighting=config.weighting,
            buffers=config.buffers,
            clients=len(self.federation.participants),
            shape=self.federation.shape,
        )
        check_masks(config, self.federation)
        check_inputs(config, self.federation)
        need_memory(
            config.model.architectures, self.federation.shape, self.federation.outputs, len(self.federation.clients)
        )
        self.method.bind(self.task)
        self.wire = self.method.wire()
        self._architectures: list[tuple[Model, Resident]] = []
        self.resident = self._resident_for(config.model.common, device)  # the server's
        of_clients = models_of(config.model, self.federation.split.names)
        self.residents = [self._resident_for(model, device) for model in of_clients]  # of each client
        self._check_sizes()
        self.adversary = self._adversary()
        self.privacy: Privacy = config.privacy
        self.setting = Setting(
            self.method,
            self.wire,
            self.task,
            self.resident.layout,
            self.resident.model,
            config.sampling,
            config.weighting or self.method.weighting,
            most_appearances(config, self.federation.participants) if self.privacy.counts else 0,
            secret,
        )
        self.privacy.check(self.setting)
        self.augment = self.federation.augment
        self.reader = config.data.reader()
        self.shared = SharedFeatures()
        self._origins: dict[int, dict[str, str]] = {}  # by the identity of a resident
        self._class_tests: dict[int, tuple[Samples, np.ndarray]] = {}
        keep_freed_memory()

    # ---- models

    def _resident_for(self, model: Model, device: torch.device) -> Resident:
        """The resident of an architecture; all start from the same key, so clients with the same one start alike."""
        for known, resident in self._architectures:
            if known is model or known == model:
                return resident
        with rng.seeded(self.config.seed, "init"):
            resident = Resident(lambda: self._built(model), device)
        resident.initial = starting_params(self.config, resident)
        self._architectures.append((model, resident))
        return resident

    def _built(self, model: Model) -> Net:
        shape, classes, common = self.federation.shape, self.federation.outputs, self.config.model.common
        net = model.made(shape, classes)
        if model == common:
            return self.method.build(net)
        return self.method.build_own(net, lambda: common.made(shape, classes))

    def origin_of(self, client: int) -> dict[str, str]:
        """Digests of where a client starts."""
        resident = self.residents[client]
        if id(resident) not in self._origins:
            self._origins[id(resident)] = {"params": resident.initial.digest(), "layout": resident.layout.digest()}
        return self._origins[id(resident)]

    def sizes(self, resident: Resident) -> dict[str, int]:
        """What the words of a wire's shapes stand for, where a model has this layout."""
        layout, head = resident.layout, resident.model.head
        assert isinstance(head, nn.Linear)
        width, bias = head.in_features, int(getattr(head, "bias", None) is not None)
        whole = {"P": layout.n_weights, "F": layout.size, "I": layout.n_integers}
        return {"C": self.task.classes, "d": width, "h": width + bias, **whole}

    def _adversary(self) -> Adversary | None:
        """The attack of the run, as every process knows it; None where everybody is honest."""
        if self.config.attack.name == "none":
            return None
        data, method = self.federation, self.method
        sizes = {k: len(data.clients[k].train) for k in data.participants}
        weighting = self.config.weighting or method.weighting
        selected = len(sizes) if method.everyone else max(1, round(self.config.participation * len(sizes)))
        self.config.attack.check(data.classes, data.dataset.images, data.shape)
        layout, task = self.resident.layout, replace(self.task, classes=data.classes)
        return Adversary(self.config.attack, task, method.name, self.wire, layout, sizes, selected, weighting)

    def _check_sizes(self) -> None:
        """Refuse models that differ in a size which the method's messages have."""
        fields = (*self.wire.down.values(), *self.wire.up.values())
        used = {word for field in fields for word in field.rows if isinstance(word, str)}
        (first, resident), *others = self._architectures
        for model, other in others:
            for word, size in self.sizes(resident).items():
                theirs = self.sizes(other)[word]
                if word in used and size != theirs:
                    raise UsageError(
                        f"model.per_client: method '{self.method.name}' exchanges {SIZES[word]}, which must be as many "
                        f"in every model, and '{first.name}' has {size} where '{model.name}' has {theirs}: set "
                        "model.width, or choose others"
                    )

    # ---- doing a job

    def do(self, job: Job, blob: bytes | None) -> Outcome:
        """Work, with the global generators seeded from the job's key; an exception becomes an error outcome."""
        started = time.perf_counter()
        self.shared.begin((job.kind, job.round))
        with rng.seeded(self.config.seed, "work", job.round, job.client):
            try:
                outcome: Outcome = getattr(self, f"_{job.kind}")(job, blob)
            except Exception as error:
                outcome = Outcome(job.client, error=sentence(error), trace=traceback.format_exc())
        outcome.numbers["seconds"] = time.perf_counter() - started
        return outcome

    def _hello(self, job: Job, blob: bytes | None) -> Outcome:
        data = self.federation.clients[job.client]
        return Outcome(
            job.client,
            numbers={
                "name": data.name,
                "n": len(data.train),
                "tests": len(data.test),
                "vals": len(data.val),
                "shape": list(self.federation.shape),
                **self.origin_of(job.client),
            },
            counts={} if self.privacy.hides_counts else {n: data.counts_of(n).cpu().numpy() for n in SPLITS},
        )

    def _train(self, job: Job, blob: bytes | None) -> Outcome:
        client = self.client(job, blob)
        up = self.method.train(client)
        if (attack := self.attack_in(job)) is not None:
            up = attack.own(up, job.down, job.client, job.round)
        self.privacy.leave(self.setting, client, up, job.down.to(self.resident.device))
        outcome = self._with_memory(client, Outcome(job.client, up))
        self._measure(client, job, outcome)
        return outcome

    def _finish(self, job: Job, blob: bytes | None) -> Outcome:
        client = self.client(job, blob)
        self.method.adapt(client)
        self.method.finish(client)
        return self._with_memory(client, Outcome(job.client))

    def _evaluate(self, job: Job, blob: bytes | None) -> Outcome:
        client = self.client(job, blob)
        self.method.adapt(client)
        outcome = Outcome(job.client)
        self._measure(client, job, outcome)
        return outcome

    def _with_memory(self, client: Client, outcome: Outcome) -> Outcome:
        """The new memory: what the method put there and the personal slice as it is now."""
        self.method.check_memory(client.memory)
        kept = self.method.kept
        if kept != nothing:
            client.memory.keep_personal(*client.live.get(kept))
        if len(client.memory):
            outcome.memory = client.memory.encode()
            outcome.digest = digest_of(outcome.memory)
        outcome.numbers |= client.tally.numbers()
        if self.privacy.keeps_reports(self.setting):
            outcome.numbers["loss"] = math.nan
        return outcome

    # ---- a client, ready to work

    def client(self, job: Job, blob: bytes | None) -> Client:
        """Load what is shared from the message and what is personal from the memory."""
        resident = self.residents[job.client]
        memory = (Memory() if blob is None else Memory.decode(blob, resident.layout)).to(resident.device)
        data: ClientData = self.federation.clients[job.client]
        received = self._loaded(resident, job.down.to(resident.device), memory)
        learns = job.kind in ("train", "finish")
        augment, anew = (self._augment_for(job), self._anew_for(job)) if learns else (None, None)
        samples, counts = replace(data.train, anew=anew), data.counts
        if (attack := self.attack_in(job)) is not None:
            samples = attack.poison(samples, job.client)
            counts = class_counts(samples, self.federation.classes)
        held = F.pad(counts, (0, self.task.classes - len(counts)))  # nobody owns the background
        client = Client(job.client, resident, self.task, job.round, samples, held, received, memory, augment)
        client.idle = attack is not None and not attack.trains
        if job.kind in ("train", "evaluate"):  # what `finish` makes is sent to nobody
            client.private = self.privacy.fits(self.setting, client)
        return client

    def attack_in(self, job: Job) -> Adversary | None:
        """The attack, if this is the training of an attacker in one of its rounds."""
        if self.adversary is None or job.kind != "train" or not self.adversary.acts(job.client, job.round):
            return None
        return self.adversary

    def _loaded(self, resident: Resident, down: Message, memory: Memory) -> Bundle:
        """The resident model as the client has it, and its message as it reads it: a slice becomes a whole model."""
        parts = {n: f.part for n, f in self.wire.down.items() if f.part and n in down}
        received = Bundle(**dict(down.items()))
        whole = {n: _whole_model(resident, n, down) for n, part in parts.items() if resident.layout.is_whole(part)}
        resident.reset(whole.get("w"))
        if memory.personal_slice is not None:
            resident.params.put(self.method.kept, *memory.personal_slice)
        for name, part in parts.items():
            received[name] = whole[name] if name in whole else _completed(resident, name, part, down)
        if "w" in parts and "w" not in whole:
            resident.params.set(received.w)
        return received

    def _augment_for(self, job: Job) -> Augment | None:
        if self.augment is None:
            return None
        change, generator = self.augment, rng.torch_generator(self.config.seed, "augment", job.round, job.client)
        return lambda x, y: change.both(x, y, generator)

    def _anew_for(self, job: Job) -> Anew | None:
        if self.reader is None:
            return None
        return reading_anew(self.reader, self.federation, self.config.seed, job.round, job.client)

    # ---- measuring, where the data are

    def _measure(self, client: Client, job: Job, outcome: Outcome) -> None:
        """Confusion counts by name: a measure is a model and a test set."""
        data, classes, batch = self.federation.clients[client.id], self.federation.classes, self.config.eval.batch
        predictor = self.method.predictor(client) if set(job.measures) - {"global"} else None
        for measure in () if self.privacy.keeps_reports(self.setting) else job.measures:
            if measure in ON_GLOBAL_TEST:
                assert predictor is not None
                samples = self.stamped_test if measure == "stamped" else self.federation.global_test
                outcome.counts[measure] = confusion(predictor, samples, classes, batch, self.shared).numpy()
                continue
            if measure == "classes":
                assert predictor is not None
                samples, allowed = self.class_test(job.per_class), [None, client.classes]
                plain, masked = confusions(predictor, samples, classes, batch, allowed, self.shared)
                outcome.counts["classes"], outcome.counts["classes_masked"] = plain.numpy(), masked.numpy()
                continue
            model = self.method.global_predictor(client) if measure == "global" else predictor
            samples = data.val if measure == "val" else data.test
            if model is not None:
                outcome.counts[measure] = confusion(model, samples, classes, batch).numpy()

    @cached_property
    def stamped_test(self) -> Samples:
        """The global test set with the trigger of the attack."""
        assert self.adversary is not None
        return self.adversary.stamped(self.federation.global_test)

    def class_test(self, per_class: int) -> Samples:
        """The samples of the measure "classes": the global test set, or the same few samples of each class for all."""
        return self._class_test(per_class)[0]

    def class_counts(self, per_class: int) -> np.ndarray:
        """How many samples of every class those are."""
        return self._class_test(per_class)[1]

    def _class_test(self, per_class: int) -> tuple[Samples, np.ndarray]:
        if per_class not in self._class_tests:
            data = self.federation
            samples = data.class_sample(per_class, self.config.seed) if per_class else data.global_test
            counts = np.bincount(samples.y.cpu().numpy().ravel(), minlength=data.classes)[: data.classes]
            self._class_tests[per_class] = samples, counts
        return self._class_tests[per_class]


def _whole_model(resident: Resident, name: str, down: Message) -> Params:
    """A whole model in a message, not copied: work reads what it received and writes elsewhere."""
    own = resident.initial
    made = Params(own.layout, down[name], down.get(f"{name}.integers", own.integers[:0]))
    if (made.flat.shape, made.integers.shape) != (own.flat.shape, own.integers.shape):
        raise ValueError(f"'{name}' is a model of another layout")
    return made


def _completed(resident: Resident, name: str, part: Slice, down: Message) -> Params:
    """A slice in a message, with the client's own around it."""
    whole = resident.params.copy()
    whole.put(part, down[name], down.get(f"{name}.integers", whole.integers[:0]))
    return whole


def sentence(error: Exception) -> str:
    """What went wrong, in one line."""
    known = trouble(error)
    return (
        str(known)
        if known is not None
        else f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
    )


def unsendable(outcome: Outcome, error: Exception) -> Outcome:
    """The error outcome that is returned in place of one that cannot be encoded."""
    return Outcome(outcome.client, error=sentence(error), trace=traceback.format_exc())
