"""Jobs and outcomes as Flower's records: arrays, numbers and plain values; nothing of ours is pickled."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from polyfed.engine.work import Job, Outcome
from polyfed.message import Message

CARRIED = ("float32", "int64")  # what a message may hold; anything else is not ours
NONE = -1  # stands for no version: a record cannot hold None
Plain = dict[str, Any]


def job_to_records(job: Job, order: Mapping[str, Any]) -> RecordDict:
    """A job, and beside it what the worker must know to do it."""
    about: Plain = {
        "kind": job.kind,
        "client": job.client,
        "round": job.round,
        "version": NONE if job.version is None else job.version,
        "measures": list(job.measures),
        "per_class": job.per_class,
    }
    return RecordDict({"job": ConfigRecord(about), "order": ConfigRecord(dict(order)), **_message("down", job.down)})


def job_from_records(records: RecordDict) -> tuple[Job, dict[str, Any]]:
    """The inverse."""
    about: Plain = dict(records.config_records["job"])
    version = None if about["version"] == NONE else about["version"]
    down, measures = _bundle(records, "down"), tuple(about["measures"])
    about = {key: about[key] for key in ("kind", "client", "round", "per_class")}
    job = Job(**about, down=down, version=version, measures=measures)
    return job, dict(records.config_records["order"])


def outcome_to_records(outcome: Outcome) -> RecordDict:
    """An outcome without its memory, which stays where it was made."""
    about: Plain = {"client": outcome.client, "digest": outcome.digest, "error": outcome.error, "trace": outcome.trace}
    return RecordDict(
        {
            "outcome": ConfigRecord(about),
            "numbers": ConfigRecord({name: _plain(value) for name, value in outcome.numbers.items()}),
            "counts": ArrayRecord({name: Array(np.asarray(table)) for name, table in outcome.counts.items()}),
            **_message("up", outcome.up),
        }
    )


def outcome_from_records(records: RecordDict) -> Outcome:
    """The inverse; raises ValueError, KeyError or TypeError for anything that is not an outcome."""
    about: Plain = dict(records.config_records["outcome"])
    return Outcome(
        int(about["client"]),
        up=_bundle(records, "up"),
        digest=str(about["digest"]),
        numbers=dict(records.config_records["numbers"]),
        counts={name: array.numpy() for name, array in records.array_records["counts"].items()},
        error=str(about["error"]),
        trace=str(about["trace"]),
    )


def _message(name: str, message: Message) -> dict[str, ArrayRecord | MetricRecord]:
    arrays = {key: Array(tensor.detach().cpu().contiguous().numpy()) for key, tensor in message.tensors().items()}
    return {name: ArrayRecord(arrays), f"{name}.numbers": MetricRecord(dict(message.numbers()))}


def _bundle(records: RecordDict, name: str) -> Message:
    message = Message()
    for key, array in records.array_records[name].items():
        message[key] = _tensor(key, array.numpy())
    for key, number in records.metric_records[f"{name}.numbers"].items():
        if isinstance(number, list):
            raise ValueError(f"'{key}' is a list, not a number")
        message[key] = number
    return message


def _tensor(name: str, array: np.ndarray) -> Tensor:
    if str(array.dtype) not in CARRIED:
        raise ValueError(f"'{name}' holds {array.dtype}; a message carries {' and '.join(CARRIED)}")
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _plain(value: Any) -> Any:
    """A number of the report as a record takes it."""
    if isinstance(value, np.generic):
        return value.item()
    return list(value) if isinstance(value, tuple) else value
