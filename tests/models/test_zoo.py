"""Every registered network keeps the promises of models/base.py."""

import pickle
from math import prod

import pytest
import torch
from torch import nn

from polyfed.errors import UsageError
from polyfed.models import Net, bn_modules, models
from polyfed.models.blocks import BasicBlock, Bottleneck, group_norm
from polyfed.rng import seeded

torch.set_num_threads(1)

OURS = [name for name in models.names() if name != "own" and ":" not in name]
OTHERS = {"text-bag", "text-transformer", "table-mlp"}  # test_text_and_tables.py
ZOO = [name for name in OURS if not models.get(name).of_pixels and name not in OTHERS]  # and test_lraspp.py
PLAIN = ["mlp", "lenet", "cnn", "cnn5", "tfcnn", "vgg8", "vgg11", "vgg16"]
RESNETS = ["resnet8", "resnet18", "resnet20", "resnet32", "resnet50", "resnet56"]
WITH_BN = [name for name in ZOO if models.get(name).norm == "bn"]


def spec(name, **values):
    """A model at a quarter of its width (resnet8: of its scaling)."""
    return models.build({"name": name, "width": 0.25, **values}, "model")


def shape_for(name, side=None):
    if name.startswith("har-cnn"):
        return (9, side or 40)
    return (3, side or 32, side or 32)


def small(name, classes=5, side=None, **values):
    with seeded(0, "init"):
        return spec(name, **values).build(shape_for(name, side), classes)


def batch(name, n=3, side=None):
    with seeded(1, "batch"):
        return torch.randn(n, *shape_for(name, side))


def test_the_zoo_is_complete():
    expected = {f"{name}{norm}" for name in PLAIN for norm in ("", "-bn", "-gn")}
    expected |= {f"{name}{norm}" for name in [*RESNETS, "har-cnn"] for norm in ("", "-gn")}
    expected |= {"conv4", "conv4-bn", "conv4-gn"}
    assert set(ZOO) == expected
    assert set(OURS) - set(ZOO) == {"lraspp", "lraspp-gn", "lraspp-small", "lraspp-small-gn"} | OTHERS


@pytest.mark.parametrize("name", ZOO)
def test_promises(name):
    net, x = small(name), batch(name)
    assert isinstance(net, Net)
    logits = net(x)
    assert logits.shape == (3, 5)
    logits.sum().backward()
    assert all(p.grad is not None for p in net.parameters())  # nothing is built that is not used

    net.eval()
    rows = net.features(x)
    assert type(net.head) is nn.Linear
    assert rows.shape == (3, net.head.in_features)
    assert torch.equal(net(x), net.head(net.last(net.trunk(x))))
    assert net(x[:1]).shape == (1, 5)

    parts = [key.split(".")[0] for key, _ in net.named_parameters()]
    assert list(dict.fromkeys(parts)) == ["trunk", "last", "head"]
    assert parts == sorted(parts, key=["trunk", "last", "head"].index)


@pytest.mark.parametrize("name", ZOO)
def test_bavd_listens_where_a_relu_ends(name):
    net, heard = small(name), {}
    assert net.listens
    for place in net.listens:
        module = net.get_submodule(place)
        assert isinstance(module, nn.ReLU | BasicBlock | Bottleneck)
        module.register_forward_hook(lambda _m, _i, out, place=place: heard.setdefault(place, []).append(out))
    net(batch(name))
    assert set(heard) == set(net.listens)
    assert all(len(outs) == 1 and outs[0].min() >= 0 for outs in heard.values())
    assert not any(relu.inplace for relu in net.modules() if isinstance(relu, nn.ReLU))


@pytest.mark.parametrize(
    ("name", "places"),
    [
        ("mlp", ["trunk.relu1", "last.relu2"]),
        ("cnn", ["trunk.relu1", "last.relu2"]),
        ("resnet8", ["trunk.stage1.0", "trunk.stage2.0", "last.stage3.0"]),
        ("resnet32", ["trunk.stage1.4", "trunk.stage2.4", "last.stage3.4"]),
        ("vgg11", [f"trunk.stage{i}.relu{n}" for i, n in ((1, 1), (2, 1), (3, 2), (4, 2))] + ["last.stage5.relu2"]),
    ],
)
def test_where_bavd_listens(name, places):
    assert list(small(name).listens) == places


