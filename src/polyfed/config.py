"""One typed tree for an experiment; an unknown key is an error that names the nearest one."""

import importlib
import json
import math
import re
from collections import Counter
from collections.abc import Hashable
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, Field, ValidationError, field_validator, model_validator

from polyfed.errors import UsageError, did_you_mean
from polyfed.files import Place, read_plain
from polyfed.registry import Registry, Spec, Typed, contradiction, explain, in_words, registries

NAMED = ("method", "model", "data", "engine", "track")  # sections for which a bare value sets the name
BESIDE = ("track", "tag")  # keys of the record that change nothing of what is computed
FREE = ("device", "eval", "checkpoint", "init", "engine", "data.root", *BESIDE)  # what may change between sittings
FIXED = ("engine.server_threads",)  # what of it may not
Tree = dict[str, Any]
CLIENTS = 20  # by default, where the data do not say


def _spec(value: Any) -> Any:
    if not isinstance(value, Spec):
        raise ValueError("must be the name of something registered")
    return value


Chosen = Annotated[Any, AfterValidator(_spec)]  # typed by the room that registers it, which this one may not import


class Section(Typed):
    """A group of keys."""


class Train(Section):
    """How a client descends."""

    lr: float = Field(0.05, gt=0)
    momentum: float = Field(0.0, ge=0, lt=1)
    nesterov: bool = False
    weight_decay: float = Field(0.0, ge=0)
    batch: int = Field(32, ge=1)
    epochs: float = Field(1.0, gt=0)
    min_steps: int = Field(0, ge=0)  # a client's round has at least so many, however few batches it holds
    clip: float | None = Field(None, gt=0)
    schedule: Literal["constant", "cosine"] | dict[int, float] | tuple[float, int] = "constant"

    @field_validator("schedule", mode="before")
    @classmethod
    def _one_of_four(cls, value: Any) -> Any:
        pair = isinstance(value, list | tuple) and len(value) == 2
        if not (pair or isinstance(value, dict) or value in ("constant", "cosine")):
            raise ValueError("a schedule is constant, cosine, {round: lr, ...} or [factor, rounds]")
        return value

    @field_validator("schedule")
    @classmethod
    def _possible(cls, value: Any) -> Any:
        if isinstance(value, dict) and not all(k >= 1 and v > 0 for k, v in value.items()):
            raise ValueError("a schedule by round maps rounds from 1 on to learning rates above 0")
        if isinstance(value, tuple) and not (value[0] > 0 and value[1] >= 1):
            raise ValueError("a schedule [factor, rounds] needs a factor above 0 and at least 1 round")
        return value

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> "Train":
        if self.nesterov and self.momentum == 0:
            raise contradiction("train.nesterov needs train.momentum above 0")
        return self

    def steps(self, per_epoch: int) -> int:
        """The steps of a client's round, where an epoch has so many batches."""
        return max(round(self.epochs * per_epoch), self.min_steps)

    def lr_at(self, round: int, rounds: int) -> float:
        """The learning rate of a round (rounds count from 1)."""
        if isinstance(self.schedule, dict):
            reached = [r for r in self.schedule if r <= round]
            return self.schedule[max(reached)] if reached else self.lr
        if isinstance(self.schedule, tuple):
            return self.lr * self.schedule[0] ** ((round - 1) // self.schedule[1])
        if self.schedule == "cosine":
            return self.lr * 0.5 * (1 + math.cos(math.pi * min(round - 1, rounds) / max(rounds, 1)))
        return self.lr


class Split(Section):
    """Who holds what: long tail, then partition, then local train, validation and test."""

    partition: Chosen
    clients: int | None = Field(None, ge=1)  # None: as many as there are users or domains, else 20
    longtail: float = Field(1.0, ge=1)
    test: Literal["mirror", "none"] | Annotated[float, Field(gt=0, lt=1)] = 0.2
    val: float = Field(0.0, ge=0, lt=1)
    heldout: int = Field(0, ge=0)
    public: int = Field(0, ge=0)  # samples of the global test set that the server gets instead
    seed: int | None = None

    @model_validator(mode="after")
    def _somebody_trains(self) -> "Split":
        if self.clients is not None and self.heldout >= self.clients:
            raise contradiction(f"split.heldout={self.heldout} leaves none of the {self.clients} clients to train")
        if isinstance(self.test, float) and self.test + self.val >= 1:
            raise contradiction("split.test and split.val together leave nothing to train on")
        return self


class Eval(Section):
    """When and how results are measured."""

    every: int = Field(1, ge=1)
    batch: int = Field(128, ge=1)
    clients: int | Literal["all"] = "all"
    classes: bool | Literal["auto"] = "auto"

    @field_validator("clients")
    @classmethod
    def _some(cls, value: Any) -> Any:
        if value != "all" and value < 1:
            raise ValueError("give at least 1 client or 'all'")
        return value


class Gate(Section):
    """What an upload must pass."""

    norm: float = Field(1000.0, gt=0)  # times as long as what was sent, at most
    median: float = Field(30.0, gt=1)  # times as long as the median of accepted updates, at most


class Faults(Section):
    """What goes wrong on purpose."""

    dropout: float = Field(0.0, ge=0, lt=1)


class Checkpoint(Section):
    """How often the run is saved, and how many of the savings are kept."""

    every: int = Field(1, ge=1)
    keep: int = Field(2, ge=1)


class Config(Section):
    """One experiment, complete."""

    method: Chosen
    data: Chosen
    split: Split
    model: Chosen
    train: Train = Train()
    rounds: int = Field(20, ge=1)
    participation: float = Field(1.0, gt=0, le=1)
    sampling: Literal["fixed", "bernoulli"] = "fixed"
    weighting: Literal["sample", "uniform"] | None = None
    buffers: Literal["shared", "local"] | None = None
    seed: int = Field(0, ge=0)
    device: str = "auto"
    eval: Eval = Eval()
    gate: Gate = Gate()
    faults: Faults = Faults()
    checkpoint: Checkpoint = Checkpoint()
    init: str | None = None
    engine: Chosen
    track: Chosen
    tag: str = ""

    @field_validator("init", mode="before")
    @classmethod
    def _path_too(cls, value: Any) -> Any:
        return str(value) if isinstance(value, Path) else value

    @field_validator("device")
    @classmethod
    def _known_device(cls, value: str) -> str:
        if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", value):
            raise ValueError("device is auto, cpu, mps, cuda or cuda:N")
        if not _has(value):
            raise ValueError("this machine has no such device; auto takes the best there is")
        return value

    def dump(self) -> Tree:
        """The complete tree, from which the same experiment is made again."""
        tree: Tree = {}
        for key in type(self).model_fields:
            value = getattr(self, key)
            if isinstance(value, Spec):
                tree[key] = value.dump()
            elif isinstance(value, Split):
                partition = value.partition.dump()
                tree[key] = {"partition": partition.pop("name"), **_plain(value, skip="partition"), **partition}
            else:
                tree[key] = _plain(value) if isinstance(value, Section) else value
        return tree


def identity(tree: Tree) -> Tree:
    """A complete tree without the keys that change nothing of what is computed: two runs with the same are the same."""
    return {key: value for key, value in tree.items() if key not in BESIDE}


def deciding(tree: Tree, path: str = "") -> Tree:
    """The keys of a complete tree that decide a run's bits, dotted, with their values as JSON has them."""
    made: Tree = {}
    for key, value in tree.items():
        if (dotted := f"{path}{key}") in FREE:
            given = flatten({key: value}, path)
            made |= {fixed: given[fixed] for fixed in FIXED if fixed in given}
        else:
            nested = isinstance(value, dict) and value and _in_words(value)
            made |= deciding(value, f"{dotted}.") if nested else {dotted: json.loads(json.dumps(value))}
    return made


def differences(theirs: Tree, ours: Tree) -> list[str]:
    """What differs between two trees of deciding keys, in words."""
    keys = [key for key in {**theirs, **ours} if theirs.get(key) != ours.get(key)]
    return [f"{key} ({theirs.get(key)}, now {ours.get(key)})" for key in keys]


def _has(device: str) -> bool:
    """Whether this machine has a device."""
    import torch

    kind, _, number = device.partition(":")
    if kind == "cuda":
        return int(number or 0) < torch.cuda.device_count()
    return kind != "mps" or torch.backends.mps.is_available()


def _plain(section: Section, skip: str = "") -> Tree:
    values = section.model_dump(exclude={skip} if skip else None)
    return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}


