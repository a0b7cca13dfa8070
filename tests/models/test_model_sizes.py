"""The networks are the papers': parameter counts, feature widths and parts by hand."""

from math import sqrt

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from polyfed.data.samples import scaled
from polyfed.models import models
from polyfed.models.blocks import BasicBlock, MeanOverPixels, Subsample
from polyfed.params import Layout, bind
from polyfed.rng import seeded

torch.set_num_threads(1)


def build(name, shape=(3, 32, 32), classes=10, **values):
    with seeded(0, "init"):
        return models.build({"name": name, **values}, "model").build(shape, classes)


def count(module):
    return sum(p.numel() for p in module.parameters())


def conv(k, into, out, bias=True):
    return k * k * into * out + bias * out


def fc(into, out, bias=True):
    return into * out + bias * out


def norm(channels):
    return 2 * channels


def block(into, out, projected):
    """Two convolutions and norms; a 1x1 convolution and a norm if the shortcut is projected."""
    size = conv(3, into, out, False) + conv(3, out, out, False) + 2 * norm(out)
    return size + projected * (conv(1, into, out, False) + norm(out))


def resnet(widths, blocks, projected, channels=3):
    size = conv(3, channels, widths[0], False) + norm(widths[0])
    into = widths[0]
    for width in widths:
        size += block(into, width, projected and into != width) + (blocks - 1) * block(width, width, False)
        into = width
    return size


def vgg(stages, normed):
    size, into = 0, 3
    for out in (width for stage in stages for width in stage):
        size += conv(3, into, out) + normed * norm(out)
        into = out
    return size


VGG = {
    "vgg8": [[64], [128], [256], [512], [512]],
    "vgg11": [[64], [128], [256] * 2, [512] * 2, [512] * 2],
    "vgg16": [[64] * 2, [128] * 2, [256] * 3, [512] * 3, [512] * 3],
}
GREY = (1, 28, 28)
SIZES = [
    ("mlp", GREY, {}, fc(784, 512) + fc(512, 512) + fc(512, 10, False)),
    ("mlp-bn", GREY, {}, fc(784, 512) + fc(512, 512) + 2 * norm(512) + fc(512, 10, False)),
    ("cnn", GREY, {}, conv(5, 1, 32) + conv(5, 32, 64) + fc(64 * 4 * 4, 10)),
    ("cnn5", (3, 32, 32), {}, 62_006),  # LeNet-5 on CIFAR-10, as in the PyTorch tutorial
    ("cnn5", GREY, {}, conv(5, 1, 6) + conv(5, 6, 16) + fc(16 * 4 * 4, 120) + fc(120, 84) + fc(84, 10)),
    ("lenet", (3, 32, 32), {}, conv(5, 3, 16) + conv(5, 16, 16) + fc(400, 120) + fc(120, 84) + fc(84, 10, False)),
    ("lenet", (3, 32, 32), {"hidden_fc": False}, conv(5, 3, 16) + conv(5, 16, 16) + fc(400, 10, False)),
    ("tfcnn", (3, 32, 32), {}, conv(3, 3, 32) + conv(3, 32, 64) + conv(3, 64, 64) + fc(1024, 10, False)),
    (
        "tfcnn",
        (3, 32, 32),
        {"fc128": True},
        conv(3, 3, 32) + conv(3, 32, 64) + conv(3, 64, 64) + fc(1024, 128) + fc(128, 10, False),
    ),
    ("conv4", (3, 32, 32), {}, conv(3, 3, 64) + 3 * conv(3, 64, 64) + 4 * norm(64) + fc(256, 10)),
    ("conv4", GREY, {}, conv(3, 1, 64) + 3 * conv(3, 64, 64) + 4 * norm(64) + fc(64, 10)),
    ("har-cnn", (9, 128), {}, fc(9 * 9, 32) + fc(9 * 32, 64) + norm(32) + norm(64) + fc(64 * 26, 10)),
    ("resnet8", (3, 32, 32), {}, resnet((64, 128, 256), 1, True) + fc(256, 10)),
    ("resnet8", (3, 32, 32), {"width": 1}, resnet((16, 32, 64), 1, True) + fc(64, 10)),
    ("resnet20", (3, 32, 32), {}, resnet((16, 32, 64), 3, True) + fc(64, 10, False)),
    ("resnet56", (3, 32, 32), {}, resnet((16, 32, 64), 9, True) + fc(64, 10, False)),
    ("resnet32", (3, 32, 32), {}, resnet((16, 32, 64), 5, False) + fc(64, 10)),
    ("resnet32", (3, 32, 32), {}, 464_154),  # published, with option A shortcuts
    ("resnet18", (3, 32, 32), {}, resnet((64, 128, 256, 512), 2, True) + fc(512, 10)),
    ("vgg8", (3, 32, 32), {}, vgg(VGG["vgg8"], False) + fc(512, 10, False)),
    ("vgg11", (3, 32, 32), {}, 9_220_480 + fc(512, 10, False)),  # torchvision's vgg11 features
    ("vgg11-bn", (3, 32, 32), {"bias": True}, vgg(VGG["vgg11"], True) + fc(512, 10)),
    ("vgg16", (3, 32, 32), {}, 14_714_688 + fc(512, 10, False)),  # torchvision's vgg16 features
]


