"""Where the time of a run goes, by a clock that is set by hand."""

import contextlib

import pytest

from polyfed.measure.seconds import PHASES, Stopwatch, outside_training, phases_in_words


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now

    def pass_(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_time_is_always_in_exactly_one_phase(clock):
    watch = Stopwatch(clock)
    clock.pass_(1)
    watch.enter("server")
    clock.pass_(2)
    with watch.phase("eval"):
        clock.pass_(4)
        with watch.phase("report"):
            clock.pass_(8)
        clock.pass_(16)
    clock.pass_(32)
    spent = watch.read()
    nothing = dict.fromkeys(PHASES, 0.0)
    assert spent == nothing | {"total": 63, "setup": 1, "server": 34, "eval": 20, "report": 8}


def test_a_phase_ends_with_an_error(clock):
    watch = Stopwatch(clock)
    with contextlib.suppress(ValueError), watch.phase("train"):
        clock.pass_(1)
        raise ValueError
    clock.pass_(2)
    assert (watch.read()["train"], watch.read()["setup"]) == (1, 2)


def test_earlier_sittings_are_counted_and_the_sum_holds(clock):
    watch = Stopwatch(clock)
    clock.pass_(1)
    watch.enter("eval")
    clock.pass_(2)
    watch.enter("setup")
    watch.add({"total": 7.0, "train": 5.0, "eval": 2.0})
    clock.pass_(3)
    spent = watch.read()
    assert spent["total"] == 13 == sum(spent[phase] for phase in PHASES)
    assert (spent["train"], spent["eval"], spent["setup"]) == (5, 4, 4)


def test_a_run_that_trains_less_than_it_does_else_says_where():
    said = outside_training({"total": 17, "setup": 1, "train": 4, "finish": 1, "eval": 10.04, "report": 0.5})
    assert said == "11.5 s were spent outside training and 5.0 s in it: 10.0 s in eval and 1.0 s in setup"


@pytest.mark.parametrize("seconds", [{"train": 3, "finish": 2, "eval": 5}, {"total": 2.0}])
def test_any_other_run_says_nothing(seconds):
    assert outside_training(seconds) == ""


def test_phases_in_words():
    assert phases_in_words({"eval": 2, "train": 1.25}) == "train 1.2, eval 2.0"
