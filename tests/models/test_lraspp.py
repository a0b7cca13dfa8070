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
        assert len(net.listens) == (3 if name == "lraspp-small" else 4)
        assert all(
            isinstance(net.get_submodule(place)[-1], torch.nn.ReLU | torch.nn.Hardswish) for place in net.listens
        )
