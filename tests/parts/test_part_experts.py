"""Groups of classes by frequency, and the module in which experts answer together (ECL eqs. 5-6)."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import by_hand
from polyfed.models.base import Net
from polyfed.parts.experts import Experts, frequency_groups


@given(st.lists(st.integers(0, 50), min_size=1, max_size=20), st.integers(1, 6))
def test_groups_partition_the_classes_held(counts: list[int], experts: int) -> None:
    groups = frequency_groups(torch.tensor(counts), experts)
    held = [c for c, n in enumerate(counts) if n]
    assert sorted(c for group in groups for c in group) == held
    if not held:
        return
    assert len(groups) == min(experts, len(held))
    sizes = [len(group) for group in groups]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)
    order = [counts[c] for group in groups for c in group]
    assert order == sorted(order, reverse=True)


def test_groups_by_hand() -> None:
    counts = torch.tensor([5, 0, 9, 5, 1])
    assert frequency_groups(counts, 2) == [[2, 0], [3, 4]]  # equal counts: the smaller class id first
    assert frequency_groups(counts, 3) == [[2, 0], [3], [4]]
    assert frequency_groups(counts, 9) == [[2], [0], [3], [4]]
    assert frequency_groups(torch.tensor([0, 0, 7]), 2) == [[2]]


@pytest.fixture
def three() -> list[Net]:
    torch.manual_seed(0)
    nets = [by_hand.tiny_net(classes=4).eval() for _ in range(3)]
    for net in nets[1:]:
        net.trunk = nets[0].trunk
    return nets


def by_equation(nets: list[Net], groups: list[list[int]], factors: Tensor, lam: float, mask: bool, x: Tensor) -> Tensor:
    z = [net(x) for net in nets]
    out = torch.full_like(z[0], float("-inf")) if mask else z[0].clone()
    for m, group in enumerate(groups, 1):
        for c in group:
            out[:, c] = lam * factors[c] * z[m][:, c] + (1 - lam) * z[0][:, c]  # eq. 6 on eq. 5's scaled logits
    return out


@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize("lam", [0.0, 0.3, 1.0])
def test_a_class_is_answered_by_its_expert_and_the_branch(three: list[Net], lam: float, mask: bool) -> None:
    """ECL eq. 6: o_c = lambda * s_m z_c^m + (1 - lambda) z_0c."""
    groups, factors = [[3, 0], [2]], torch.tensor([0.5, 9.0, 2.0, 0.25])
    module = Experts(three[0], three[1:], groups, factors, lam, mask).eval()
    x = torch.randn(6, by_hand.INTO)
    torch.testing.assert_close(module(x), by_equation(three, groups, factors, lam, mask, x))
    absent = module(x)[:, 1]
    if mask:
        assert torch.isneginf(absent).all()
        assert set(module(x).argmax(1).tolist()) <= {0, 2, 3}
    else:
        assert torch.equal(absent, three[0](x)[:, 1])


def test_lambda_0_is_the_branch_and_lambda_1_the_experts(three: list[Net]) -> None:
    groups, x = [[0, 1], [2, 3]], torch.randn(5, by_hand.INTO)
    ones = torch.ones(4)
    assert torch.equal(Experts(three[0], three[1:], groups, ones, 0.0, True)(x), three[0](x))
    alone = Experts(three[0], three[1:], groups, ones, 1.0, True)(x)
    assert torch.equal(alone[:, :2], three[1](x)[:, :2])
    assert torch.equal(alone[:, 2:], three[2](x)[:, 2:])


def test_the_trunk_is_run_once_and_the_module_can_be_shipped(three: list[Net]) -> None:
    module = Experts(three[0], three[1:], [[0, 1], [2]], torch.ones(4), 0.5, True).eval()
    calls: list[int] = []
    module.trunk.register_forward_hook(lambda *_: calls.append(1))
    x = torch.randn(3, by_hand.INTO)
    expected = module(x)
    assert calls == [1]
    other = Experts(three[0], three[1:], [[0, 1], [2]], torch.zeros(4), 0.5, True).eval()
    other.load_state_dict(module.state_dict())  # the factors are part of it
    torch.testing.assert_close(other(x), expected)
