"""Losses and distillation on numbers worked out by hand."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import by_hand
from polyfed.parts.distil import kl, mmd, soft_cross_entropy
from polyfed.parts.losses import balanced_cross_entropy, cross_entropy, restricted
from polyfed.parts.resident import Batch

Z = torch.tensor([[2.0, 0.0, -1.0], [0.5, 0.5, 3.0]])
Y = torch.tensor([0, 1])


def softmax(row: list[float]) -> list[float]:
    top = [math.exp(v) for v in row]
    return [v / sum(top) for v in top]


def test_cross_entropy_is_the_mean_over_the_batch() -> None:
    home = by_hand.resident()
    data = by_hand.some(2)
    x, y = data.take(torch.arange(2))
    batch = Batch(home.model, x, y, torch.arange(2), data)
    rows = home.model(x).tolist()
    expected = -sum(math.log(softmax(row)[int(c)]) for row, c in zip(rows, y, strict=True)) / 2
    assert float(cross_entropy(batch).detach()) == pytest.approx(expected, rel=1e-5)


# ---- restricted softmax (MAP eq. 8)


def test_restricted_multiplies_each_logit_by_its_factor() -> None:
    assert restricted(Z, torch.tensor([1.0, 0.5, 0.0])).tolist() == [[2.0, 0.0, 0.0], [0.5, 0.25, 0.0]]


def test_a_restricted_row_has_its_gradient_scaled() -> None:
    """MAP eq. 9: the push on a missing class's proxy is alpha * sum_i p_ic h_i, with p of eq. 8."""
    alpha = 0.3
    h, w = torch.randn(4, 5), torch.randn(3, 5, requires_grad=True)
    y = torch.tensor([0, 1, 0, 1])
    logits = restricted(h @ w.T, torch.tensor([1.0, 1.0, alpha]))
    F.cross_entropy(logits, y, reduction="sum").backward()
    push = alpha * (logits.softmax(1)[:, 2:].T @ h).squeeze()
    torch.testing.assert_close(w.grad[2], push)


# ---- balanced softmax (ECL eq. 3)


