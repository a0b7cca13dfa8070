"""ResNet-50: its size, its parts, and the weights a user gives it."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import polyfed
from polyfed.errors import DataError
from polyfed.models import models
from polyfed.models.base import Net
from polyfed.rng import seeded
from polyfed.use.export import read

BACK = {"trunk.conv.": "conv1.", "trunk.norm.": "bn1.", "trunk.stage": "layer", "last.stage": "layer", "head.": "fc."}
BACK |= {".norm": ".bn", "shortcut.conv.": "downsample.0.", "shortcut.bn.": "downsample.1."}


def build(classes: int = 7, seed: int = 0, **keys: object) -> Net:
    with seeded(seed, "init"):
        return models.build({"name": "resnet50", **keys}, "model").build((3, 64, 64), classes)


def theirs(name: str) -> str:
    """What torchvision calls a tensor."""
    for ours, their in BACK.items():
        name = name.replace(ours, their)
    return name


@pytest.fixture
def given(tmp_path: Path) -> Path:
    """A small network of a thousand classes, under torchvision's names."""
    net = build(1000, seed=1, width=0.05)
    save_file({theirs(k): v.contiguous() for k, v in net.state_dict().items()}, tmp_path / "given.safetensors")
    return tmp_path / "given.safetensors"


def test_it_has_the_published_number_of_parameters() -> None:
    assert sum(p.numel() for p in build(1000).parameters()) == 25_557_032


def test_torchvisions_names_are_taken_and_the_head_stays_fresh(given: Path) -> None:
    source, net = build(1000, seed=1, width=0.05), build(width=0.05, weights=str(given))
    names = {theirs(name) for name in source.state_dict()}
    assert {"layer1.0.downsample.1.running_var", "layer4.2.conv3.weight", "bn1.weight", "fc.bias"} <= names
    for name, tensor in net.state_dict().items():
        if not name.startswith("head."):
            assert torch.equal(tensor, source.state_dict()[name])
    assert torch.equal(net.head.weight, build(width=0.05).head.weight)
    whole = build(1000, width=0.05, weights=str(given))
    assert torch.equal(whole.head.weight, source.head.weight)
    x = torch.randn(2, 3, 64, 64)
    assert torch.equal(net.eval()(x), net.head(net.last(net.trunk(x))))


def test_a_file_that_does_not_fit_is_one_sentence(given: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"model.weights: .* has the shape \[.*\] where \[.*\] was expected"):
        build(width=0.1, weights=str(given))
    save_file({"nonsense": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(DataError, match=r"model.weights: .*other.safetensors' holds 'nonsense', and so is not a"):
        build(width=0.05, weights=str(tmp_path / "other.safetensors"))
    (tmp_path / "torn.safetensors").write_bytes(given.read_bytes()[:100])
    for name in ("torn", "missing"):
        with pytest.raises(DataError, match=r"model.weights: cannot read tensors from"):
            build(width=0.05, weights=str(tmp_path / f"{name}.safetensors"))


@pytest.mark.slow
def test_an_export_needs_the_users_weights_no_more(given: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (12, 32, 32, 3), np.uint8)
    model = {"name": "resnet50", "width": 0.05, "weights": str(given)}
    keys = {"model": model, "split.clients": 2, "rounds": 1, "engine.workers": 0, "train.batch": 4}
    result = polyfed.run(keys, data=(x, np.arange(12) % 2), out=tmp_path / "run")
    data = {"data": (x, np.arange(12) % 2)}
    expected = result.global_model(**data).logits(x)
    out = result.export("safetensors", out=tmp_path / "export", **data)
    given.unlink()
    torch.testing.assert_close(read(out).logits(x), expected)
    assert not [file.name for file in out.iterdir() if str(given).encode() in file.read_bytes()]