DEFAULTS: Tree = {
    "method": "fedavg",
    "data": "digits",
    "split": {},
    "model": "mlp",
    "engine": "local",
    "track": "none",
}


def make_config(*trees: Tree) -> Config:
    """One checked Config from trees, the later ones over the earlier."""
    tree = named_sections(DEFAULTS)
    for layer in trees:
        tree = merge(tree, named_sections(layer))
    known = set(Config.model_fields)
    for name in NAMED:
        tree[name] = registry_of(name).build(tree[name], name)
    split = tree["split"]
    if isinstance(split, dict):
        tree["split"] = _split(split, tree["data"].natural_partition)
    try:
        return Config(**tree)
    except ValidationError as error:
        raise UsageError(_locate(error, known)) from None


def _split(section: Tree, natural: str) -> Split:
    """Keys that are not every split's belong to the chosen partition, or to the one natural to the data."""
    common = set(Split.model_fields)
    section = in_words(section, "split")
    own = {k: v for k, v in section.items() if k not in common}
    chosen = section.get("partition") or natural
    spec = registry_of("partition").get(chosen) if not isinstance(chosen, Spec) else type(chosen)
    unknown = [k for k in own if k not in spec.model_fields]
    if unknown:
        hint = did_you_mean(unknown[0], common | set(spec.model_fields))
        if "partition" not in section and natural == "users":
            hint = f"these data have users, who are its clients unless split.partition says otherwise; {hint}"
        raise UsageError(f"unknown key 'split.{unknown[0]}' for partition '{spec.name}'; {hint}")
    partition = registry_of("partition").build(chosen if isinstance(chosen, Spec) else {"name": chosen, **own}, "split")
    given = {k: v for k, v in section.items() if k in common}
    if given.get("clients") is None and not getattr(partition, "by", ""):
        given["clients"] = CLIENTS
    try:
        return Split(**{**given, "partition": partition})
    except ValidationError as error:
        raise UsageError(explain(error, "split", common, "split")) from None


