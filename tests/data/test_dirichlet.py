"""The four Dirichlet partitions on fixed shares, with counts worked out by hand."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from polyfed.data import dirichlet
from polyfed.rng import generator


class Fixed:
    """A generator whose draws are known: these shares one after the other, and every permutation backwards."""

    def __init__(self, *shares: Iterable[float], chosen: int = 0):
        self.shares, self.chosen = [np.array(share) for share in shares], chosen
        self.alphas: list[list[float]] = []

    def dirichlet(self, alphas: np.ndarray) -> np.ndarray:
        self.alphas.append(alphas.tolist())
        return self.shares.pop(0)

    def permutation(self, n: int) -> np.ndarray:
        return np.arange(n)[::-1]

    def integers(self, n: int) -> int:
        assert self.chosen < n
        return self.chosen


def labels_of(*sizes: int) -> np.ndarray:
    return np.repeat(np.arange(len(sizes)), sizes)


def held(labels: np.ndarray, parts: list[np.ndarray], classes: int) -> list[list[int]]:
    """Each client's samples per class; every sample has one owner."""
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    return [np.bincount(labels[part], minlength=classes).tolist() for part in parts]


def test_class_wise_cuts_every_class_at_its_own_shares_rounded_down() -> None:
    labels = labels_of(10, 5, 7)
    draws: Any = Fixed([0.27, 0.36, 0.37], [0.5, 0.15, 0.35], [0.05, 0.9, 0.05])
    parts = dirichlet.class_wise(labels, 3, 3, 0.4, draws)
    # cuts at 2.7 and 6.3 of 10, at 2.5 and 3.25 of 5, at 0.35 and 6.65 of 7
    assert held(labels, parts, 3) == [[2, 2, 0], [4, 1, 6], [4, 2, 1]]
    assert draws.alphas == [[0.4] * 3] * 3


def test_client_wise_shares_a_class_by_the_wishes_of_all_for_it_rounded_to_the_nearest() -> None:
    labels = labels_of(10, 5, 7)
    draws: Any = Fixed([0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.1, 0.1, 0.8])
    parts = dirichlet.client_wise(labels, 3, 3, 0.4, draws)
    # class 0: 6, 2 and 1 of 9 parts, cut at 6.67 and 8.89 of 10; class 1: at 1.67 and 4.44; class 2: at 0.58 and 2.33
    assert held(labels, parts, 3) == [[7, 2, 1], [2, 2, 1], [1, 1, 5]]
    assert draws.alphas == [[0.4] * 3] * 3


def test_a_client_wishes_for_classes_and_a_class_is_cut_among_clients() -> None:
    """Five clients and two classes tell the one from the other."""
    labels = labels_of(10, 10)
    for variant, wide in ((dirichlet.class_wise, 5), (dirichlet.capped, 5), (dirichlet.client_wise, 2)):
        draws: Any = Fixed(*[np.full(wide, 1 / wide)] * 5)
        assert len(variant(labels, 5, 2, 0.5, draws)) == 5
        assert {len(alphas) for alphas in draws.alphas} == {wide}


def test_capped_counts_what_a_client_holds_of_all_classes_so_far() -> None:
    labels = labels_of(10, 8, 6)
    # backwards: class 2, cut at 5.4 and 5.7; class 1, at 1.2 and 5.2; class 0 without client 0, which holds 6 ...
    draws: Any = Fixed([0.9, 0.05, 0.05], [0.15, 0.5, 0.35], [0.58, 0.3, 0.12])
    parts = dirichlet.capped(labels, 3, 3, 0.4, draws)
    # ... of its 8: it may still take some, cut at 5.8 and 8.8 of 10
    assert held(labels, parts, 3) == [[5, 1, 5], [3, 4, 0], [2, 3, 1]]
    draws = Fixed([0.9, 0.05, 0.05], [0.45, 0.33, 0.22], [0.58, 0.3, 0.12])
    parts = dirichlet.capped(labels, 3, 3, 0.4, draws)
    # with 5 and then 3 it is full: the last class is cut at 0 and 0.3 / 0.42 * 10 = 7.14
    assert held(labels, parts, 3) == [[0, 3, 5], [7, 3, 0], [3, 2, 1]]


