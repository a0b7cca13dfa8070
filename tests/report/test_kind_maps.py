"""Class activation maps: they lie where the class is, and change nothing."""

import pytest
import torch
from torch import nn

from polyfed.errors import UsageError
from polyfed.models import models
from polyfed.models.base import Net
from polyfed.models.blocks import MeanOverPixels
from polyfed.report.kinds.maps import activation_maps, map_chart


def by_hand() -> Net:
    """Class 0 is the first channel's brightness, class 1 the second's."""
    conv = nn.Conv2d(2, 2, 1, bias=False)
    conv.weight.data = torch.eye(2)[..., None, None]
    head = nn.Linear(2, 2, bias=False)
    head.weight.data = torch.eye(2)
    return Net(nn.Sequential(conv), nn.Sequential(nn.ReLU(), MeanOverPixels()), head)


def test_a_map_lies_where_its_class_is_seen() -> None:
    x = torch.zeros(1, 2, 4, 4)
    x[0, 0, 0, 1], x[0, 1, 3, 2] = 1, 2
    net = by_hand()
    for wanted, place in ((0, (0, 1)), (1, (3, 2))):
        (found,) = activation_maps(net, x, torch.tensor([wanted]))
        assert found.shape == (4, 4)
        assert found[place] == 1
        assert found.sum() == 1


@pytest.mark.parametrize("name", ["cnn-bn", "resnet8", "vgg8-bn"])
def test_networks_of_the_zoo_have_maps_and_stay_as_they_were(name: str) -> None:
    net = models.build({"name": name, "width": 0.25}, "model").build((3, 32, 32), 5).train()
    before = {key: value.clone() for key, value in net.state_dict().items()}
    found = activation_maps(net, torch.randn(3, 3, 32, 32), torch.tensor([0, 1, 4]))
    assert found.shape == (3, 32, 32)
    assert 0 <= found.min() <= found.max() <= 1
    assert net.training
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    assert all(not module._forward_hooks for module in net.modules())


def test_a_network_without_pixels_is_one_sentence() -> None:
    net = models.build("mlp", "model").build((6,), 2)
    with pytest.raises(UsageError, match=r"^class activation maps need a network of whole images"):
        activation_maps(net, torch.randn(1, 6), torch.tensor([0]))


def test_the_chart_has_an_image_and_every_networks_map() -> None:
    x = torch.rand(2, 2, 4, 4)
    chart = map_chart({"with": by_hand(), "without": by_hand()}, x, torch.tensor([0, 1]), ["clean", "noisy"])
    assert [panel.title for panel in chart.panels][:3] == ["clean", "clean: with", "clean: without"]
    assert len(chart.panels) == 6
