"""Robust averages: every number of the check table by hand, and what holds for any rows."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from polyfed.message import State
from polyfed.parts import average as averaging
from polyfed.parts import chunks, cluster
from polyfed.parts.chunks import in_chunks
from polyfed.parts.cluster import inner_products
from polyfed.threats import robust
from polyfed.threats.defences import Case, Defence, Verdict, credit, defences

ROWS = (1.0, 2.0, 3.0, 4.0, 100.0)
RULES = [name for name in defences.names() if name not in ("none", "fltrust", "credit")]


def case_of(rows: Any, sent: Any = None, **more: Any) -> Case:
    """A case of these rows, each a number or a list of numbers, and each sent zeros or this."""
    made = [torch.tensor(row, dtype=torch.float32).reshape(-1) for row in rows]
    start = torch.zeros_like(made[0]) if sent is None else torch.tensor(sent, dtype=torch.float32).reshape(-1)
    n = len(made)
    return Case(made, [start] * n, len(made[0]), np.full(n, 1 / n), **more)


def judged(name: str, rows: Any, sent: Any = None, state: State | None = None, **keys: Any) -> Verdict:
    rule = defences.build({"name": name, **keys}, "defence")
    return rule.average(case_of(rows, sent, state=State() if state is None else state))


def gram(rows: Any) -> np.ndarray:
    return inner_products([torch.tensor(r, dtype=torch.float32).reshape(-1) for r in rows]).numpy()


# ---- the table


@pytest.mark.parametrize(
    ("name", "keys", "result"),
    [
        ("median", {}, 3),
        ("trimmed-mean", {}, 3),
        ("krum", {}, 2),
        ("multi-krum", {}, 2.5),
        ("geometric-median", {}, 3),
        ("dnc", {}, 2.5),
        ("norm-clip", {"tau": 3}, 2.4),
        ("centred-clipping", {"tau": 3, "steps": 1}, 2.4),
        ("centred-clipping", {"tau": 3, "steps": 2}, 3.08),
        ("centred-clipping", {"tau": 3}, 3.216),
        ("irls", {}, 2.5),
        ("gra", {}, 22),
        ("gra", {"combine": "largest"}, 2.5),
    ],
)
def test_the_table(name: str, keys: dict[str, Any], result: float) -> None:
    assert float(judged(name, ROWS, f=1, **keys).mean) == pytest.approx(result, rel=1e-6)


def test_the_mean_of_the_table() -> None:
    assert float(robust.weighted([torch.tensor([v]) for v in ROWS], np.full(5, 0.2))) == pytest.approx(22)


def test_krum_scores_and_tie() -> None:
    assert robust.krum_scores(gram(ROWS), 2).tolist() == [5, 2, 2, 5, 18625]
    assert robust.krum(gram(ROWS), 1).tolist() == [0, 1, 0, 0, 0]  # ids 1 and 2 tie
    assert judged("krum", ROWS, f=1).suspects == [0, 2, 3, 4]
    # with one neighbour more the third row would win
    assert robust.krum(gram((0.0, 0.0, 1.0, 5.0, 6.0)), 1).tolist() == [1, 0, 0, 0, 0]


def test_nearest_neighbours() -> None:
    mix = robust.nearest_neighbours(gram(ROWS), 1)
    assert (mix @ np.array(ROWS)).tolist() == [2.5, 2.5, 2.5, 2.5, 27.25]


def test_irls_weights() -> None:
    weights = judged("irls", ROWS, f=1).weights
    assert weights is not None
    assert weights[:4] == pytest.approx([0.25] * 4)
    assert weights[4] == pytest.approx(2e-19, rel=0.2)
    assert judged("irls", ROWS, f=1).suspects == [4]


def test_bulyan() -> None:
    rows = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 100.0)
    assert robust.bulyan_choice(gram(rows), 1) == [0, 1, 2, 3, 4]
    found = judged("bulyan", rows, f=1)
    assert float(found.mean) == 3
    assert found.suspects == [5, 6]


def test_bulyan_looks_at_fewer_neighbours_each_time() -> None:
    """By hand: scores over 4, 3, 2, 1, 1 neighbours choose the ids 3, 1, 5, 2, 4."""
    assert robust.bulyan_choice(gram((10.0, 7.0, 6.0, 3.0, 3.0, 0.0, 0.0)), 1) == [1, 2, 3, 4, 5]


def test_geometric_median_of_a_triangle() -> None:
    found = judged("geometric-median", [[0.0, 0.0], [4.0, 0.0], [0.0, 3.0]], f=1).mean
    assert found.tolist() == pytest.approx([0.695789, 0.751176], abs=1e-5)


def test_fltrust() -> None:
    rule = defences.build({"name": "fltrust", "f": 1}, "defence")
    case = case_of([[2.0, 0.0], [0.0, 3.0], [1.0, 1.0], [-5.0, 0.0]])
    case.own_update = lambda: torch.tensor([1.0, 0.0])
    found = rule.average(case)
    assert found.mean.tolist() == pytest.approx([0.878680, 0.292893], abs=1e-6)
    assert found.weights is not None
    assert (found.weights / found.weights[0]).tolist() == pytest.approx([1, 0, 0.70710678, 0])
    assert found.suspects == [1, 3]


def test_fltrust_that_trusts_nobody_keeps_the_model() -> None:
    rule = defences.build({"name": "fltrust"}, "defence")
    said: list[str] = []
    case = case_of([[-2.0], [-3.0], [-1.0]], sent=[7.0], say=said.append)
    case.rows = [row + 7 for row in case.rows]
    case.own_update = lambda: torch.tensor([1.0])
    assert rule.average(case).mean.tolist() == [7.0]
    assert "trusts no upload" in said[0]


def test_the_median_of_an_even_number_is_between_the_two_in_the_middle() -> None:
    assert float(judged("median", (1.0, 2.0, 10.0, 90.0)).mean) == 6


def test_a_centre_lasts_from_round_to_round() -> None:
    state = State()
    judged("centred-clipping", ROWS, state=state, tau=3, steps=1)
    assert state["defence.centre0"].tolist() == pytest.approx([2.4])
    assert float(judged("centred-clipping", ROWS, state=state, tau=3, steps=1).mean) == pytest.approx(3.08)


def test_nearest_neighbours_before_a_rule() -> None:
    """The mixed rows are 2.5 four times and 27.25."""
    assert float(judged("median", ROWS, f=1, pre="nnm").mean) == 2.5
    assert float(judged("krum", ROWS, f=1, pre="nnm").mean) == 2.5
    assert float(judged("trimmed-mean", ROWS, f=1, pre="nnm").mean) == 2.5
    assert float(judged("norm-clip", ROWS, f=1, pre="nnm", tau=3).mean) == pytest.approx((4 * 2.5 + 3) / 5)


def test_bulyan_of_mixed_rows_weighs_the_uploads_they_are_made_of() -> None:
    """The mixed rows are 3.5 six times and 20; the first five are chosen, and each is the mean of 1 to 6."""
    found = judged("bulyan", (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 100.0), f=1, pre="nnm")
    assert float(found.mean) == 3.5
    assert found.weights is not None
    assert found.weights.tolist() == pytest.approx([1 / 6] * 6 + [0])
    assert found.suspects == [6]


def test_irls_of_mixed_rows_weighs_the_uploads_they_are_made_of() -> None:
    """The mixed rows are 2 three times, 3, and 4 three times, all trusted alike; 2, 3 and 4 are in each of them."""
    found = judged("irls", (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0), f=2, pre="nnm")
    assert float(found.mean) == pytest.approx(3)
    assert found.weights is not None
    assert (35 * found.weights).tolist() == pytest.approx([3, 4, 7, 7, 7, 4, 3])
    assert found.suspects == []


def test_irls_of_mixed_rows_suspects_whom_no_trusted_row_is_made_of() -> None:
    found = judged("irls", ROWS, f=1, pre="nnm")
    assert found.weights is not None
    assert found.weights.tolist() == pytest.approx([0.25] * 4 + [0])
    assert found.suspects == [4]


def test_fltrust_of_mixed_rows_suspects_whom_no_trusted_row_is_made_of() -> None:
    """The mixed rows are 4/3 twice and then below 0; the third upload is part of both that are trusted."""
    case = case_of((3.0, 2.0, -1.0, -3.0, -4.0))
    case.own_update = lambda: torch.tensor([1.0])
    found = defences.build({"name": "fltrust", "f": 2, "pre": "nnm"}, "defence").average(case)
    assert float(found.mean) == pytest.approx(1)
    assert found.weights is not None
    assert found.weights.tolist() == pytest.approx([1 / 3] * 3 + [0, 0])
    assert found.suspects == [3, 4]


def test_buffers_follow_the_kind_of_rule() -> None:
    """A weight and a buffer each: whoever is chosen brings its buffer; bulyan and the median take the median of all."""
    case = case_of([[1.0, 1.0], [2.0, 9.0], [3.0, 3.0], [4.0, 4.0], [5.0, 5.0], [6.0, 6.0], [100.0, -900.0]])
    case.n_weights = 1
    found = {
        name: defences.build({"name": name, "f": 1}, "defence").average(case).mean.tolist()
        for name in ("krum", "multi-krum", "bulyan", "median")
    }
    assert found == {
        "krum": [3, 3],
        "multi-krum": [3.5, pytest.approx(28 / 6)],
        "bulyan": [3, 4],
        "median": [4, 4],
    }


def test_buffers_of_clipped_updates_take_the_median() -> None:
    """A weight and a buffer: the update of the weight is clipped, the buffer is the median."""
    case = case_of([[1.0, 5.0], [2.0, 6.0], [3.0, -900.0]])
    case.n_weights = 1
    for name in ("norm-clip", "centred-clipping"):
        rule = defences.build({"name": name, "tau": 2}, "defence")
        assert rule.average(case).mean[1] == 5


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("median", {}),
        ("trimmed-mean", {}),
        ("krum", {}),
        ("multi-krum", {"m": None, "weights": "uniform"}),
        ("bulyan", {}),
        ("geometric-median", {"nu": 1e-6, "weights": "uniform"}),
        ("centred-clipping", {"tau": "median", "steps": 3, "weights": "uniform"}),
        ("norm-clip", {"tau": "median", "weights": "uniform"}),
        ("fltrust", {}),
        ("dnc", {"times": 5, "coordinates": 10_000, "drops": 1.0, "weights": "uniform"}),
        ("irls", {"lam": 2.0}),
        ("credit", {"rule": "hard", "clean": 3, "width": 512, "hidden": 100, "epochs": 100, "weights": "uniform"}),
        ("gra", {"groups": 2, "combine": "size"}),
    ],
)
def test_keys_of_defences_and_their_defaults(name: str, keys: dict[str, Any]) -> None:
    assert defences.build({"name": name}, "defence").dump() == {"name": name, "f": 0.2, "pre": "none"} | keys


# ---- too few rows


@pytest.mark.parametrize("name", RULES)
def test_two_rows_are_averaged(name: str) -> None:
    found = judged(name, (1.0, 3.0))
    assert (float(found.mean), found.idle) == (2, True)


@pytest.mark.parametrize("name", ["trimmed-mean", "krum", "multi-krum", "bulyan", "dnc"])
def test_a_rule_that_assumes_nobody_is_idle(name: str) -> None:
    found = judged(name, (1.0, 2.0, 9.0, 10.0), f=0.2)
    assert (float(found.mean), found.idle) == (5.5, True)


def test_more_attackers_than_a_rule_is_made_for() -> None:
    rule = defences.build({"name": "krum", "f": 4}, "defence")
    assert rule.lowered(6)
    assert not rule.lowered(11)
    assert judged("krum", ROWS, f=4).mean == judged("krum", ROWS, f=1).mean
    assert defences.build({"name": "krum", "f": 0.3}, "defence").assumed(10) == 3


def test_bulyan_needs_seven_rows_for_one_attacker() -> None:
    assert judged("bulyan", ROWS, f=1).idle
    assert not judged("bulyan", (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 100.0), f=1).idle


# ---- what holds for any rows

rows_of = st.lists(
    st.lists(st.integers(-50, 50).map(float), min_size=3, max_size=3), min_size=7, max_size=11
)  # whole numbers: the arithmetic on them is exact
any_rule = st.sampled_from(RULES)


@settings(max_examples=15, deadline=None)
@given(any_rule, rows_of, st.integers(-20, 20).map(float))
def test_a_shift_of_everything_shifts_the_result(name: str, rows: list[list[float]], by: float) -> None:
    if name == "gra":
        rows = [[10000.0 * (i % 2), 0.0, float(i)] for i in range(len(rows))]  # groups that no rounding decides
    moved = judged(name, [[v + by for v in row] for row in rows], sent=[by] * 3, f=1).mean
    assert torch.allclose(moved, judged(name, rows, f=1).mean + by, atol=2e-3)


@settings(max_examples=15, deadline=None)
@given(any_rule, st.lists(st.floats(-100, 100, width=32), min_size=2, max_size=2), st.integers(3, 9))
def test_equal_rows_give_that_row(name: str, row: list[float], n: int) -> None:
    found, right = judged(name, [row] * n, f=1, **({"tau": 1e6} if "clip" in name else {})).mean, torch.tensor(row)
    ulp = torch.from_numpy(np.spacing(np.abs(right.numpy())))
    assert ((found - right).abs() <= ulp * (4 if "clip" in name else 1)).all()


@settings(max_examples=8, deadline=None)
@given(rows_of)
def test_rules_that_assume_nobody_are_the_mean(rows: list[list[float]]) -> None:
    mean = torch.tensor(rows).mean(0)
    for name in ("trimmed-mean", "multi-krum", "dnc"):
        assert torch.allclose(judged(name, rows, f=0).mean, mean, atol=1e-4)
    n = len(rows)
    assert np.allclose(robust.nearest_neighbours(gram(rows), 0), 1 / n)
    assert np.allclose(robust.trimmed_mean(np.array(rows), 0), mean)
    assert np.allclose(robust.multi_krum(gram(rows), 0, n), 1 / n)
    assert torch.allclose(judged("norm-clip", rows, tau=1e9).mean, mean, atol=1e-4)
    assert torch.allclose(judged("centred-clipping", rows, tau=1e9).mean, mean, atol=1e-3)
    assert torch.equal(judged("gra", rows, groups=1).mean, judged("median", rows).mean)


@settings(max_examples=8, deadline=None)
@given(rows_of, st.randoms(use_true_random=False))
def test_coordinate_rules_do_not_know_who_is_who(rows: list[list[float]], chance: Any) -> None:
    other = list(rows)
    chance.shuffle(other)
    for name in ("median", "trimmed-mean"):
        assert torch.equal(judged(name, rows, f=2).mean, judged(name, other, f=2).mean)


@settings(max_examples=15, deadline=None)
@given(rows_of, st.sampled_from(["median", "trimmed-mean"]), st.booleans())
def test_coordinate_rules_stay_in_the_honest_range(rows: list[list[float]], name: str, first: bool) -> None:
    f = (len(rows) - 3) // 4
    honest = torch.tensor(rows[f:])
    bad = [[1e6, 0.0, 0.0]] * f
    found = judged(name, bad + rows[f:] if first else rows[f:] + bad, f=f).mean
    assert (found >= honest.min(0).values).all()
    assert (found <= honest.max(0).values).all()


@settings(max_examples=20, deadline=None)
@given(rows_of, st.sampled_from(["krum", "multi-krum", "bulyan", "geometric-median", "dnc"]))
def test_a_few_rows_far_away_do_not_move_the_result(rows: list[list[float]], name: str) -> None:
    f = (len(rows) - 3) // 4
    honest = torch.tensor(rows[f:])
    diameter = torch.cdist(honest, honest).max()
    found = judged(name, [[1e6, 0.0, 0.0]] * f + rows[f:], f=f).mean
    assert (found - honest.mean(0)).norm() <= 2 * diameter + 1e-2


def test_blocks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    rows = [torch.from_numpy(draw.normal(size=100).astype(np.float32)) for _ in range(7)]
    case = Case(rows, [torch.zeros(100)] * 7, 90, np.full(7, 1 / 7))
    whole = {name: _mean(name, case) for name in RULES}
    monkeypatch.setattr(robust, "BLOCK", 16)
    monkeypatch.setattr(robust, "FITTED", 16)
    for name in RULES:
        assert torch.allclose(_mean(name, case), whole[name], atol=1e-6), name


@pytest.mark.parametrize("name", [*RULES, "fltrust", "projected"])
def test_the_number_of_cores_changes_no_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many chunks on any number of cores, each computed with one thread and put together in order."""
    draw, asked = np.random.default_rng(0), list[int]()
    rows = [torch.from_numpy(draw.normal(size=40_000).astype(np.float32)) for _ in range(7)]
    for module in (robust, averaging, cluster, credit):
        monkeypatch.setattr(module, "in_chunks", lambda f, pieces: asked.append(len(pieces)) or in_chunks(f, pieces))
    monkeypatch.setattr(averaging, "BLOCK", 1 << 12)

    def on(count: int) -> tuple[Tensor, list[int]]:
        monkeypatch.setattr(chunks, "cores", lambda: count)
        monkeypatch.setattr(chunks, "_pool", None)
        asked.clear()
        case = Case(rows, [rows[0] / 2] * 7, 39_000, np.full(7, 1 / 7), own_update=lambda: rows[1][:39_000])
        made = credit.projected(torch.stack(rows), 8, seed=1) if name == "projected" else _mean(name, case)
        if chunks._pool is not None:
            chunks._pool.shutdown()
        return made, asked.copy()

    (one, least), (two, other), (five, most) = (on(count) for count in (1, 2, 5))
    assert torch.equal(one, two)
    assert torch.equal(one, five)
    assert least == other == most
    assert max(least) > 2, "there was something to share"


def _mean(name: str, case: Case) -> Tensor:
    rule = defences.build({"name": name, "f": 1}, "defence")
    assert isinstance(rule, Defence)
    case.state = State()
    return rule.average(case).mean
