"""Every number by hand, from made-up confusion tables (rows: true class, columns: answer)."""

import math

import numpy as np
import pytest

from polyfed.measure.metrics import (
    accuracy,
    balanced,
    class_groups,
    class_numbers,
    client_numbers,
    global_numbers,
    ious,
    miou,
    recalls,
    round_of_arrival,
)

TABLE = np.array([[8, 2, 0], [1, 3, 0], [0, 0, 0]])  # 10 of class 0, 4 of class 1, none of class 2
EACH = {"head": [0], "mid": [1], "tail": [2]}


def right(good, total, classes=3):
    """A table with `good` of `total` samples of class 0 answered rightly."""
    table = np.zeros((classes, classes), int)
    table[0, 0], table[0, 1] = good, total - good
    return table


def test_accuracy_recalls_and_balanced():
    assert accuracy(TABLE) == 11 / 14
    assert recalls(TABLE)[:2].tolist() == [0.8, 0.75]
    assert math.isnan(recalls(TABLE)[2])
    assert balanced(TABLE) == pytest.approx((0.8 + 0.75) / 2)
    assert math.isnan(accuracy(np.zeros((3, 3))))
    assert math.isnan(balanced(np.zeros((3, 3))))


@pytest.mark.parametrize(
    ("counts", "groups"),
    [
        ([5] * 10, ([0, 1, 2, 3], [4, 5, 6], [7, 8, 9])),
        ([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], ([9, 8, 7, 6], [5, 4, 3], [2, 1, 0])),
        ([3, 9, 3, 9, 3], ([1, 3], [0, 2], [4])),
        ([7, 7], ([0], [1], [])),
        ([1, 0, 2], ([2], [0], [1])),
    ],
)
def test_head_mid_and_tail_are_thirds_of_the_classes_larger_first_ties_by_id(counts, groups):
    assert tuple(class_groups(counts).values()) == groups
    assert tuple(class_groups(counts)) == ("head", "mid", "tail")


def test_global_numbers():
    found = global_numbers(TABLE, EACH)
    assert found == {"accuracy": 11 / 14, "balanced": pytest.approx(0.775), "head": 0.8, "mid": 0.75, "tail": None}
    assert global_numbers(None, EACH) is None
    assert global_numbers(np.zeros((3, 3), int), EACH) is None


def test_group_numbers_are_means_of_recalls_not_of_samples():
    table = np.diag([90, 0, 0]) + np.array([[10, 0, 0], [0, 0, 1], [0, 0, 0]])
    found = global_numbers(table, {"head": [0, 1], "mid": [2], "tail": []})
    assert found["head"] == pytest.approx((1.0 + 0.0) / 2)
    assert found["tail"] is None


def test_client_numbers_are_unweighted_over_clients_that_have_test_samples():
    tables = {0: right(1, 1), 1: right(0, 99), 2: np.zeros((3, 3), int)}
    found = client_numbers(tables, EACH)
    assert found["accuracy"] == 0.5, "not 1 of 100"
    assert found["std"] == 0.5
    assert found["head"] == 0.01, "recalls per class are pooled over clients"
    assert client_numbers({2: tables[2]}, EACH) is None
    assert client_numbers({}, EACH) is None


def test_balanced_is_the_mean_of_the_clients_own_and_not_that_of_the_pooled_table():
    one = np.array([[1, 0, 0], [1, 0, 0], [0, 0, 0]])  # recalls 1 and 0: balanced 0.5
    other = np.array([[0, 9, 0], [0, 1, 0], [0, 0, 0]])  # recalls 0 and 1: balanced 0.5
    third = np.array([[4, 0, 0], [0, 0, 0], [0, 0, 0]])  # one class, all right: balanced 1
    found = client_numbers({0: one, 1: other, 2: third}, EACH)
    assert found["balanced"] == pytest.approx((0.5 + 0.5 + 1.0) / 3)
    pooled = balanced(one + other + third)
    assert pooled == pytest.approx((5 / 14 + 1 / 2) / 2)
    assert found["accuracy"] == pytest.approx((1 / 2 + 1 / 10 + 1) / 3)
    assert (found["head"], found["mid"]) == (pytest.approx(5 / 14), 0.5), "groups are pooled"


@pytest.mark.parametrize(("clients", "tenth"), [(1, 1), (9, 1), (10, 1), (11, 2), (20, 2), (21, 3)])
def test_worst_and_best_are_means_over_the_ceiling_of_a_tenth(clients, tenth):
    tables = {k: right(k, 30) for k in reversed(range(clients))}
    found = client_numbers(tables, EACH)
    assert found["worst10"] == pytest.approx(np.mean(range(tenth)) / 30)
    assert found["best10"] == pytest.approx(np.mean(range(clients - tenth, clients)) / 30)
    assert found["std"] == pytest.approx(np.std(np.arange(clients) / 30))


def test_pa_cls_averages_over_own_classes_then_over_clients():
    one = np.array([[5, 5, 0], [0, 10, 0], [0, 10, 0]])  # recalls 0.5, 1, 0
    found = class_numbers({0: one, 1: one}, {0: [0, 1], 1: [2]}, EACH)
    assert found["accuracy"] == (0.75 + 0.0) / 2
    assert found["head"] == 0.5, "only client 0 has class 0"
    assert found["tail"] == 0.0
    assert (found["worst10"], found["best10"]) == (0.0, 0.75)


def test_pa_cls_of_masks_has_miou_over_own_classes():
    one = np.array([[3, 1, 0], [2, 4, 0], [0, 0, 0]])  # IoU 3/6, 4/7
    found = class_numbers({0: one, 1: one}, {0: [0, 1], 1: [1]}, EACH, masks=True)
    assert found["miou"] == pytest.approx(((0.5 + 4 / 7) / 2 + 4 / 7) / 2)
    assert "miou" not in class_numbers({0: one}, {0: [0]}, EACH)


def test_pa_cls_leaves_out_clients_without_classes_and_is_none_without_clients():
    one = np.eye(3, dtype=int)
    found = class_numbers({0: one, 1: one}, {0: [0], 1: []}, EACH)
    assert found["accuracy"] == 1.0
    assert found["mid"] is None
    assert class_numbers({}, {}, EACH) is None
    assert class_numbers({0: one}, {0: []}, EACH) is None, "null, not nan"


def test_round_of_arrival_is_the_first_round_that_reaches_it():
    curve = [(2, 0.1), (4, 0.5), (6, 0.4), (8, 0.9)]
    assert round_of_arrival(curve, 0.5) == 4
    assert round_of_arrival(curve, 0.45) == 4
    assert round_of_arrival(curve, 0.6) == 8
    assert round_of_arrival(curve, 0.95) is None, "never is not the last round"
    assert round_of_arrival([], 0.0) is None


def test_intersection_over_union():
    counts = np.array([[3, 1], [2, 4]])
    assert ious(counts).tolist() == pytest.approx([0.5, 0.571429], abs=1e-6)
    assert miou(counts) == pytest.approx(0.535714, abs=1e-6)
    assert (accuracy(counts), balanced(counts)) == pytest.approx((0.7, 0.708333), abs=1e-6)
    assert miou(np.array([[3, 1, 0], [2, 4, 0], [0, 0, 0]])) == pytest.approx(0.535714, abs=1e-6)  # an absent class
    found = global_numbers(counts, {}, masks=True)
    assert found is not None
    assert found["miou"] == miou(counts)
    assert client_numbers({0: counts, 1: np.diag([1, 1])}, {}, masks=True)["miou"] == pytest.approx(
        (miou(counts) + 1) / 2
    )
