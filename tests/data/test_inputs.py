"""New samples from files: arrays, tables, pictures; what does not fit is said in one sentence."""

import numpy as np
import pytest
from PIL import Image

from polyfed.data.inputs import read_inputs
from polyfed.data.preparation import Preparation
from polyfed.errors import DataError, UsageError

VECTORS = Preparation(dtype="float32", shape=(3,))
GREY = Preparation(dtype="uint8", shape=(2, 2, 1))
COLOUR = Preparation(dtype="uint8", shape=(2, 2, 3))


def table(tmp_path, text):
    path = tmp_path / "x.csv"
    path.write_text(text, encoding="utf-8")
    return path


def picture(path, size=(2, 2), mode="L", value=7):
    Image.new(mode, size, value if mode == "L" else (value, 1, 2)).save(path)


def test_arrays_by_row(tmp_path):
    x = np.arange(6.0).reshape(2, 3)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", x=x, y=[0, 1])
    for name in ("x.npy", "x.npz"):
        found = read_inputs(tmp_path / name, VECTORS)
        assert (found.kind, found.names) == ("row", ["0", "1"])
        assert np.array_equal(found.x, x)


@pytest.mark.parametrize(
    "text",
    ["1,2,3\n4,5,6\n", "a,b,c\n1,2,3\n4,5,6\n", '\ufeff"a b","#",c\r\n1,2,3\r\n4,5,6\r\n\r\n', "1,2,3\n4e0, 5,6"],
)
def test_a_table_with_or_without_names(tmp_path, text):
    assert read_inputs(table(tmp_path, text), VECTORS).x.tolist() == [[1, 2, 3], [4, 5, 6]]


def test_a_table_of_pixels(tmp_path):
    found = read_inputs(table(tmp_path, "0,255,3,4\n"), GREY)
    assert (found.x.dtype, found.x.tolist()) == (np.uint8, [[[[0], [255]], [[3], [4]]]])
    for wrong in ("0,256,3,4", "0,-1,3,4", "0,0.5,3,4", "0,nan,3,4"):
        with pytest.raises(DataError, match="whole numbers from 0 to 255"):
            read_inputs(table(tmp_path, wrong), GREY)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1,2\n", r"has 2 numbers per line, expected 3 \(3\)"),
        ("1,2,3\n4,5\n", "the number of columns changed"),
        ("1,2,3\n4,x,6\n", "could not convert string 'x'"),
        ("", "it is empty"),
        ("a,b,c\n", "it has no samples"),
    ],
)
def test_a_table_that_is_none_is_one_sentence(tmp_path, text, words):
    with pytest.raises(DataError, match=words):
        read_inputs(table(tmp_path, text), VECTORS)


def test_pictures_of_a_folder_by_name_grey_ones_made_coloured(tmp_path):
    picture(tmp_path / "b.png", mode="RGB")
    picture(tmp_path / "a.PNG")
    (tmp_path / "notes.txt").write_text("no picture")
    (tmp_path / ".hidden").write_text("")
    found = read_inputs(tmp_path, COLOUR)
    assert (found.kind, found.names, found.skipped) == ("file", ["a.PNG", "b.png"], 1)
    assert found.x[:, 0, 0].tolist() == [[7, 7, 7], [7, 1, 2]]
    alone = read_inputs(tmp_path / "b.png", COLOUR)
    assert (alone.names, alone.x.shape) == (["b.png"], (1, 2, 2, 3))


def test_pictures_of_another_size_or_in_other_colours_are_refused(tmp_path):
    picture(tmp_path / "wide.png", size=(5, 2))
    with pytest.raises(DataError, match=r"wide.png has 5 x 2 pixels, expected 2 x 2: resize it first"):
        read_inputs(tmp_path, GREY)
    picture(tmp_path / "wide.png", mode="RGB")
    with pytest.raises(DataError, match=r"wide.png has 3 channels, and the model takes 1"):
        read_inputs(tmp_path, GREY)
    with pytest.raises(UsageError, match=r"is a picture, and the model takes rows of \[3\] numbers"):
        read_inputs(tmp_path, VECTORS)


def test_where_the_data_sets_own_pictures_were_resized_new_ones_are_too(tmp_path):
    picture(tmp_path / "wide.png", size=(50, 20))
    found = read_inputs(tmp_path, GREY.model_copy(update={"any_size": True}))
    assert found.x.tolist() == [[[[7], [7]], [[7], [7]]]]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.txt", b"1", "inputs are .npy, .npz, .csv, a picture or a folder of pictures"),
        ("x.npy", b"nonsense", "is not a readable array"),
        ("x.png", b"nonsense", "is not a readable image"),
    ],
)
def test_foreign_files(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises((DataError, UsageError), match=words):
        read_inputs(tmp_path / name, GREY)


def test_arrays_that_are_not_there_or_would_execute(tmp_path):
    np.savez(tmp_path / "y.npz", y=[1])
    np.save(tmp_path / "objects.npy", np.array([{}], object), allow_pickle=True)
    np.save(tmp_path / "one.npy", np.float32(1))
    for name, words in (("y.npz", "must hold the array x"), ("objects.npy", "plain numbers"), ("one.npy", "single")):
        with pytest.raises(DataError, match=words):
            read_inputs(tmp_path / name, VECTORS)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="there is no picture"):
        read_inputs(tmp_path / "empty", GREY)
