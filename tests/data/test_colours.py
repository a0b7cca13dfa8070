"""Masks as pictures: colours of classes, and palette files that keep the classes."""

import io

import numpy as np
from PIL import Image

from polyfed.data.colours import colours, mask_png, palette, picture_png
from polyfed.data.sources import sources
from polyfed.data.sources.streets import CAMVID

PUBLISHED = {  # in the order of ids
    "camvid": "128,128,128 128,0,0 192,192,128 128,64,128 60,40,222 128,128,0 192,128,128 64,64,128 64,0,128 64,64,0 "
    "0,128,192",
    "cityscapes": "128,64,128 244,35,232 70,70,70 102,102,156 190,153,153 153,153,153 250,170,30 220,220,0 107,142,35 "
    "152,251,152 70,130,180 220,20,60 255,0,0 0,0,142 0,0,70 0,60,100 0,80,100 0,0,230 119,11,32",
}


def read(png: bytes) -> Image.Image:
    return Image.open(io.BytesIO(png))


def test_colours_are_the_data_set_s_own_or_far_apart() -> None:
    assert colours(("a", "b")).tolist() == [[230, 80, 80], [80, 124, 230]]
    assert colours(CAMVID)[4].tolist() == [60, 40, 222]
    for name, told in PUBLISHED.items():
        known = sources.get(name)().class_names()
        assert colours(known).tolist() == [[int(value) for value in one.split(",")] for one in told.split()]
    assert palette(("a",))[[0, 1, 254, 255]].tolist() == [[230, 80, 80], [0, 0, 0], [0, 0, 0], [0, 0, 0]]


def test_a_palette_file_holds_classes_and_shows_colours() -> None:
    mask = np.array([[0, 1], [1, 255]], np.uint8)
    image = read(mask_png(mask, ("a", "b")))
    assert image.mode == "P"
    assert np.array_equal(np.array(image), mask)
    assert np.array(image.convert("RGB"))[1].tolist() == [[80, 124, 230], [0, 0, 0]]


def test_grey_pictures_and_coloured_ones() -> None:
    assert read(picture_png(np.zeros((2, 3, 1), np.uint8))).mode == "L"
    assert read(picture_png(np.zeros((2, 3, 3), np.uint8))).size == (3, 2)
