"""Convolutions of thin inputs, of one or three channels: a faster gradient in the inputs.

Training never asks for it, and the libraries are slow at it: they compute a vector of channels of which they need one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

THIN = 3  # channels; with more, the library is as fast


def is_thin(layer: nn.Module) -> bool:
    """Whether a layer is a plain convolution of few channels: no stride, dilation, groups or special edges."""
    if type(layer) is not nn.Conv2d or layer.in_channels > THIN or not isinstance(layer.padding, tuple):
        return False
    return layer.stride == layer.dilation == (1, 1) and layer.groups == 1 and layer.padding_mode == "zeros"


@contextmanager
def quick_in_inputs(model: nn.Module) -> Iterator[None]:
    """Inside, a model's convolutions of thin inputs pass their gradient on quickly, and get none for their weights."""
    layers = [m for m in model.modules() if is_thin(m) and not any(p.requires_grad for p in m.parameters())]
    for layer in layers:
        layer.forward = partial(_Thin.apply, layer)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


class _Thin(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, layer: nn.Conv2d, x: Tensor) -> Tensor:
        ctx.layer, ctx.sides = layer, x.shape[-2:]
        return nn.Conv2d.forward(layer, x)

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[None, Tensor]:
        return None, gradient_in_inputs(given[0], ctx.layer.weight, ctx.layer.padding, ctx.sides)


def gradient_in_inputs(given: Tensor, weight: Tensor, padding: tuple[int, ...], sides: tuple[int, int]) -> Tensor:
    """From the gradient in the outputs [n, c', h', w']: one product, then a shifted sum for every tap of the kernel."""
    (count, _, high, wide), (_, channels, tall, broad) = given.shape, weight.shape
    (top, left), (height, width) = padding, sides
    rows = given.movedim(1, -1).flatten(0, -2)  # no copy where channels come last
    taps = weight.permute(2, 3, 1, 0).flatten(0, -2) @ rows.T
    taps = taps.view(tall, broad, channels, count, high, wide)
    padded = taps.new_zeros(channels, count, height + 2 * top, width + 2 * left)
    for i in range(tall):
        for j in range(broad):
            padded[:, :, i : i + high, j : j + wide] += taps[i, j]
    return padded[:, :, top : top + height, left : left + width].transpose(0, 1)
