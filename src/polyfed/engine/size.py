"""Whether an experiment fits into this machine's memory, asked before anything large is made."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from polyfed.errors import UsageError
from polyfed.models.base import Model
from polyfed.models.zoo import Zoo

COPIES = 4  # of a model at the least: its weights, their gradients, where it started, the server's
NUMBER = 4  # bytes of a weight
PROCESS = 5e7  # bytes a process of ours writes to that it shared with its parent before, about
COUNT = 8  # bytes of a count
CGROUPS = {
    "/sys/fs/cgroup/memory.max": "/sys/fs/cgroup/memory.current",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes": "/sys/fs/cgroup/memory/memory.usage_in_bytes",
}  # what a container may use, and what it uses


def need_memory(models: Sequence[Model], shape: tuple[int, ...], classes: int, clients: int) -> None:
    """Refuse models that are in memory together, or tables of counts, that cannot fit."""
    most = memory()
    tables = COUNT * classes**2 * (clients + 1)
    if tables > most:
        need = f"{classes} classes need {in_bytes(tables)} for tables of counts"
        raise UsageError(f"{need}; there are {in_bytes(most)} here")
    weights = COPIES * NUMBER * _weights(models, shape, classes)
    if weights > most:
        asked = "more than can be counted" if weights == float("inf") else in_bytes(weights)
        names = " and ".join(f"'{model.name}'" for model in models)
        who, it = (f"model {names} needs", "it") if len(models) == 1 else (f"models {names} need", "them")
        raise UsageError(f"{who} {asked} of memory; there are {in_bytes(most)} here: make {it} smaller")


class _Unfilled(TorchFunctionMode):
    """Skip the initialisation of weights: they have no memory here, and torch would load code for seconds."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", "") == nn.init.__name__:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def _weights(models: Sequence[Model], shape: tuple[int, ...], classes: int) -> float:
    """How many numbers networks have, without making any; a user's own module cannot be asked."""
    try:
        with torch.device("meta"), _Unfilled():
            built = [model.made(shape, classes) for model in models if isinstance(model, Zoo)]
            return sum(value.numel() for net in built for value in net.state_dict().values())
    except (RuntimeError, OverflowError, TypeError, ValueError):  # sizes beyond what torch can say
        return float("inf")


def memory() -> float:
    """Bytes this process could have at most: the machine's, or its container's."""
    limits = [float("inf")]
    try:
        rows = _kilobytes(Path("/proc/meminfo"))
        limits.append(rows["MemTotal"] + rows["SwapTotal"])
    except (OSError, KeyError, ValueError):
        pass  # another system: it says no when it is asked
    for file in CGROUPS:
        try:
            limits.append(float(Path(file).read_text()))
        except (OSError, ValueError):
            continue
    return min(limits)


def available() -> float:
    """Bytes that can still be had without swapping: the machine's, or its container's."""
    limits = [memory()]
    with contextlib.suppress(OSError, KeyError, ValueError):  # another system: it says no when it is asked
        limits.append(_kilobytes(Path("/proc/meminfo"))["MemAvailable"])
    for most, used in CGROUPS.items():
        with contextlib.suppress(OSError, ValueError):
            limits.append(float(Path(most).read_text()) - float(Path(used).read_text()) + _reclaimable(Path(used)))
    return min(limits)


def _reclaimable(used: Path) -> float:
    """Bytes of a container's memory that only cache files, and can be reclaimed."""
    rows = (line.split() for line in used.with_name("memory.stat").read_text().splitlines())
    return next((float(count) for name, count in rows if name == "inactive_file"), 0.0)


def held(pid: int) -> float:
    """Bytes that only this process uses, and its part of shared memory; 0 where the system does not say."""
    try:
        rows = _kilobytes(Path(f"/proc/{pid}/smaps_rollup"))
        return sum(rows[name] for name in ("Private_Clean", "Private_Dirty", "Pss_Shmem"))
    except (OSError, KeyError, ValueError):
        return 0.0


def _kilobytes(file: Path) -> dict[str, float]:
    """The rows of a file of the kernel that count kB, in bytes."""
    rows = (line.split() for line in file.read_text().splitlines())
    return {row[0].rstrip(":"): 1024.0 * int(row[1]) for row in rows if row[-1] == "kB"}


def cell_memory(models: Sequence[Model], shape: tuple[int, ...], classes: int, workers: int) -> float:
    """The fewest bytes that a run takes beside the data, which its processes share with this one."""
    return (1 + workers) * (PROCESS + COPIES * NUMBER * _weights(models, shape, classes))


def in_bytes(count: float) -> str:
    """A number of bytes for people."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.0f} TB"
