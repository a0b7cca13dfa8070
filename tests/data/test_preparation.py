"""Raw samples become what a model eats, the same way in a federation, in a run's predictor and from a file."""

import json

import numpy as np
import pytest
import torch

from polyfed.data.federation import federation
from polyfed.data.preparation import Preparation
from polyfed.data.sources.digits import Digits
from polyfed.errors import DataError, UsageError

NUMBERS = Preparation(dtype="float32", shape=(2, 3), mean=(1.0, 2.0), std=(2.0, 4.0))
PICTURES = Preparation(dtype="uint8", shape=(4, 6, 3), mean=(0.0, 0.0, 10.0), std=(1.0, 1.0, 5.0))


@pytest.mark.parametrize("size", [8, 16])
def test_a_federations_own_samples_are_prepared_as_training_prepares_them(wish, size):
    fed = federation(Digits(), wish(), 0, size=size)
    rows = np.arange(20)
    made = fed.preparation.tensor(fed.dataset.x[rows])
    assert torch.equal(made, fed.pool.prepare(fed.pool.x[rows]))
    assert tuple(made.shape[1:]) == fed.preparation.model_shape == fed.shape


def test_scaling_by_channel_and_channels_first():
    x = np.arange(2 * 4 * 6 * 3, dtype=np.uint8).reshape(2, 4, 6, 3)
    made = PICTURES.tensor(x)
    assert made.shape == (2, 3, 4, 6)
    assert torch.equal(made[:, 2], (torch.from_numpy(x[..., 2]).float() - 10) / 5)
    flat = NUMBERS.tensor(np.array([[[1, 2, 3], [2, 2, 6]]]))
    assert flat.tolist() == [[[0.0, 0.5, 1.0], [0.0, 0.0, 1.0]]]


@pytest.mark.parametrize(
    ("preparation", "x", "words"),
    [
        (PICTURES, np.zeros((2, 6, 4, 3), np.uint8), r"shape \[2, 6, 4, 3\] do not fit: expected \[N, 4, 6, 3\]"),
        (PICTURES, np.zeros((2, 4, 6), np.uint8), "do not fit"),
        (PICTURES, np.zeros((2, 4, 6, 3)), "must be uint8 pixels from 0 to 255, not float64"),
        (PICTURES, np.zeros((0, 4, 6, 3), np.uint8), "no row"),
        (NUMBERS, np.zeros((2, 3)), "do not fit"),
        (NUMBERS, np.array([[["a"] * 3] * 2]), "must be numbers"),
        (NUMBERS, np.full((2, 2, 3), np.nan), "row 0 of the inputs holds a value that is not a finite number"),
    ],
)
def test_what_does_not_fit_is_one_sentence(preparation, x, words):
    with pytest.raises(UsageError, match=words):
        preparation.tensor(x)


def test_a_file_holds_the_numbers_and_says_what_is_done(tmp_path):
    wished = Preparation(dtype="uint8", shape=(8, 8, 1), resize=16, mean=(1 / 3,), std=(0.1,), any_size=True)
    wished.write(tmp_path / "p.json")
    assert Preparation.read(tmp_path / "p.json") == wished
    said = json.loads((tmp_path / "p.json").read_text())
    assert said["model_shape"] == ["N", 1, 16, 16]
    assert [step.split()[0] for step in said["steps"]] == ["resize", "put", "make", "of"]


def test_a_size_may_be_a_side_or_height_and_width(tmp_path):
    for size, model_shape in ((16, ["N", 1, 16, 16]), ((6, 9), ["N", 1, 6, 9])):
        wished = Preparation(dtype="uint8", shape=(8, 8, 1), resize=size, mean=(1.0,), std=(2.0,))
        wished.write(tmp_path / "p.json")
        assert Preparation.read(tmp_path / "p.json") == wished
        assert json.loads((tmp_path / "p.json").read_text())["model_shape"] == model_shape
    assert wished.tensor(np.zeros((2, 8, 8, 1), np.uint8)).shape == (2, 1, 6, 9)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"dtype": "float64"}', '{"dtype": "uint8", "shape": [3], "resize": null}']
)
def test_a_file_that_is_none_is_one_sentence(tmp_path, text):
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(DataError, match="cannot read how inputs are prepared"):
        Preparation.read(tmp_path / "p.json")
    said = {"dtype": "uint8", "shape": [8, 8, 1], "resize": None, "any_size": False, "mean": [1, 2], "std": [1]}
    (tmp_path / "p.json").write_text(json.dumps(said))
    with pytest.raises(DataError, match="one number per channel"):
        Preparation.read(tmp_path / "p.json")
