"""Prototypes: means of features by class, merged by weight, and the nearest one that answers."""

import pytest
import torch

import by_hand
from polyfed.models.base import Ensemble
from polyfed.parts.prototypes import Nearest, class_features, merged, table

INF = float("inf")


def test_the_mean_features_of_each_class() -> None:
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 0.0]])
    assert class_features(rows, torch.tensor([2, 0, 2]), torch.tensor([0, 2])).tolist() == [[3.0, 4.0], [3.0, 1.0]]


def test_merged_by_weight_over_those_who_sent_the_class() -> None:
    one = torch.tensor([3, 1]), torch.tensor([[4.0], [8.0]]), torch.tensor([1, 3])
    other = torch.tensor([1]), torch.tensor([[0.0]]), torch.tensor([1])
    ids, rows = merged([one, other], 5)
    assert ids.tolist() == [1, 3]
    assert rows.tolist() == [[6.0], [4.0]]  # (3 * 8 + 1 * 0) / 4, and 4 alone
    assert rows.dtype == torch.float32


def test_a_row_that_weighs_nothing_is_no_prototype() -> None:
    ids, rows = merged([(torch.tensor([0, 1]), torch.tensor([[4.0], [8.0]]), torch.tensor([0, 2]))], 3)
    assert (ids.tolist(), rows.tolist()) == ([1], [[8.0]])


def test_a_table_has_a_row_for_every_class_and_knows_which_are_real() -> None:
    rows, known = table(torch.tensor([[5.0, 6.0]]), torch.tensor([2]), 3)
    assert rows.tolist() == [[0.0, 0.0], [0.0, 0.0], [5.0, 6.0]]
    assert known.tolist() == [False, False, True]


def test_the_nearest_prototype_answers() -> None:
    torch.manual_seed(0)
    net, x = by_hand.tiny_net().eval(), by_hand.some(6).pool.x
    with torch.no_grad():
        h = net.features(x)
        prototypes, known = torch.stack([h[3], h[0], h[1]]), torch.tensor([True, False, True])
        logits = Nearest(net, prototypes, known)(x)
    assert logits[:, 1].tolist() == [-INF] * 6  # a class without a prototype is no answer, however near
    assert float(logits[3, 0]) == float(logits[1, 2]) == 0.0
    torch.testing.assert_close(logits[:, 2], -(h - h[1]).square().sum(1))
    assert logits[[3, 1]].argmax(1).tolist() == [0, 2]


@pytest.mark.parametrize("bn", [False, True])
def test_it_is_built_again_from_its_plan(bn: bool) -> None:
    torch.manual_seed(0)
    made = Nearest(by_hand.tiny_net(bn=bn), torch.randn(3, by_hand.WIDTH), torch.tensor([True, True, False])).eval()
    again = Ensemble.kinds["nearest"].planned(made.plan(), lambda: by_hand.tiny_net(bn=bn))
    again.load_state_dict(made.state_dict(), strict=True)
    x = by_hand.some(6).pool.x
    assert torch.equal(again.eval()(x), made(x))
