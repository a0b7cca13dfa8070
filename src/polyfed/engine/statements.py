"""What a client may state in its hello and in its reports; anything else, or a contradiction, excludes the client."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from polyfed.engine.work import Job, Outcome
from polyfed.methods.sites import Known

MOST = 10**9  # samples one client can hold
TESTED = {"personal": "test", "global": "test", "selected": "test", "val": "val"}  # which samples a measure looks at
FALSE = "false report"  # how a client's work fails that says what cannot be
LONG = 10_000  # characters of an error that are kept

Samples = Annotated[int, Field(ge=0, le=MOST)]
Counted = Annotated[int, Field(ge=0, le=10**15)]  # samples of a class, or pixels, of which an image has many
Seconds = Annotated[float, Field(ge=0, le=1e9)]
Digest = Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]
Word = Annotated[str, Field(max_length=200)]


class _Statement(BaseModel):
    """Named values of fixed types; other names are refused, and no value is converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Hello(_Statement):
    """The name, the sizes and the digests of the initial model; a remote site also describes its data."""

    name: Word
    n: Samples
    tests: Samples
    vals: Samples = 0
    shape: Annotated[list[Annotated[int, Field(ge=1, le=10**6)]], Field(max_length=8)]
    params: Digest
    layout: Digest
    seconds: Seconds = 0.0
    site: Word = ""
    disclosed: Literal["n", "counts"] = "counts"
    classes: Annotated[list[Word], Field(max_length=10**6)] = []
    kind: Literal["uint8", "int64", "float32"] = "float32"
    levels: list[Annotated[int, Field(ge=0, le=10**15)]] = []
    versions: Annotated[list[Word], Field(max_length=20)] = []
    masks: bool = False
    columns: Annotated[list[Word], Field(max_length=10**6)] = []
    counts: list[Counted] = []
    test_counts: list[Counted] = []
    val_counts: list[Counted] = []

    @field_validator("levels")
    @classmethod
    def _of_bytes(cls, value: list[int]) -> list[int]:
        if len(value) % 256:
            raise ValueError("levels are told for 256 values a channel")
        return value


class Report(_Statement):
    """The numbers that come back with every piece of work, beside confusion counts."""

    seconds: Seconds = 0.0
    loss: Annotated[float, Field(allow_inf_nan=True)] = math.nan
    steps: Samples = 0
    samples: Annotated[int, Field(ge=0, le=10**15)] = 0
    skipped_batches: Samples = 0
    eval_mode_steps: Samples = 0


@dataclass
class StatedSamples:
    """How many test and validation samples a client stated, and of each class unless it keeps that for itself."""

    sizes: dict[str, int]
    counts: dict[str, np.ndarray] = field(default_factory=dict)


def fault_of_statement(kind: type[_Statement], said: Mapping[str, Any]) -> str:
    """What is wrong with a statement; empty if nothing is."""
    try:
        kind.model_validate(dict(said))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        key = ".".join(map(str, first["loc"])) or "it"
        return f"{key[:80]} is {first['input']!r:.60}: {first['msg'][:1].lower()}{first['msg'][1:200]}"
    return ""


def fault_of_hello(outcome: Outcome, classes: int, origin: Mapping[str, str], pixels: int = 0) -> str:
    """What is wrong with a hello, empty if nothing is; `pixels` are those of a mask, or 0: one label per sample."""
    said, counts = outcome.numbers, outcome.counts
    fault = fault_of_statement(Hello, said)
    if fault:
        return fault
    if {key: said[key] for key in origin} != origin:
        return "it starts from another model than the server: are the versions the same?"
    sizes = {"train": said["n"], "test": said["tests"], "val": said.get("vals", 0)}
    for name, table in counts.items():
        if name not in sizes:
            return f"it was not asked for counts of {name[:80]!r}"
        fault = _fault_of_counts(f"the class counts of its {name} samples", table, (classes,), sizes[name], pixels)
        if fault:
            return fault
    return ""


def stated_samples(outcome: Outcome) -> StatedSamples:
    """The test and validation samples that a valid hello states."""
    sizes = {"test": outcome.numbers["tests"], "val": outcome.numbers.get("vals", 0)}
    return StatedSamples(sizes, {name: outcome.counts[name] for name in sizes if name in outcome.counts})


def known_of(outcome: Outcome) -> Known:
    """A valid hello, as the server keeps it."""
    said, counts = outcome.numbers, outcome.counts.get("train")
    return Known(outcome.client, said["name"], said["n"], None if counts is None else tuple(counts.tolist()))


def fault_of_report(
    outcome: Outcome, job: Job, classes: int, own: StatedSamples, everybody: np.ndarray, pixels: int = 0
) -> str:
    """What is wrong with a report, empty if nothing is; `everybody` are the class counts of the global test set."""
    fault = fault_of_statement(Report, outcome.numbers)
    if fault:
        return fault
    if outcome.digest and len(outcome.digest) != 64:
        return "the digest of its memory is none"
    for measure, table in outcome.counts.items():
        asked = "classes" if measure == "classes_masked" else measure
        if asked not in job.measures:
            return f"it was not asked for {measure[:80]!r}"
        which = TESTED.get(asked, "")
        total, rows = (own.sizes[which], own.counts.get(which)) if which else (int(everybody.sum()), everybody)
        what = f"the counts of '{measure}'"
        fault = _fault_of_counts(what, table, (classes, classes), total, pixels if which else 0)
        if not fault and rows is not None and not np.array_equal(table.sum(1), rows):
            fault = f"{what} are of other samples than it told of"
        if fault:
            return fault
    return ""


def _fault_of_counts(what: str, table: Any, shape: tuple[int, ...], total: int, pixels: int) -> str:
    """Labels of whole samples add up to them; of a mask's pixels some may have no label."""
    total *= pixels or 1
    if not isinstance(table, np.ndarray) or not np.issubdtype(table.dtype, np.integer):
        return f"{what} are not integers"
    if table.shape != shape:
        return f"{what} have shape {table.shape}, expected {shape}"
    if table.size and (table.min() < 0 or table.max() > total):
        return f"{what} are not all between 0 and {total}"
    if pixels and int(table.sum()) > total:
        return f"{what} add up to {int(table.sum())}, more than the {total} pixels it told of"
    if not pixels and int(table.sum()) != total:
        return f"{what} add up to {int(table.sum())}, not to the {total} it told of"
    return ""


def bounded(text: str) -> str:
    """An error message from elsewhere, limited to printable characters and to a length that a log can hold."""
    return "".join(c for c in text[:LONG] if c.isprintable() or c in "\n\t")
