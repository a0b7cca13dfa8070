"""Convolutions of thin inputs: the quick gradient is the library's, and only where it applies."""

import pytest
import torch
from torch import nn

from polyfed.data.samples import laid_out
from polyfed.parts.thin import is_thin, quick_in_inputs


@pytest.mark.parametrize("layout", ["first", "last"])
@pytest.mark.parametrize(
    ("channels", "kernel", "padding"), [(1, (5, 5), (0, 0)), (3, (3, 2), (1, 2)), (2, (1, 4), (0, 1))]
)
def test_the_quick_gradient_is_the_librarys(
    channels: int, kernel: tuple[int, int], padding: tuple[int, int], layout: str
) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(channels, 4, kernel, padding=padding).requires_grad_(False)
    net = nn.Sequential(conv, nn.Tanh())
    x = torch.randn(3, channels, 6, 7)
    x = (laid_out(x) if layout == "last" else x).requires_grad_()
    (expected,) = torch.autograd.grad(net(x).square().sum(), x)
    with quick_in_inputs(net):
        out = net(x)
        assert type(out.grad_fn.next_functions[0][0]).__name__ == "_ThinBackward"  # type: ignore[union-attr]
        (found,) = torch.autograd.grad(out.square().sum(), x)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert "forward" not in vars(conv)
    assert type(conv(x).grad_fn).__name__ == "ConvolutionBackward0"


def test_only_plain_convolutions_of_few_channels_are_thin() -> None:
    assert is_thin(nn.Conv2d(3, 8, 3, padding=1))
    others = [
        nn.Conv2d(4, 8, 3),
        nn.Conv2d(1, 8, 3, stride=2),
        nn.Conv2d(1, 8, 3, dilation=2),
        nn.Conv2d(2, 8, 3, groups=2),
        nn.Conv2d(1, 8, 3, padding="same"),
        nn.Conv2d(1, 8, 3, padding=1, padding_mode="reflect"),
        nn.Conv1d(1, 8, 3),
    ]
    assert not any(map(is_thin, others))


def test_weights_that_are_trained_keep_their_gradient() -> None:
    conv = nn.Conv2d(1, 2, 3)
    with quick_in_inputs(conv):
        conv(torch.ones(1, 1, 4, 4)).sum().backward()
    assert conv.weight.grad is not None


def test_an_image_of_one_channel_says_that_its_channels_come_last() -> None:
    x = torch.arange(24.0).view(2, 1, 3, 4)
    found = laid_out(x)
    assert found.stride() == (12, 1, 4, 1)
    assert torch.equal(found, x)
    assert laid_out(found) is found
    assert laid_out(torch.ones(2, 3, 4, 4)).is_contiguous(memory_format=torch.channels_last)
    assert laid_out(torch.ones(3, 2).T).is_contiguous()
