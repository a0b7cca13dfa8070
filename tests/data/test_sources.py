"""What all sources share; digits and arrays."""

from typing import Any

import numpy as np
import pytest
import torch

from polyfed.data.federation import federation
from polyfed.data.partition import Users
from polyfed.data.sources import base, load_cached, sources
from polyfed.data.sources.arrays import Arrays
from polyfed.data.sources.base import Dataset
from polyfed.data.sources.digits import Digits, bundled
from polyfed.errors import DataError, UsageError


def test_every_source_is_registered() -> None:
    expected = {"arrays", "cifar10", "cifar100", "digits", "fashion-mnist", "folder", "mnist", "uci-har"}
    assert expected <= set(sources.names())


def test_settings_are_checked_in_one_sentence() -> None:
    with pytest.raises(UsageError, match=r"'data.size': expected a whole number from 1 on or 'auto'"):
        sources.build({"name": "digits", "size": "big"}, "data")
    with pytest.raises(UsageError, match=r"'data.limit'.*greater than or equal to 1"):
        sources.build({"name": "digits", "limit": 0}, "data")
    with pytest.raises(UsageError, match="unknown data 'minst'; did you mean 'mnist'"):
        sources.build("minst", "data")


def test_a_source_is_plain_data() -> None:
    for source in (Digits(limit=5), sources.build({"name": "uci-har", "root": "~/x", "subjects": [1, 2]}, "data")):
        assert sources.build(source.dump(), "data") == source


def test_digits_are_the_ones_scikit_learn_loads() -> None:
    from sklearn.datasets import load_digits

    theirs, ours = load_digits(), bundled()
    assert np.array_equal(ours[:, :-1], theirs.data)
    assert np.array_equal(ours[:, -1], theirs.target)


def test_digits_without_scikit_learn_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyfed.data.sources.digits.find_spec", lambda name: None)
    with pytest.raises(DataError, match="come with scikit-learn, which is not installed"):
        Digits().load()


def test_digits_have_a_fixed_stratified_test_part() -> None:
    data = Digits().load()
    assert data.x.shape == (1797, 8, 8, 1)
    assert data.x.dtype == np.uint8
    assert data.x.max() == 255
    assert len(data.y) - data.train == 359
    assert set(np.bincount(data.y[data.train :])) <= {35, 36, 37}
    assert np.array_equal(data.y, Digits().load().y)


def test_one_process_reads_the_same_source_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    real = Digits.load
    monkeypatch.setattr(Digits, "load", lambda self: reads.append(1) or real(self))
    base._loaded.clear()
    first = load_cached(Digits(limit=3))
    assert load_cached(Digits(augment="flip")) is first
    assert len(reads) == 1
    for i in range(base.KEPT):
        load_cached(Arrays.hold(np.full((2, 2), i), [0, 1]))
    assert len(base._loaded) == base.KEPT
    assert load_cached(Digits()) is not first


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"y": np.zeros(3, np.int64)}, "4 samples but 3 labels"),
        ({"train": 5}, "5 training samples among 4"),
        ({"y": np.array([0, 1, 2, 0])}, "labels run from 0 to 2, expected 0 to 1"),
        ({"x": np.zeros((4, 2))}, "uint8 images"),
        ({"users": np.zeros(3, int), "user_names": ("a",)}, "4 samples but 3 user ids"),
        ({"domains": np.ones(4, int), "domain_names": ("a",)}, "a domain id without a name"),
    ],
)
def test_a_dataset_is_checked_in_one_place(change: dict[str, Any], says: str) -> None:
    good = {"x": np.zeros((4, 2), np.float32), "y": np.zeros(4, np.int64), "train": 4, "class_names": ("a", "b")}
    Dataset("toy", **good)
    with pytest.raises(DataError, match=f"^toy: .*{says}"):
        Dataset("toy", **{**good, **change})


def test_arrays_are_held_under_a_key_of_their_content(wish: Any) -> None:
    x = np.arange(40 * 9, dtype=np.uint8).reshape(40, 3, 3)
    y = torch.arange(40) % 4
    source = Arrays.hold(x, y, x[:8], y[:8], users=["ann", "bob"] * 20)
    assert source == Arrays.hold(x.copy(), y, x[:8], y[:8], users=["ann", "bob"] * 20)
    assert source != Arrays.hold(x, y)
    assert load_cached(sources.build(source.dump(), "data")) is load_cached(source)
    assert source.load().x is source.load().x  # the samples are held once
    fed = federation(source, wish(Users(), None), 0)
    assert fed.shape == (1, 3, 3)
    assert [client.name for client in fed.clients] == ["ann", "bob"]
    assert len(fed.global_test) == 8


def test_arrays_of_another_process_must_be_passed_again() -> None:
    with pytest.raises(DataError, match="were given as Python objects; pass them again"):
        Arrays(key="0123").load()


def test_float_arrays_are_left_as_they_are(wish: Any) -> None:
    x = np.random.default_rng(0).normal(5, 2, (20, 4, 6))
    fed = federation(Arrays.hold(x, np.arange(20) % 2), wish(), 0)
    made, _ = fed.view(np.arange(20)).take(torch.arange(20))
    assert np.array_equal(made.numpy(), x.astype(np.float32))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"x": np.zeros((3, 2)), "y": [0, 1]}, "3 samples but 2 labels"),
        ({"x": np.zeros((2, 2)), "y": [0, 1], "x_test": np.zeros((1, 2))}, "must be given together"),
        ({"x": np.zeros((2, 2)), "y": [0, 1], "x_test": np.zeros((1, 3)), "y_test": [0]}, "x_test are float32"),
        ({"x": np.zeros((2, 2)), "y": [0, 1], "x_test": np.zeros((1, 2)), "y_test": [0, 1]}, "x_test: 1 samples but 2"),
        ({"x": np.zeros((2, 2)), "y": [0, 1], "users": [1]}, "2 training samples but 1 users"),
        ({"x": np.array([[None, 1]]), "y": [0]}, "samples must be an array of numbers"),
        ({"x": np.zeros((2, 2)), "y": [0, 2], "class_names": ["a", "b"]}, "labels run from 0 to 2"),
    ],
)
def test_bad_arrays_get_one_sentence(given: dict[str, Any], says: str) -> None:
    with pytest.raises(DataError, match=says):
        Arrays.hold(**given).load()
