"""A network that does not fit gets one sentence: what, what was expected, what to do."""

import pytest

from polyfed.errors import UsageError
from polyfed.models import models


def refused(name, shape, classes=10, **values):
    with pytest.raises(UsageError) as caught:
        models.build({"name": name, **values}, "model").build(shape, classes)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_too_small():
    assert refused("lenet", (1, 8, 8)) == (
        "model 'lenet' needs images of at least 16x16 pixels, the data are 8x8; set data.size=16 or model=mlp"
    )
    assert "32x32 pixels, the data are 64x31; set data.size=32" in refused("vgg11-gn", (3, 64, 31))
    assert refused("har-cnn", (9, 20)) == (
        "model 'har-cnn' needs sequences of at least 28 steps, the data have 20; give longer windows or model=mlp"
    )


def test_another_kind_of_input():
    assert refused("cnn-bn", (561,)) == (
        "model 'cnn-bn' needs images (channels, height, width), the data have shape (561,); set model=mlp"
    )
    assert refused("resnet8", (9, 128)).endswith("the data have shape (9, 128); set model=har-cnn or model=mlp")
    assert "needs sequences (channels, time)" in refused("har-cnn-gn", (3, 32, 32))
    assert refused("cnn", (3, 8, 32, 32)).endswith("set model=mlp")


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet8", "vgg8", "har-cnn"])
def test_no_classes_or_nothing_in_a_sample(name):
    shape = (9, 128) if name == "har-cnn" else (3, 32, 32)
    assert refused(name, shape, classes=0) == f"model '{name}' needs at least one class, the data have 0"
    assert "at least one class" in refused(name, shape, classes=-1)
    assert "not empty" in refused(name, (0, *shape[1:]))
    assert "not empty" in refused(name, ())


@pytest.mark.parametrize("width", [0, -1, "wide", float("inf"), float("nan")])
def test_bad_width(width):
    assert refused("cnn", (1, 28, 28), width=width).startswith("'model.width': ")


def test_unknown_names_and_keys():
    with pytest.raises(UsageError, match=r"unknown model 'resnet8-bn'; did you mean 'resnet8'\?|resnet8-gn"):
        models.get("resnet8-bn")
    assert "'model.stem'" in refused("resnet18", (3, 32, 32), stem="tall")
    assert "unknown key 'model.bn_running_stats'" in refused("mlp", (4,), bn_running_stats=False)
    assert "unknown key 'model.bn_running_stats'" in refused("conv4-gn", (4,), bn_running_stats=False)
    assert "unknown key 'model.hidden_fc'" in refused("cnn", (4,), hidden_fc=False)
    assert "'model.key' must be given" in refused("own", (4,))