@pytest.mark.parametrize(("name", "shape", "values", "size"), SIZES)
def test_parameter_counts(name, shape, values, size):
    assert count(build(name, shape, **values)) == size


def test_the_published_counts_agree_with_the_formulas():
    assert vgg(VGG["vgg11"], False) == 9_220_480
    assert vgg(VGG["vgg16"], False) == 14_714_688
    assert resnet((16, 32, 64), 5, False) + fc(64, 10) == 464_154
    assert round(resnet((16, 32, 64), 3, False) / 1e6, 2) == 0.27  # He et al. 2016, table 6
    assert conv(5, 3, 6) + conv(5, 6, 16) + fc(400, 120) + fc(120, 84) + fc(84, 10) == 62_006


@pytest.mark.parametrize(
    ("name", "shape", "values", "features"),
    [
        ("cnn", GREY, {}, 1024),
        ("conv4", (3, 32, 32), {}, 256),
        ("conv4", GREY, {}, 64),
        ("lenet", (1, 32, 32), {"hidden_fc": False}, 400),
        ("lenet", (1, 32, 32), {}, 84),
        ("tfcnn", (3, 32, 32), {}, 1024),
        ("tfcnn", (3, 32, 32), {"fc128": True}, 128),
        ("vgg8", (3, 32, 32), {}, 512),
        ("vgg8", (3, 64, 64), {}, 512),
        ("resnet8", (3, 32, 32), {}, 256),
        ("resnet20", (3, 32, 32), {}, 64),
        ("resnet18", (3, 64, 64), {"stem": "imagenet"}, 512),
        ("har-cnn", (9, 128), {}, 64 * 26),
    ],
)
def test_feature_widths(name, shape, values, features):
    net = build(name, shape, **values)
    assert net.head.in_features == features


def layers(module):
    """The layers with weights, by name."""
    return [name for name, part in module.named_modules() if isinstance(part, nn.Linear | nn.Conv1d | nn.Conv2d)]


@pytest.mark.parametrize(
    ("name", "values", "last"),
    [
        ("mlp", {}, ["fc2"]),
        ("cnn", {}, ["conv2"]),
        ("cnn5", {}, ["fc3", "fc4"]),
        ("lenet", {}, ["fc3", "fc4"]),
        ("lenet", {"hidden_fc": False}, ["conv2"]),
        ("conv4", {}, ["conv4"]),
        ("tfcnn", {}, ["conv3"]),
        ("tfcnn", {"fc128": True}, ["conv3", "fc4"]),
        ("vgg11", {"width": 0.1}, ["stage5.conv1", "stage5.conv2"]),
        ("resnet8", {"width": 1}, ["stage3.0.conv1", "stage3.0.conv2", "stage3.0.shortcut.conv"]),
        ("resnet32", {}, [f"stage3.{i}.conv{j}" for i in range(5) for j in (1, 2)]),
    ],
)
def test_the_last_stage(name, values, last):
    assert layers(build(name, **values).last) == last


def test_har_last_stage():
    assert layers(build("har-cnn", (9, 128)).last) == ["conv2"]


def test_bn_ends_no_plain_hidden_layer_but_those_of_the_mlp():
    assert [n for n, m in build("lenet-bn").named_modules() if isinstance(m, nn.BatchNorm2d)] == [
        "trunk.norm1",
        "trunk.norm2",
    ]
    assert [n for n, m in build("mlp-bn").named_modules() if isinstance(m, nn.BatchNorm1d)] == [
        "trunk.norm1",
        "last.norm2",
    ]


def test_imagenet_stem():
    net = build("resnet18", (3, 64, 64), stem="imagenet", width=0.1)
    assert net.trunk.conv.kernel_size == (7, 7)
    stem = nn.Sequential(net.trunk.conv, net.trunk.norm, net.trunk.relu, net.trunk.pool)
    assert stem(torch.zeros(2, 3, 64, 64)).shape[2:] == (16, 16)


