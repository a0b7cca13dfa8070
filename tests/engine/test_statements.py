"""What a client may say, word by word and count by count."""

from dataclasses import replace

import numpy as np
import pytest

from polyfed.engine.statements import (
    LONG,
    MOST,
    Hello,
    StatedSamples,
    bounded,
    fault_of_hello,
    fault_of_report,
    fault_of_statement,
    known_of,
    stated_samples,
)
from polyfed.engine.work import Job, Outcome

ORIGIN = {"params": "a" * 64, "layout": "b" * 64}
EVERYBODY = np.array([1, 1])  # the classes of the global test set


def hello(**words):
    numbers = {"name": "first", "n": 5, "tests": 3, "vals": 2, "shape": [4], **ORIGIN} | words
    counts = {"train": np.array([4, 1]), "test": np.array([1, 2]), "val": np.array([2, 0])}
    return Outcome(7, numbers=numbers, counts=counts)


def fault(outcome):
    return fault_of_hello(outcome, 2, ORIGIN)


def test_an_honest_hello_is_known_and_told():
    assert fault(hello()) == ""
    known = known_of(hello())
    assert (known.id, known.name, known.n, known.counts) == (7, "first", 5, (4, 1))
    assert stated_samples(hello()).sizes == {"test": 3, "val": 2}
    assert stated_samples(hello()).counts["val"].tolist() == [2, 0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"n": MOST + 1}, "n is"),
        ({"n": -1}, "n is"),
        ({"n": "5"}, "n is '5'"),
        ({"n": 5.0}, "n is 5.0"),
        ({"greeting": 1}, "greeting is 1"),
        ({"params": "c" * 64}, "another model"),
        ({"levels": [0] * 100}, "256 values a channel"),
        ({"levels": [0] * 257}, "256 values a channel"),
    ],
)
def test_a_hello_that_cannot_be_true(words, said):
    assert said in fault(hello(**words))


def test_as_much_as_can_be_told():
    assert fault_of_statement(Hello, hello(n=MOST, levels=[0] * 512).numbers) == ""


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ([4, 0], "add up to 4, not to the 5"),
        ([4, 2], "add up to 6, not to the 5"),
        ([6, -1], "not all between 0 and 5"),
        ([7, -2], "not all between 0 and 5"),
        ([4, 1, 0], "have shape (3,), expected (2,)"),
        ([4.0, 1.0], "are not integers"),
    ],
)
def test_class_counts_that_cannot_be_true(counts, said):
    outcome = hello()
    outcome.counts["train"] = np.array(counts)
    assert said in fault(outcome)


def test_no_count_may_be_negative_even_if_none_is_too_large():
    outcome = Outcome(0, numbers=hello(n=3).numbers, counts={"train": np.array([3, 3, -3])})
    assert "not all between 0 and 3" in fault_of_hello(outcome, 3, ORIGIN)


def test_counts_that_wrap_around_do_not_add_up():
    """Four times 2^62 is 0 in 64 bits."""
    outcome = Outcome(0, numbers=hello(n=0).numbers, counts={"train": np.full(4, 2**62)})
    assert "not all between 0 and 0" in fault_of_hello(outcome, 4, ORIGIN)


# ---- reports

OWN = StatedSamples({"test": 3, "val": 2}, {"test": np.array([1, 2]), "val": np.array([2, 0])})
ASKED = Job("evaluate", 7, 1, measures=("personal", "val", "classes"))
TRUE = {
    "personal": np.array([[1, 0], [2, 0]]),
    "val": np.array([[1, 1], [0, 0]]),
    "classes": np.array([[0, 1], [0, 1]]),
    "classes_masked": np.array([[1, 0], [0, 1]]),
}


def report(job=ASKED, own=OWN, **counts):
    return fault_of_report(Outcome(7, counts=TRUE | counts), job, 2, own, EVERYBODY)


def test_a_true_report_passes():
    assert report() == ""
    assert report(own=StatedSamples(OWN.sizes)) == "", "who keeps its class counts to itself"


def test_counts_are_of_the_samples_it_told_of():
    """Three samples with one of class 0: the table that is right by columns has two of class 0 by rows."""
    assert "other samples" in report(personal=np.array([[1, 1], [0, 1]]))
    assert "add up to 2, not to the 3" in report(personal=TRUE["val"])
    assert "add up to 3, not to the 2" in report(val=TRUE["personal"])
    assert "other samples" in report(classes_masked=np.array([[2, 0], [0, 0]]))


def test_only_what_was_asked_for_is_told():
    for measures in (("personal", "val"), ("val", "classes")):
        assert "it was not asked for" in report(replace(ASKED, measures=measures))


@pytest.mark.parametrize(("digest", "fault"), [("", ""), ("0" * 64, ""), ("0" * 63, "is none"), ("0" * 65, "is none")])
def test_a_digest_has_64_characters(digest, fault):
    assert fault_of_report(Outcome(7, digest=digest), ASKED, 2, OWN, EVERYBODY).endswith(fault)
    assert bool(fault_of_report(Outcome(7, digest=digest), ASKED, 2, OWN, EVERYBODY)) == bool(fault)


def test_errors_are_printable_and_end():
    assert bounded("a\x1b[2J\n\tb") == "a[2J\n\tb"
    assert bounded("x" * (LONG + 1)) == "x" * LONG
