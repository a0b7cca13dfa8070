"""Credit: what it learns in clean rounds, which uploads it doubts after them, and which numbers it looks at."""

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from polyfed.message import State
from polyfed.models.base import Net
from polyfed.params import Layout, body, everything, head
from polyfed.threats.defences import Case, Verdict, credit, defences
from polyfed.threats.defences.credit import Credit, projected, surrogate_range

LAYOUT = Layout(Net(nn.Linear(3, 2, bias=False), nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)))
N = LAYOUT.n_weights  # 14: 6 of the trunk, 4 of the last stage, 4 of the head


def rule_of(**keys: Any) -> Credit:
    made = defences.build({"name": "credit", "clean": 2, "hidden": 4, **keys}, "defence")
    assert isinstance(made, Credit)
    return made


def case_of(rows: list[Tensor], round: int, state: State, **more: Any) -> Case:
    p = np.arange(1, len(rows) + 1) / sum(range(1, len(rows) + 1))
    given: dict[str, Any] = {"layout": LAYOUT, "part": everything, **more}
    return Case(rows, [torch.zeros(N)] * len(rows), N, p, state=state, round=round, **given)


def honest(seed: int) -> list[Tensor]:
    return list(torch.randn(5, N, generator=torch.Generator().manual_seed(seed)))


def after_clean_rounds(rule: Credit, state: State, rows: list[Tensor]) -> Verdict:
    for number in (1, 2):
        plain = rule.average(case_of(honest(number), number, state))
        assert plain.idle
        assert torch.allclose(plain.mean, torch.stack(honest(number)).T @ torch.arange(1.0, 6.0) / 15, atol=1e-6)
    return rule.average(case_of(rows, 3, state))


def test_it_learns_in_clean_rounds_and_then_leaves_out_what_it_cannot_rebuild() -> None:
    state, rows = State(), honest(3)
    rows[2] = rows[2] + 1000
    found = after_clean_rounds(rule_of(), state, rows)
    assert found.weights is not None
    assert not found.idle
    assert found.suspects == [2]
    assert found.weights.tolist() == pytest.approx([1 / 12, 2 / 12, 0, 4 / 12, 5 / 12])
    assert torch.allclose(found.mean, torch.stack(rows).T @ torch.from_numpy(found.weights).float(), atol=1e-4)
    assert "defence.clean" not in state  # only what it learnt is kept
    weights = [len(state["defence.autoencoder"]), len(state["defence.mean"]), len(state["defence.spread"])]
    assert weights == [4 * 4 + 4 + 4 * 4 + 4, 4, 4]
    again = rule_of().average(case_of(rows, 4, state))  # it learns no more
    assert torch.equal(again.mean, found.mean)


@pytest.mark.parametrize(
    ("rule", "weights", "suspects"),
    [
        ("hard", [1 / 6, 2 / 6, 3 / 6, 0], [3]),  # the mean error is 4
        ("credit", [1 / 3.4, 1 / 3.4, 1 / 3.4, 0.4 / 3.4], []),  # p / A = .1, .2 / 2, .3 / 3, .4 / 10
    ],
)
def test_weights_follow_from_errors(
    rule: str, weights: list[float], suspects: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Credit, "errors", lambda self, case, surrogates: np.array([1.0, 2.0, 3.0, 10.0]))
    state = State()
    for number in (1, 2):
        rule_of().average(case_of(honest(number), number, state))
    found = rule_of(rule=rule, weights="method").average(case_of(honest(3)[:4], 3, state))
    assert found.weights is not None
    assert found.weights.tolist() == pytest.approx(weights)
    assert found.suspects == suspects


def test_the_error_is_that_of_the_standardised_surrogate() -> None:
    """An autoencoder of zeros rebuilds nothing: the error is the squared length."""
    state = State()
    state["defence.autoencoder"] = torch.zeros(4 * 4 + 4 + 4 * 4 + 4)
    state["defence.mean"], state["defence.spread"] = torch.tensor([1.0, 0, 0, 0]), torch.tensor([2.0, 1, 1, 1])
    found = rule_of().errors(case_of(honest(1), 3, state), torch.tensor([[5.0, 0, 1, 0], [1.0, 0, 0, 0]]))
    assert found.tolist() == [5, 0]


def test_who_is_averaged_twice_in_a_round_counts_once() -> None:
    state, rule = State(), rule_of()
    for call in (0, 1):
        rule.average(case_of(honest(1), 1, state, call=call))
    assert len(state["defence.clean"]) == 5


def test_without_clean_rounds_there_is_nothing_to_learn_from() -> None:
    with pytest.raises(ValueError, match="saw no upload in its clean rounds"):
        rule_of().average(case_of(honest(1), 3, State()))


def test_it_looks_at_the_last_convolution_or_the_last_matrix_below_the_head() -> None:
    layers = [("conv1", nn.Conv2d(1, 2, 3)), ("conv2", nn.Conv2d(2, 2, 3)), ("flat", nn.Flatten())]
    deep = Layout(Net(nn.Sequential(OrderedDict(layers)), nn.Linear(2, 3), nn.Linear(3, 5)))
    assert surrogate_range(deep, everything) == slice(20, 56)  # after 18 weights and 2 biases
    assert surrogate_range(LAYOUT, everything) == surrogate_range(LAYOUT, body) == slice(6, 10)
    assert surrogate_range(LAYOUT, head) == slice(0, 4)  # the only matrix there is
    assert surrogate_range(deep, ~head & ~body) == slice(0, 0)


def test_long_surrogates_are_projected_alike_in_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.randn(3, 9000, generator=torch.Generator().manual_seed(0))
    short = projected(rows, 200, 5)
    assert short.shape == (3, 200)
    assert torch.equal(short, projected(rows, 200, 5))
    assert not torch.equal(short, projected(rows, 200, 6))
    assert torch.allclose(short.norm(dim=1), rows.norm(dim=1), rtol=0.2)  # lengths are kept, nearly
    state, rule = State(), rule_of(width=3)
    first = rule.surrogates(case_of(honest(1), 1, state))
    assert first.shape == (5, 3)
    assert torch.equal(first, rule.surrogates(case_of(honest(1), 2, state)))  # the seed is in the state
    monkeypatch.setattr(credit, "projected", lambda rows, *_: pytest.fail("four numbers are no more than four"))
    assert torch.equal(rule_of(width=4).surrogates(case_of(honest(1), 1, state)), torch.stack(honest(1))[:, 6:10])


def test_mixed_uploads_have_mixed_surrogates() -> None:
    mix = np.full((5, 5), 0.2)
    found = rule_of().surrogates(case_of(honest(1), 1, State(), mix=mix))
    assert torch.allclose(found, torch.stack(honest(1))[:, 6:10].mean(0).expand(5, 4), atol=1e-6)