@pytest.mark.parametrize("name", ZOO)
def test_norms(name):
    net, norm = small(name), models.get(name).norm
    groups = [m for m in net.modules() if isinstance(m, nn.GroupNorm)]
    assert (len(bn_modules(net)) > 0) == (norm == "bn")
    assert (len(groups) > 0) == (norm == "gn")
    assert ("bn_running_stats" in models.get(name).model_fields) == (norm == "bn")


@pytest.mark.parametrize("name", WITH_BN)
def test_bn_without_running_statistics(name):
    net = small(name, bn_running_stats=False)
    assert bn_modules(net)
    assert not list(net.buffers())
    x = batch(name)
    net.train()
    trained = net(x)
    net.eval()
    assert torch.equal(net(x), trained)  # the batch is all it looks at
    assert net(x[:1]).isfinite().all()
    assert len(bn_modules(net)) == len(bn_modules(small(name)))


@pytest.mark.parametrize("name", ["mlp-bn", "resnet8", "resnet18", "resnet20-gn", "mlp-gn"])
def test_a_single_value_per_channel_does_not_crash(name):
    values = {} if name.endswith("-gn") else {"bn_running_stats": False}
    net = spec(name, **values).build((1, 1, 1), 2)
    for mode in (True, False):
        out = net.train(mode)(torch.randn(1, 1, 1, 1))
        out.sum().backward()
        assert out.isfinite().all()


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("name", ZOO)
def test_smallest_is_exact(name):
    model = spec(name)
    least = model.smallest(shape_for(name))
    net = small(name, side=least)
    assert net(batch(name, side=least)).shape == (3, 5)
    with pytest.raises(UsageError):
        model.build(shape_for(name, 32)[:1] + (least - 1,) * (len(shape_for(name)) - 1), 5)
    if least > 1:  # not only refused: without the check it fails
        shape = shape_for(name, least - 1)
        with pytest.raises((RuntimeError, ValueError)):
            model.net(shape, 5)(batch(name, side=least - 1))


def test_smallest_by_hand():
    by_hand = {"lenet": 16, "cnn": 16, "cnn5": 16, "conv4": 16, "tfcnn": 8, "vgg8": 32, "har-cnn": 28, "mlp": 1}
    assert {name: spec(name).smallest((3, 32, 32)) for name in by_hand} == by_hand


@pytest.mark.parametrize("name", [n for n in ZOO if not n.startswith("har")])
def test_images_need_not_be_square(name):
    least = max(spec(name).smallest((1, 8, 8)), 4)
    net = spec(name).build((1, least, least + 5), 3)
    assert net(torch.randn(2, 1, least, least + 5)).shape == (2, 3)


@pytest.mark.parametrize("name", ZOO)
def test_same_seed_same_net_and_back_again(name):
    one, two = small(name), small(name)
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True))
    model = spec(name)
    assert models.build(model.dump(), "model") == model
    assert pickle.loads(pickle.dumps(model)) == model
    assert type(pickle.loads(pickle.dumps(model))) is models.get(name)
    assert models.get(name).paper
    assert models.get(name).__doc__


@pytest.mark.parametrize("name", ZOO)
def test_head_bias(name):
    map_nets = ("mlp", "lenet", "tfcnn", "vgg", "resnet20", "resnet56")
    assert (small(name).head.bias is None) == name.startswith(map_nets)
    assert small(name, bias=True).head.bias is not None
    assert small(name, bias=False).head.bias is None


@pytest.mark.parametrize("channels", range(1, 70))
def test_groups(channels):
    norm = group_norm(channels)
    assert channels % norm.num_groups == 0
    assert norm.num_groups <= 8
    assert channels // norm.num_groups >= min(2, channels)


def test_conv4_has_batchnorm_under_both_names():
    one, two = small("conv4"), small("conv4-bn")
    assert list(one.state_dict()) == list(two.state_dict())
    assert len(bn_modules(one)) == 4


def test_a_width_is_never_less_than_two():
    net = models.build({"name": "mlp-gn", "width": 1e-6}, "model").build((4,), 2)
    assert net(torch.randn(1, 4)).isfinite().all()


@pytest.mark.parametrize("shape", [(4,), (4, 6), (1, 5, 7), (2, 3, 4, 5)])
def test_mlp_takes_anything(shape):
    net = spec("mlp").build(shape, 2)
    assert net.trunk.fc1.in_features == prod(shape)
    assert net(torch.randn(3, *shape)).shape == (3, 2)
