"""Heads that are changed without training: factors for rows, and the accuracy they are chosen by."""

import pytest
import torch
from torch import nn

from polyfed.models.base import Net
from polyfed.parts.heads import mean_recall, row_factors, scale_head


def net(bias: bool) -> Net:
    made = Net(nn.Identity(), nn.Identity(), nn.Linear(2, 3, bias=bias))
    with torch.no_grad():
        made.head.weight.copy_(torch.tensor([[3.0, 4.0], [0.0, 2.0], [1.0, 0.0]]))
        if bias:
            made.head.bias.copy_(torch.tensor([1.0, 2.0, 3.0]))
    return made


def test_rows_and_bias_are_scaled_in_place() -> None:
    made = net(bias=True)
    rows = torch.tensor([2.0, 0.5, 1.0])
    assert scale_head(made, rows, bias=rows) is made
    assert made.head.weight.tolist() == [[6.0, 8.0], [0.0, 1.0], [1.0, 0.0]]
    assert made.head.bias.tolist() == [2.0, 1.0, 3.0]
    assert scale_head(made, torch.ones(3), bias=0.0).head.bias.tolist() == [0.0, 0.0, 0.0]


def test_a_head_without_a_bias_has_none_to_scale() -> None:
    made = scale_head(net(bias=False), torch.tensor([1.0, 1.0, 2.0]), bias=0.0)
    assert made.head.weight.tolist() == [[3.0, 4.0], [0.0, 2.0], [2.0, 0.0]]


@pytest.mark.parametrize(
    ("tau", "factors"), [(0.0, [1.0, 1.0, 1.0]), (0.5, [5**-0.5, 2**-0.5, 1.0]), (1.0, [0.2, 0.5, 1.0])]
)
def test_factors_are_a_power_of_the_length(tau: float, factors: list[float]) -> None:
    torch.testing.assert_close(row_factors(net(bias=False).head.weight, tau), torch.tensor(factors))


def test_a_row_of_zeros_stays_one() -> None:
    weight = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    scaled = weight * row_factors(weight, 1.0)[:, None]
    torch.testing.assert_close(scaled, torch.tensor([[0.0, 0.0], [0.6, 0.8]]))


def test_recall_counts_classes_alike_and_only_those_that_are_there() -> None:
    y = torch.tensor([0, 0, 0, 2])  # class 1 is missing
    answers = torch.tensor([0, 0, 1, 2])
    assert mean_recall(torch.nn.functional.one_hot(answers, 4).float(), y) == pytest.approx((2 / 3 + 1) / 2)
