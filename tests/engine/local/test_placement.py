"""Which worker computes where, with devices that this machine need not have."""

import pytest
import torch

from polyfed.engine.local import placement
from polyfed.engine.local.placement import devices_of, placed, way_to_start
from polyfed.errors import UsageError

FOUR = [f"cuda:{number}" for number in range(4)]


@pytest.mark.parametrize(
    ("devices", "workers", "per_gpu", "expected"),
    [
        (["cpu"], 3, None, ["cpu"] * 3),
        (["cpu"], None, 4, ["cpu"] * 7),
        (["mps"], None, None, ["mps"]),
        (["cuda:1"], None, None, ["cuda:1"]),
        (["cuda:1"], None, 3, ["cuda:1"] * 3),
        (FOUR, None, None, FOUR),
        (FOUR, None, 2, FOUR * 2),
        (FOUR, 6, None, [*FOUR, "cuda:0", "cuda:1"]),
        (FOUR, 6, 2, [*FOUR, "cuda:0", "cuda:1"]),
        (FOUR, 2, None, FOUR[:2]),
    ],
)
def test_gpus_are_taken_in_turn_and_shared(monkeypatch, devices, workers, per_gpu, expected):
    monkeypatch.setattr(placement, "cores", lambda: 7)
    assert placed(devices, workers, per_gpu) == expected


def test_more_workers_than_devices_take_are_refused():
    with pytest.raises(UsageError, match=r"engine.workers=9 is more than engine.per_gpu=2 on 4 GPUs takes; .* most 8"):
        placed(FOUR, 9, 2)
    with pytest.raises(UsageError, match=r"engine.workers=2 is more than the device mps takes; give at most 1"):
        placed(["mps"], 2, None)


def test_cuda_is_every_gpu_and_a_number_is_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert devices_of("auto") == devices_of("cuda") == ["cuda:0", "cuda:1"]
    assert devices_of("cuda:1") == ["cuda:1"]
    assert devices_of("cpu") == ["cpu"]


@pytest.mark.parametrize(
    ("asked", "device", "system", "cuda_in_use", "way"),
    [
        ("auto", "cpu", "linux", False, "fork"),
        ("auto", "cpu", "linux", True, "spawn"),
        ("auto", "cuda:0", "linux", False, "spawn"),
        ("auto", "cpu", "darwin", False, "spawn"),
        ("auto", "mps", "darwin", False, "spawn"),
        ("auto", "cpu", "win32", False, "spawn"),
        ("fork", "cpu", "darwin", False, "fork"),
        ("spawn", "cpu", "linux", False, "spawn"),
    ],
)
def test_workers_are_forked_only_where_that_is_safe(asked, device, system, cuda_in_use, way):
    assert way_to_start(asked, [device], system, cuda_in_use) == way


@pytest.mark.parametrize(("device", "system"), [("cuda:0", "linux"), ("cpu", "win32")])
def test_a_fork_that_cannot_be_is_refused(device, system):
    with pytest.raises(UsageError, match=r"engine.start=fork: .* cannot .*; leave engine.start at auto"):
        way_to_start("fork", [device], system, False)