def test_capped_draws_the_order_of_the_classes() -> None:
    labels = labels_of(8, 8)
    firsts = set()
    for seed in range(10):  # all of the first class goes to client 0, which then is full
        draws: Any = Fixed([1.0, 0.0], [1.0, 0.0])
        draws.permutation = generator(seed, "t").permutation
        firsts.add(tuple(held(labels, dirichlet.capped(labels, 2, 2, 0.4, draws), 2)[0]))
    assert firsts == {(8, 0), (0, 8)}


def test_mass_that_falls_on_full_clients_is_shared_equally_by_the_others() -> None:
    labels = labels_of(4, 4, 4)
    draws: Any = Fixed(*[[1.0, 0.0, 0.0]] * 3)
    assert held(labels, dirichlet.capped(labels, 3, 3, 0.4, draws), 3) == [[0, 0, 4], [2, 2, 0], [2, 2, 0]]


def test_shares_that_underflow_go_to_one_at_random() -> None:
    labels = labels_of(6, 4)
    for share in ([np.nan] * 3, [0.0] * 3):
        draws: Any = Fixed(share, [0.5, 0.25, 0.25], chosen=1)
        assert held(labels, dirichlet.class_wise(labels, 3, 2, 0.4, draws), 2) == [[0, 2], [6, 1], [0, 1]]


def test_a_class_nobody_wishes_for_is_shared_equally() -> None:
    labels = labels_of(6, 6)
    draws: Any = Fixed([1.0, 0.0], [1.0, 0.0], [1.0, 0.0])
    assert held(labels, dirichlet.client_wise(labels, 3, 2, 0.4, draws), 2) == [[2, 2]] * 3


@pytest.mark.parametrize(
    ("first", "least", "moved", "expected"),
    [
        ([0.7, 0.3], None, 0, [[6, 7, 8, 9], [4, 5, 10, 11], [0, 1, 2, 3]]),
        ([0.3, 0.7], None, 1, [[4, 6, 7, 8], [5, 9, 10, 11], [0, 1, 2, 3]]),  # at least half of 4
        ([0.3, 0.7], 1, 0, [[5, 6, 7, 8], [4, 9, 10, 11], [0, 1, 2, 3]]),
        ([0.7, 0.3], 3, 1, [[4, 7, 8, 9], [5, 6, 10, 11], [0, 1, 2, 3]]),
    ],
)
def test_feddf_shuffles_caps_and_repairs_in_blocks_and_cuts_the_string_into_equal_parts(
    first: list[float], least: int | None, moved: int, expected: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of two workers: rows 11 to 4 (four of class 2, four of class 1) for two, rows 3 to 0 for the third.

    In the first block client 0 gets 2 (or 1) of class 2 and none of class 1; each worker's rows go class by class.
    """
    monkeypatch.setattr(dirichlet, "BLOCK", 2)
    draws: Any = Fixed(first, [0.2, 0.8], [0.5, 0.5], [1.0], [1.0], [1.0])
    parts, found = dirichlet.feddf(labels_of(4, 4, 4), 3, 3, 0.4, draws, least)
    assert found == moved
    assert [part.tolist() for part in parts] == expected


@pytest.mark.parametrize("variant", [dirichlet.class_wise, dirichlet.capped, dirichlet.client_wise])
def test_which_samples_of_a_class_a_client_gets_is_drawn(variant: Any) -> None:
    labels, seen = labels_of(10), set()
    for seed in range(5):
        draws: Any = Fixed(*[[0.5, 0.5] if variant is not dirichlet.client_wise else [1.0]] * 2)
        draws.permutation = generator(seed, "t").permutation
        seen.add(tuple(variant(labels, 2, 1, 0.4, draws)[0].tolist()))
    assert len(seen) == 5