def _locate(error: ValidationError, known: set[str]) -> str:
    """Explain a mistake in a fixed section, with that section's own keys as suggestions."""
    location = error.errors(include_url=False)[0]["loc"]
    section = Config.model_fields[str(location[0])].annotation if location and str(location[0]) in known else None
    if len(location) > 1 and isinstance(section, type) and issubclass(section, Section):
        return explain(error, "", set(section.model_fields), f"'{location[0]}'")
    return explain(error, "", known, "an experiment")


def registry_of(kind: str) -> Registry:
    """The registry of a kind, importing the room that owns it on first use."""
    homes = {
        "method": "polyfed.methods",
        "model": "polyfed.models",
        "data": "polyfed.data.sources",
        "partition": "polyfed.data.partition",
        "engine": "polyfed.engine",
        "track": "polyfed.measure.trackers",
    }
    if kind not in registries:
        importlib.import_module(homes[kind])
    return registries[kind]


def named_sections(tree: Tree, names: tuple[str, ...] = (*NAMED, "base")) -> Tree:
    """A bare value for method, model, data, engine or track becomes its name; so does one for a nested base."""
    made = {}
    for key, value in tree.items():
        if key in names and isinstance(value, str | list):  # a list is an axis of a comparison
            value = {"name": value}
        made[key] = named_sections(value, ("base",)) if isinstance(value, dict) else value
    return made


def merge(under: Tree, over: Tree) -> Tree:
    """Two trees as one; where both say something the second holds."""
    made = dict(under)
    for key, value in over.items():
        below = made.get(key)
        if isinstance(below, dict) and isinstance(value, dict) and (_in_words(below) or _in_words(value)):
            value = merge(below, value)
        made[key] = value
    return made


def _in_words(mapping: Tree) -> bool:
    """Whether this is a part of the tree; a mapping by numbers (a schedule) is one value, replaced as a whole."""
    return not mapping or any(isinstance(key, str) for key in mapping)


MERGE = "tag:yaml.org,2002:merge"
MOST_VALUES = 100_000  # of a file, each alias counted as what it stands for: a few lines can stand for billions
LONGEST = 500_000  # characters of a file: reading more would take longer than anybody waits


