"""Averages: by hand, inside the convex hull, the same in any order; integers are never averaged."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import by_hand
from polyfed.message import Message
from polyfed.methods.base import part_message
from polyfed.methods.fedavg import FedAvg
from polyfed.methods.fedper import FedPer
from polyfed.params import body, everything, head
from polyfed.parts.average import average, mean_number, shares
from polyfed.parts.corrections import pull


def test_shares_follow_samples_or_heads() -> None:
    assert shares([1, 3, 4], "sample").tolist() == [0.125, 0.375, 0.5]
    assert shares([1, 3, 4, 9], "uniform").tolist() == [0.25] * 4


def test_a_mean_of_numbers_is_weighted_and_that_of_equal_ones_is_exact() -> None:
    assert mean_number([1.0, 5.0], [1, 3], "sample") == 4.0
    assert mean_number([1.0, 5.0], [1, 3], "uniform") == 3.0
    assert all(
        mean_number([7.0] * n, range(1, n + 1), how) == 7.0 for n in range(1, 50) for how in ("sample", "uniform")
    )


def test_an_average_by_hand_keeps_the_shape() -> None:
    rows = [torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[5.0, 2.0], [-1.0, 0.0]])]
    assert average(rows, torch.tensor([0.25, 0.75])).tolist() == [[4.0, 2.0], [0.0, 1.0]]


def test_one_row_is_its_own_average_bit_for_bit() -> None:
    row = torch.randn(1000)
    assert torch.equal(average([row], shares([17], "sample")), row)


def test_blocks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, weights = list(torch.randn(7, 1003)), shares(range(1, 8), "sample")
    whole = average(rows, weights)
    monkeypatch.setattr("polyfed.parts.average.BLOCK", 100)
    assert torch.equal(average(rows, weights), whole)


@given(st.lists(st.lists(st.floats(-1e3, 1e3, width=32), min_size=4, max_size=4), min_size=1, max_size=6), st.data())
def test_an_average_lies_within_its_rows_whatever_their_order(values: list[list[float]], data: st.DataObject) -> None:
    rows = torch.tensor(values)
    n = data.draw(st.lists(st.integers(1, 10_000), min_size=len(values), max_size=len(values)))
    weights = shares(n, "sample")
    mean = average(list(rows), weights)
    slack = 1e-5 * rows.abs().max() + 1e-30
    assert (mean >= rows.min(0).values - slack).all()
    assert (mean <= rows.max(0).values + slack).all()
    order = data.draw(st.permutations(range(len(values))))
    other = average([rows[i] for i in order], weights[list(order)])
    torch.testing.assert_close(other, mean, rtol=1e-5, atol=float(slack))
    exact = (rows.double() * (torch.tensor(n).double() / sum(n))[:, None]).sum(0)
    torch.testing.assert_close(mean.double(), exact, rtol=1e-5, atol=float(slack))


@pytest.mark.parametrize(("weighting", "expected"), [("sample", 0.75 * 1 + 0.25 * 5), ("uniform", 3.0)])
def test_the_server_averages_models_with_the_runs_weighting(weighting: str, expected: float) -> None:
    home = by_hand.resident(bn=True)
    server = by_hand.server(home, [3, 1], FedAvg(), weighting=weighting)
    sent = []
    for value, count in ((1.0, 7), (5.0, 900)):
        params = by_hand.as_params(home, value)
        params.integers.fill_(count)
        sent.append(part_message("w", *params.get(everything)))
    made = server.average(by_hand.uploads(*sent, sizes=[3, 1]))
    assert made.flat.tolist() == pytest.approx([expected] * home.layout.size)
    assert made.integers.tolist() == [7, 7]  # the first contributor's, not 230.25


def test_what_is_not_shared_stays_the_servers() -> None:
    home = by_hand.resident()
    server = by_hand.server(home, [1, 1], FedPer())
    sent = [part_message("w", *by_hand.as_params(home, v).get(body)) for v in (2.0, 4.0)]
    made = server.average(by_hand.uploads(*sent))
    assert set(made.get(body)[0].tolist()) == {3.0}
    assert torch.equal(made.get(head)[0], home.initial.get(head)[0])
    assert torch.equal(server.shared.flat, home.initial.flat)  # nothing is changed in place


def test_any_field_can_be_averaged() -> None:
    server = by_hand.server(by_hand.resident(), [1, 3], FedAvg())
    sent = by_hand.uploads(Message(c=torch.tensor([[4.0]])), Message(c=torch.tensor([[0.0]])), sizes=[1, 3])
    assert server.average(sent, "c").tolist() == [[1.0]]


def test_a_slice_to_send_is_gathered_anew_when_the_model_changes() -> None:
    home = by_hand.resident()
    server = by_hand.server(home, [1], FedAvg())
    first = server.part(head)[0]
    assert server.part(head)[0] is first
    server.shared = by_hand.as_params(home, 2.0)
    assert set(server.part(head)[0].tolist()) == {2.0}


def test_a_pull_is_the_gradient_of_half_the_squared_distance() -> None:
    here = torch.tensor([1.0, -2.0, 3.0], requires_grad=True)
    there = torch.tensor([0.5, 1.0, 3.0])
    (0.7 / 2 * (here - there).square().sum()).backward()
    grad = torch.tensor([10.0, 20.0, 30.0])
    pull(grad, here.detach(), there, 0.7)
    torch.testing.assert_close(grad, torch.tensor([10.0, 20.0, 30.0]) + here.grad)
