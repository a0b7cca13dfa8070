"""Live progress: on stderr, a bar per run, with the numbers people look for."""

import time
from typing import Any

import pytest

from polyfed.comparison.grid import Cell
from polyfed.comparison.standing import State
from polyfed.measure.watch import Silent
from polyfed.report.progress import in_words, live, overview


def test_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with live() as watch:
        watch.say("begins: method [fedavg], seed 3")
        watch.say("split: [moved] 3, see [/tmp/log]")  # brackets are no markup
        for done in (1, 2):
            watch.round(done, 2, {"global": {"accuracy": 0.123}, "personal": None})
    out, err = capsys.readouterr()
    assert out == ""
    assert "[fedavg], seed 3" in err
    assert "2/2" in err
    assert "global 12.3 %" in err
    assert "split: [moved] 3, see [/tmp/log]" in err


def test_one_bar_per_run(capsys: pytest.CaptureFixture[str]) -> None:
    with live() as watch:
        for name in ("fedavg", "fedper"):
            watch.say(f"begins: method {name}, seed 0")
            watch.round(1, 1, {})
    err = capsys.readouterr().err
    assert err.count("1/1") == 2
    assert "fedavg, seed 0" in err
    assert "fedper, seed 0" in err


def cells(lines: int = 2) -> dict[Cell, State]:
    """Methods of two seeds; of the first, one is done and one runs."""
    places = [Cell(f"m{line}", {"split.alpha": 0.1}, seed, ()) for seed in (0, 1) for line in range(lines)]
    states = dict.fromkeys(places, State.WAITING)
    states[places[0]], states[places[lines]] = State.DONE, State.RUNNING
    return states


class TestOverview:
    def test_a_sign_per_cell_and_the_expected_finish(self) -> None:
        now = time.mktime((2024, 5, 6, 14, 30, 0, 0, 0, -1))
        states = cells()
        assert overview(states, 125.0, now) == [
            "m0-split.alpha=0.1  ✓ ▶",
            "m1-split.alpha=0.1  · ·",
            "1 of 4 cells done; expected finish 14:32:05",
        ]
        waiting = [cell for cell, state in states.items() if state is State.WAITING]
        states |= {waiting[0]: State.FAILED, waiting[1]: State.ELSEWHERE}
        assert overview(states, None, now)[1:] == [
            "m1-split.alpha=0.1  ✗ ~",
            "1 of 4 cells done, 1 failed, 1 with another process",
        ]
        assert overview(states, 86400.0, now)[-1].endswith("expected finish 2024-05-07 14:30:00")

    def test_of_many_lines_only_what_runs(self) -> None:
        assert overview(cells(100), None, 0.0) == ["m0-split.alpha=0.1  ✓ ▶", "1 of 200 cells done"]

    def test_above_the_bars_of_the_cells_that_run(self, capsys: pytest.CaptureFixture[str]) -> None:
        states = cells()
        first, second = list(states)[2:]
        states[second] = State.RUNNING
        with live() as watch:
            watch.cells(states, None)
            for text in ("begins: method m0, seed 1", "split: moved: 3", "split: moved: 3"):
                watch.say(text)
            watch.round_of(first, 1, 2, {})
            watch.round_of(second, 3, 4, {"global": {"accuracy": 0.5}})
        err = capsys.readouterr().err
        for name, rounds in ((first.name, "1/2"), (second.name, "3/4 global 50.0 %")):
            (line,) = [line for line in err.splitlines() if line.startswith(name)]
            assert rounds in line
        assert "1 of 4 cells done" in err
        assert err.count("split: moved: 3") == 1  # every cell says it

    def test_the_bar_of_a_cell_goes_with_it(self, capsys: pytest.CaptureFixture[str]) -> None:
        states = cells()
        first, second = list(states)[2:]
        states[second] = State.RUNNING
        with live() as watch:
            watch.cells(states, None)
            watch.round_of(first, 2, 2, {})
            watch.round_of(second, 1, 2, {})
            watch.cells({**states, first: State.DONE}, 0.0)
        err = capsys.readouterr().err
        assert "2/2" not in err
        assert "1/2" in err
        assert "2 of 4 cells done" in err


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({}, ""),
        ({"global": None, "personal": {"accuracy": 0.5}}, "personal 50.0 %"),
        ({"global": {"accuracy": 0.25}, "personal": {"accuracy": 1.0}}, "global 25.0 %, personal 100.0 %"),
    ],
)
def test_in_words(numbers: dict[str, Any], words: str) -> None:
    assert in_words(numbers) == words


def test_silent(capsys: pytest.CaptureFixture[str]) -> None:
    watch = Silent()
    watch.round(1, 1, {"global": {"accuracy": 1.0}})
    watch.say("hello")
    assert capsys.readouterr() == ("", "")