class _Loader(yaml.SafeLoader):
    """YAML that reads 1e-5 as a number, only true and false as truth values, and refuses a key said twice."""

    def get_single_node(self) -> yaml.Node | None:
        node = super().get_single_node()
        if node is not None and self._size(node, {}) > MOST_VALUES:
            raise yaml.YAMLError(f"it holds more than {MOST_VALUES} values")
        return node

    def _size(self, node: yaml.Node, known: dict[yaml.Node, int]) -> int:
        """How many values there are where every alias is written out; what contains itself is counted once."""
        if node not in known:
            known[node] = 1
            if isinstance(node, yaml.MappingNode):
                known[node] += sum(self._size(one, known) for pair in node.value for one in pair)
            elif isinstance(node, yaml.SequenceNode):
                known[node] += sum(self._size(one, known) for one in node.value)
        return known[node]

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        keys = [self.construct_object(k, deep=True) for k, _ in node.value if k.tag != MERGE]
        twice = [key for key, times in Counter(k for k in keys if isinstance(k, Hashable)).items() if times > 1]
        if twice:
            raise yaml.YAMLError(f"the key '{twice[0]}' is given twice")
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes every string that `_Loader`, or another reader of YAML, would take for something else."""

    def represent_str(self, text: str) -> yaml.ScalarNode:
        strange = any(break_ in text for break_ in "\x85\u2028\u2029")  # line breaks that PyYAML would not give back
        return self.represent_scalar("tag:yaml.org,2002:str", text, style='"' if strange else None)


_Dumper.add_representer(str, _Dumper.represent_str)

_Loader.yaml_implicit_resolvers = {
    first: [(tag, rule) for tag, rule in rules if not tag.endswith((":bool", ":float", ":timestamp", ":int"))]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, _rule, _first in (
    ("bool", r"(?:true|True|false|False)", "tTfF"),
    ("int", r"[-+]?[0-9]+", "-+0123456789"),
    (
        "float",
        r"(?:[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan)",
        "-+.0123456789",
    ),
):
    for _reader_or_writer in (_Loader, _Dumper):
        _reader_or_writer.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_rule + r"\Z"), list(_first))
_Loader.add_constructor("tag:yaml.org,2002:int", lambda loader, node: int(node.value))


def read_yaml(text: str, where: str) -> Any:
    """Plain data from YAML text; anything else is one sentence."""
    if len(text) > LONGEST:
        raise UsageError(f"{where} is longer than {LONGEST} characters")
    try:
        return _Loader(text).get_single_data()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" at line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UsageError(f"{where} is not valid YAML{line}: {problem}") from None
    except RecursionError:
        raise UsageError(f"{where} is nested too deeply") from None
    except (ValueError, TypeError, OverflowError) as error:  # a number of 5000 digits, a mapping as a key
        raise UsageError(f"{where} holds a value that cannot be read: {error}") from None


def read_config(path: Path | Place) -> Tree:
    """The tree of a config file."""
    try:
        text = read_plain(path).decode()
    except UnicodeDecodeError:
        raise UsageError(f"cannot read config file '{path}': it is not UTF-8 text") from None
    except OSError as error:
        raise UsageError(f"cannot read config file '{path}': {error.strerror or error}") from None
    tree = read_yaml(text, f"config file '{path}'")
    if not isinstance(tree, dict):
        held = "is empty" if tree is None else f"holds a {type(tree).__name__}"
        raise UsageError(f"config file '{path}' must hold keys and values, but it {held}")
    try:
        return unflatten(in_words(tree, str(path)))
    except RecursionError:
        raise UsageError(f"config file '{path}' holds a part that contains itself") from None


def unflatten(tree: Tree, names: tuple[str, ...] = (*NAMED, "base")) -> Tree:
    """`train.lr: 0.1` means the same as `train: {lr: 0.1}`, in a file as on the command line."""
    made: Tree = {}
    for key, value in tree.items():
        layer = unflatten(value, ("base",)) if isinstance(value, dict) and _in_words(value) else value
        for word in reversed(key.split(".") if isinstance(key, str) else [key]):
            layer = {word: layer}
        made = merge(named_sections(made, names), named_sections(layer, names))
    return made


def flatten(tree: Tree, above: str = "") -> Tree:
    """The leaves of a tree by their dotted keys."""
    made: Tree = {}
    for key, value in tree.items():
        place = f"{above}{key}"
        made |= flatten(value, f"{place}.") if isinstance(value, dict) and value else {place: value}
    return made


def read_assignments(words: list[str]) -> Tree:
    """The tree of `key=value` words from a command line."""
    tree: Tree = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_][\w-]*(\.[A-Za-z_][\w-]*)*", key):
            raise UsageError(f"'{word}' is not key=value, for example train.lr=0.1")
        tree = merge(named_sections(tree), named_sections(unflatten({key: read_yaml(text, f"the value of '{key}'")})))
    return tree


def write_yaml(tree: Tree) -> str:
    """A tree as YAML that reads back the same."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
