"""How workers begin and where each computes: pure functions of the config and of what the machine has."""

import sys
from collections.abc import Sequence
from typing import Literal

import torch

from polyfed.engine.work import device_of
from polyfed.errors import UsageError
from polyfed.parts.chunks import cores

Start = Literal["auto", "fork", "spawn"]


def devices_of(name: str) -> list[str]:
    """Every device that a config's `device` stands for: `cuda` is all GPUs, `cuda:1` is one of them."""
    device = device_of(name)
    if device.type == "cuda" and device.index is None:
        return [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    return [str(device)]


def placed(devices: Sequence[str], workers: int | None, per_gpu: int | None) -> list[str]:
    """The device of each worker: GPUs are taken in turn, and a device of Apple's takes one worker."""
    kind = devices[0].partition(":")[0]
    most = {"cuda": len(devices) * per_gpu if per_gpu else None, "mps": 1}.get(kind)
    usual = {"cuda": len(devices) * (per_gpu or 1), "mps": 1}.get(kind) or cores()
    count = usual if workers is None else workers
    if most is not None and count > most:
        why = f"engine.per_gpu={per_gpu} on {len(devices)} GPUs" if kind == "cuda" else f"the device {kind}"
        raise UsageError(f"engine.workers={count} is more than {why} takes; give at most {most}")
    return [devices[number % len(devices)] for number in range(count)]


def way_to_start(asked: Start, devices: Sequence[str], system: str, cuda_in_use: bool) -> Literal["fork", "spawn"]:
    """Forking is safe on Linux, in a process that uses no GPU; anywhere else workers are spawned."""
    gpu = cuda_in_use or any(device != "cpu" for device in devices)
    if asked == "fork" and gpu:
        raise UsageError("engine.start=fork: a process that uses a GPU cannot be forked; leave engine.start at auto")
    if asked == "fork" and system == "win32":
        raise UsageError("engine.start=fork: Windows cannot fork; leave engine.start at auto")
    if asked != "auto":
        return asked
    return "fork" if system == "linux" and not gpu else "spawn"


def way_here(asked: Start, devices: Sequence[str]) -> Literal["fork", "spawn"]:
    """How workers begin on this machine, in this process."""
    return way_to_start(asked, devices, sys.platform, torch.cuda.is_initialized())
