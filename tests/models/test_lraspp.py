"""LR-ASPP: the numbers of weights and the sizes of maps that the architecture has on paper."""

import pytest
import torch
import torch.nn.functional as F

from polyfed.models import Pixels, models
from polyfed.models.lraspp import round8


def built(name: str, classes: int = 11, **settings: object) -> Pixels:
    net = models.build({"name": name, **settings}, "model").build((3, 180, 240), classes)
    assert isinstance(net, Pixels)
    return net


def weights(*modules: torch.nn.Module) -> int:
    return sum(p.numel() for module in modules for p in module.parameters())


def test_numbers_of_weights() -> None:
    net = built("lraspp")
    assert weights(net.trunk) == 5_072
    assert weights(net.trunk, net.last.get_submodule("blocks")) == 927_008  # the official backbone
    assert weights(net) == 1_076_403
    assert weights(built("lraspp", 19)) == 1_077_627
    assert weights(built("lraspp", width=0.5, inner=64)) == 294_179
    assert weights(built("lraspp-small")) == 63_787


def test_sizes_of_maps() -> None:
    net, x = built("lraspp").eval(), torch.zeros(1, 3, 180, 240)
    with torch.no_grad():
        low = net.trunk(x)
        assert low.shape == (1, 24, 23, 30)
        assert net.last.get_submodule("blocks")(low).shape == (1, 576, 12, 15)
        assert net.features(x).shape == (1, 23, 30, 152)
        assert net(x).shape == (1, 11, 180, 240)
    assert built("lraspp-small").head.in_features == 80


def test_spreading_commutes_with_the_head() -> None:
    torch.manual_seed(0)
    net, x = built("lraspp-small").eval(), torch.randn(2, 3, 12, 16)
    with torch.no_grad():
        wide = F.interpolate(net.features(x).permute(0, 3, 1, 2), size=(12, 16), mode="bilinear", align_corners=False)
        assert torch.allclose(net.head(wide.permute(0, 2, 3, 1)).permute(0, 3, 1, 2), net(x), atol=1e-5)


@pytest.mark.parametrize(("value", "near"), [(8, 8), (12, 16), (18, 24), (11, 16), (36, 40), (44, 48), (4, 8)])
def test_round8(value: float, near: int) -> None:
    assert round8(value) == near


def test_places_where_bavd_listens() -> None:
    for name in ("lraspp", "lraspp-gn", "lraspp-small"):
        net = built(name)
        depthwise = ["last.blocks.block8.depthwise", "last.blocks.block11.depthwise"][
            : 1 if name == "lraspp-small" else 2
        ]
        assert net.listens == ("trunk.stem", *depthwise, "last.reduce")
        assert all(
            isinstance(net.get_submodule(place)[-1], torch.nn.ReLU | torch.nn.Hardswish) for place in net.listens
        )


TABLE = [  # of the paper, and of the page on masks: kernel, widened, out, squeezed, activation, stride, dilation, after
    (3, 16, 16, True, "ReLU", 2, 1, 4),
    (3, 72, 24, False, "ReLU", 2, 1, 8),
    (3, 88, 24, False, "ReLU", 1, 1, 8),
    (5, 96, 40, True, "Hardswish", 2, 1, 16),
    (5, 240, 40, True, "Hardswish", 1, 1, 16),
    (5, 240, 40, True, "Hardswish", 1, 1, 16),
    (5, 120, 48, True, "Hardswish", 1, 1, 16),
    (5, 144, 48, True, "Hardswish", 1, 1, 16),
    (5, 288, 96, True, "Hardswish", 1, 2, 16),  # dilated instead of strided
    (5, 576, 96, True, "Hardswish", 1, 2, 16),
    (5, 576, 96, True, "Hardswish", 1, 2, 16),
]


def test_every_block_is_the_papers() -> None:
    net, x, into = built("lraspp").eval(), torch.rand(1, 3, 64, 96), 16
    rest = net.last.get_submodule("blocks")
    blocks = [net.trunk.get_submodule(f"block{n}") for n in (1, 2)]
    blocks += [rest.get_submodule(f"block{n}") for n in range(3, 12)]
    with torch.no_grad():
        x = net.trunk.get_submodule("stem")(x)
        for block, (kernel, wide, out, squeezed, act, stride, dilation, after) in zip(blocks, TABLE, strict=True):
            conv = block.get_submodule("depthwise.conv")
            assert (conv.kernel_size, conv.stride, conv.dilation) == ((kernel,) * 2, (stride,) * 2, (dilation,) * 2)
            assert (conv.in_channels, conv.groups, conv.padding) == (wide, wide, ((kernel - 1) // 2 * dilation,) * 2)
            assert type(block.get_submodule("depthwise.act")).__name__ == act
            assert isinstance(block.get_submodule("widen"), torch.nn.Identity) == (into == wide)
            squeeze = dict(block.named_children())["squeeze"]
            assert isinstance(squeeze, torch.nn.Identity) != squeezed
            if squeezed:
                assert squeeze.get_submodule("down").out_channels == round8(wide / 4)
                means = torch.relu(squeeze.get_submodule("down")(h := torch.rand(1, wide, 1, 1)))
                gate = F.relu6(squeeze.get_submodule("up")(means) + 3) / 6
                assert torch.allclose(squeeze(h), h * gate, atol=1e-6)
            assert [name for name, _ in block.get_submodule("narrow").named_children()] == ["conv", "norm"]
            before, x = x, block(x)
            assert x.shape == (1, out, 64 // after, 96 // after)
            wider = block.get_submodule("depthwise")(block.get_submodule("widen")(before))
            plain = block.get_submodule("narrow")(squeeze(wider))
            assert torch.equal(x, plain + before if stride == 1 and into == out else plain)
            into = out


def test_how_weights_start_and_norms_move() -> None:
    torch.manual_seed(0)
    net = built("lraspp")
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            assert (module.eps, module.momentum) == (1e-3, 0.1)
        if isinstance(module, torch.nn.Conv2d) and module.weight.numel() > 5_000:
            high, wide = module.kernel_size
            fan_out = high * wide * module.out_channels
            assert float(module.weight.detach().std()) == pytest.approx((2 / fan_out) ** 0.5, rel=0.1)
        if isinstance(module, torch.nn.Conv2d) and module.bias is not None:
            assert not module.bias.any()
    assert not any(isinstance(module, torch.nn.BatchNorm2d) for module in built("lraspp-gn").modules())


def test_the_high_map_is_gated_by_its_own_mean() -> None:
    net, x = built("lraspp-small").train(), torch.rand(2, 3, 24, 32)  # norms by the batch, or all would be nearly 0
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = 0.0
    with torch.no_grad():
        low = net.trunk(x)
        high = net.last.get_submodule("blocks")(low)
        gate = torch.sigmoid(net.last.get_submodule("gate")(high.mean((2, 3), keepdim=True)))
        gated = net.last.get_submodule("reduce")(high) * gate
        wide = F.interpolate(gated, size=low.shape[2:], mode="bilinear", align_corners=False)
        assert torch.allclose(net.features(x), torch.cat([low, wide], 1).permute(0, 2, 3, 1), atol=1e-6)
    assert net.last.get_submodule("gate").bias is None