def test_free_shortcut_subsamples_and_pads_with_zeros():
    x = torch.randn(2, 3, 5, 4)
    out = Subsample(2, 3)(x)
    assert out.shape == (2, 6, 3, 2)
    assert torch.equal(out[:, :3], x[:, :, ::2, ::2])
    assert not out[:, 3:].any()
    assert [type(m) for m in build("resnet32").modules() if isinstance(m, Subsample)] == [Subsample] * 2
    projected = [m for m in build("resnet20").modules() if isinstance(m, Subsample)]
    assert [m.new for m in projected] == [0, 0], "a projection drops pixels first and adds no channels"


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_pixels_are_dropped_and_averaged_in_either_memory_format(order):
    x = torch.randn(2, 3, 5, 4).contiguous(memory_format=order).requires_grad_(True)
    for mine, plain in (
        (Subsample(2, 0), lambda x: x[:, :, ::2, ::2]),
        (Subsample(2, 3), lambda x: F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, 3))),
        (MeanOverPixels(), lambda x: nn.AdaptiveAvgPool2d(1)(x).flatten(1)),
    ):
        weights = torch.randn_like(plain(x))
        slopes = [torch.autograd.grad((of(x) * weights).sum(), x)[0] for of in (mine, plain)]
        torch.testing.assert_close(mine(x), plain(x))
        torch.testing.assert_close(*slopes)
        assert slopes[0].is_contiguous(memory_format=torch.channels_last)


class ReluGradients(TorchDispatchMode):
    """Notes what goes into the backward pass of every ReLU."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        if op is torch.ops.aten.threshold_backward.default:
            self.seen += args[:2]
        return op(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["resnet8", "resnet32", "vgg8-bn", "cnn", "har-cnn"])
def test_gradients_lie_channels_last(name):
    """Where a gradient lies otherwise than what it belongs to, a ReLU's backward pass is ten times slower."""
    shape = (9, 40) if name == "har-cnn" else (3, 32, 32)
    net = build(name, shape, width=0.25)
    bind(net, Layout(net))
    with ReluGradients() as relus:
        net(scaled(torch.randn(4, *shape), None, None)).sum().backward()
    assert relus.seen
    assert all(each.is_contiguous(memory_format=torch.channels_last) for each in relus.seen)


def by_channel(weight, channels=64):
    """The columns of a weight on rows that were flattened pixel after pixel, channel after channel."""
    return weight.view(len(weight), -1, channels).transpose(1, 2).reshape(weight.shape)


def test_har_cnn_is_a_one_dimensional_network():
    """A sequence as an image of height 1: the same initial bits, and the same numbers up to rounding."""
    net = build("har-cnn", (9, 128), classes=6)
    with seeded(0, "init"):
        first = [nn.Conv1d(9, 32, 9), nn.BatchNorm1d(32), nn.ReLU(), nn.MaxPool1d(2)]
        second = [nn.Conv1d(32, 64, 9), nn.BatchNorm1d(64), nn.ReLU(), nn.MaxPool1d(2)]
        plain = nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(64 * 26, 6))
    pairs = list(zip(net.parameters(), plain.parameters(), strict=True))
    assert all(torch.equal(mine.flatten(), other.flatten()) for mine, other in pairs)
    with torch.no_grad():  # it flattens step after step, PyTorch channel after channel
        plain[-1].weight.copy_(by_channel(net.head.weight))
    x, y = torch.randn(8, 9, 128), torch.arange(8) % 6
    torch.testing.assert_close(net(x), plain(x))
    for one, given in ((net, x), (plain, x)):
        F.cross_entropy(one(given), y).backward()
    for mine, other in pairs:
        slope = by_channel(mine.grad) if mine is net.head.weight else mine.grad.view(other.shape)
        torch.testing.assert_close(slope, other.grad, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(net.eval()(x), plain.eval()(x))


def test_basic_block_by_hand():
    torch.manual_seed(0)
    block = BasicBlock(2, 4, 2, nn.BatchNorm2d).eval()
    x = torch.randn(3, 2, 6, 6)
    inner = F.relu(block.norm1(F.conv2d(x, block.conv1.weight, stride=2, padding=1)))
    inner = block.norm2(F.conv2d(inner, block.conv2.weight, padding=1))
    around = block.shortcut.norm(F.conv2d(x, block.shortcut.conv.weight, stride=2))
    assert torch.allclose(block(x), F.relu(inner + around), atol=1e-6)


def test_vgg_pools_what_is_left_of_the_image():
    net = build("vgg8", width=0.1).eval()
    x = torch.randn(2, 3, 32, 32)
    assert torch.allclose(net.features(x), net.last.stage5(net.trunk(x)).flatten(1))  # at 32x32 that is flattening


@pytest.mark.parametrize("name", ["resnet8", "resnet18", "vgg8"])
def test_convolutions_are_drawn_by_fan_out(name):
    net = build(name)
    for conv in (m for m in net.modules() if isinstance(m, nn.Conv2d) and m.weight.numel() > 10_000):
        k = conv.kernel_size[0]
        assert conv.weight.std().item() == pytest.approx(sqrt(2 / (k * k * conv.out_channels)), rel=0.05)
        assert conv.bias is None or not conv.bias.any()
