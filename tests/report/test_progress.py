"""Live progress: on stderr, a bar per run, with the numbers people look for."""

from typing import Any

import pytest

from polyfed.report.progress import Silent, in_words, live


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
