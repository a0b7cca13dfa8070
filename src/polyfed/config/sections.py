"""The typed sections of an experiment, with the range of every key."""

import math
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from polyfed.config.trees import Tree
from polyfed.registry import Spec, Typed, contradiction


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
    ga: int | Literal["auto", "all"] = "auto"  # samples of the global test set after every round but the last
    oracle: bool = False  # whether the mean of all personal slices is measured too, which no server ever has

    @field_validator("clients")
    @classmethod
    def _some(cls, value: Any) -> Any:
        if value != "all" and value < 1:
            raise ValueError("give at least 1 client or 'all'")
        return value

    @field_validator("ga")
    @classmethod
    def _some_samples(cls, value: Any) -> Any:
        if isinstance(value, int) and value < 1:
            raise ValueError("give at least 1 sample, 'all' or 'auto'")
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
    attack: Chosen
    defence: Chosen
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
    privacy: Chosen
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

    @model_validator(mode="after")
    def _defence_can_work(self) -> "Config":
        if self.defence.name != "none" and getattr(self.engine, "secagg", False):
            raise contradiction(f"defence={self.defence.name} must see every upload, and secure sums hide them")
        if self.defence.name != "none" and self.privacy.name == "user":
            raise contradiction("privacy=user: the accountant knows only the clipped mean: leave out defence")
        if self.defence.name == "fltrust" and not self.split.public:
            raise contradiction(
                "defence=fltrust trains on samples of the server's own, taken out of the global test set: "
                "set split.public=100"
            )
        return self

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