def balanced(logits: torch.Tensor, y: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """The balanced loss of a batch with these logits."""
    return balanced_cross_entropy(counts)(SimpleNamespace(logits=logits, y=y, on=SimpleNamespace(owned=None)))


def test_balanced_softmax_by_hand() -> None:
    counts = torch.tensor([6, 3, 1])
    expected = 0.0
    for row, c in zip(Z.tolist(), Y.tolist(), strict=True):
        top = [n * math.exp(v) for n, v in zip(counts.tolist(), row, strict=True)]
        expected -= math.log(top[c] / sum(top)) / 2
    assert float(balanced(Z, Y, counts)) == pytest.approx(expected, rel=1e-6)


@given(st.integers(1, 1000))
def test_balanced_softmax_with_equal_counts_is_cross_entropy(n: int) -> None:
    torch.testing.assert_close(balanced(Z, Y, torch.full((3,), n)), F.cross_entropy(Z, Y))


def test_a_class_without_samples_leaves_the_balanced_softmax() -> None:
    z = Z.clone().requires_grad_()
    loss = balanced(z, Y, torch.tensor([4, 2, 0]))
    loss.backward()
    assert torch.isfinite(loss)
    torch.testing.assert_close(loss, balanced(Z[:, :2], Y, torch.tensor([4, 2])))
    assert z.grad[:, 2].tolist() == [0.0, 0.0]
    assert torch.isfinite(z.grad).all()


# ---- distillation (MAP eq. 11, FedCRC eq. 6)


def test_kl_by_hand() -> None:
    teacher, student, t = [[1.0, 2.0, 9.0]], [[0.0, 3.0, 1.0]], 4.0
    p, q = softmax([v / t for v in teacher[0]]), softmax([v / t for v in student[0]])
    expected = t**2 * sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    found = kl(torch.tensor(teacher), torch.tensor(student), t)
    assert float(found) == pytest.approx(expected, rel=1e-5)
    turned = kl(torch.tensor(student), torch.tensor(teacher), t)
    assert float(turned) != pytest.approx(expected, rel=1e-3)  # the direction matters


def test_kl_is_the_mean_over_rows() -> None:
    teacher, student = torch.randn(5, 3), torch.randn(5, 3)
    each = [kl(a[None], b[None]) for a, b in zip(teacher, student, strict=True)]
    torch.testing.assert_close(kl(teacher, student), torch.stack(each).mean())


@pytest.mark.parametrize("t", [1.0, 4.0])
def test_a_student_that_answers_like_its_teacher_learns_nothing(t: float) -> None:
    student = torch.randn(6, 4, requires_grad=True)
    loss = kl(student.detach().clone(), student, t)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(0.0, abs=1e-6)
    assert float(student.grad.abs().max()) < 1e-6


def test_the_official_form_is_a_softened_teacher_against_a_plain_student() -> None:
    teacher, student = [2.0, 0.0], [1.0, -1.0]
    p, q = softmax([v / 4 for v in teacher]), softmax(student)
    expected = -sum(a * math.log(b) for a, b in zip(p, q, strict=True))
    found = soft_cross_entropy(torch.tensor([teacher]), torch.tensor([student]), 4.0)
    assert float(found) == pytest.approx(expected, rel=1e-6)


# ---- feature matching (MAP eq. 12)


def naive_mmd(x: Tensor, y: Tensor) -> float:
    rows = [*x.tolist(), *y.tolist()]
    n = len(rows)
    d = [[sum((a - b) ** 2 for a, b in zip(p, q, strict=True)) for q in rows] for p in rows]
    base = sum(map(sum, d)) / (n * n - n) + 1e-8
    k = [[sum(math.exp(-d[i][j] / (base * 2.0**e)) for e in range(-2, 3)) for j in range(n)] for i in range(n)]
    half = len(x)

    def mean(rows: range, columns: range) -> float:
        return sum(k[i][j] for i in rows for j in columns) / (len(rows) * len(columns))

    mine, theirs = range(half), range(half, n)
    return mean(mine, mine) + mean(theirs, theirs) - mean(mine, theirs) - mean(theirs, mine)


@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 1000))
def test_mmd_is_what_two_loops_give(n: int, width: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(n, width, generator=generator), torch.randn(n, width, generator=generator) + 1
    assert float(mmd(x, y)) == pytest.approx(naive_mmd(x, y), rel=1e-4, abs=1e-5)
    assert float(mmd(x, y)) > 0


def test_mmd_of_the_same_features_is_nothing() -> None:
    x = torch.randn(8, 5)
    assert float(mmd(x, x)) == 0.0
    assert float(mmd(x, x[torch.randperm(8)])) == pytest.approx(0.0, abs=1e-6)
    same = torch.ones(3, 2, requires_grad=True)
    mmd(same, torch.ones(3, 2)).backward()
    assert torch.isfinite(same.grad).all()


def test_the_gradient_of_mmd_by_hand_takes_the_bandwidth_as_given() -> None:
    """One row each: the bandwidth is their squared distance d, so mmd = 10 - 2 sum_e exp(-d / (b 2^e)) with b = d.

    With b fixed, its gradient is 4 (x - y) / d sum_e 2^-e exp(-2^-e); a gradient through b would make it nothing.
    """
    x, y = torch.tensor([[3.0, 1.0]], requires_grad=True), torch.tensor([[1.0, 2.0]])
    value = mmd(x, y)
    value.backward()
    powers = [2.0**-e for e in range(-2, 3)]
    assert float(value.detach()) == pytest.approx(10 - 2 * sum(math.exp(-p) for p in powers), rel=1e-5)
    slope = 4 / 5 * sum(p * math.exp(-p) for p in powers)
    assert x.grad.tolist() == [[pytest.approx(2 * slope, rel=1e-5), pytest.approx(-1 * slope, rel=1e-5)]]


def test_mmd_with_fewer_kernels_and_with_unequal_numbers_of_rows() -> None:
    x, y = torch.tensor([[0.0], [1.0]]), torch.tensor([[3.0]])
    base = 2 * (1 + 9 + 4) / 6

    def k(d: float) -> float:
        return math.exp(-d / base)

    expected = (2 + 2 * k(1)) / 4 + 1 - 2 * (k(9) + k(4)) / 2
    assert float(mmd(x, y, kernels=1)) == pytest.approx(expected, rel=1e-5)


def test_mmd_pulls_features_towards_each_other() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(8, 2, requires_grad=True), torch.randn(8, 2) + 3
    loss = mmd(x, y)
    loss.backward()
    assert x.grad.mean(0).max() < 0  # downhill is towards y
    assert mmd((x - x.grad).detach(), y) < loss.detach()
