"""Corrupted pictures: their shape, their order of severity, and that the same seed gives the same bits."""

import itertools
from typing import Any, get_args

import numpy as np
import pytest

import polyfed
from polyfed.data.corrupt import CHANGES, FAMILIES, Corruption, Kind, corrupt_rows, corrupted
from polyfed.data.federation import divided, federation
from polyfed.data.partition import Iid
from polyfed.data.sources.arrays import Arrays
from polyfed.data.sources.digits import Digits
from polyfed.errors import UsageError
from polyfed.rng import generator

ALL = [kind for family in FAMILIES.values() for kind in family]


def picture(side: int = 32, channels: int = 3) -> np.ndarray:
    """A soft scene with edges: waves of several lengths and a bright square."""
    down, right = np.mgrid[:side, :side] / side
    waves = [0.5 + 0.25 * np.sin(9 * right + 4 * c) + 0.2 * np.cos(14 * down - c) for c in range(channels)]
    scene = np.stack(waves, axis=2)
    scene[side // 4 - 1 : side // 2 + 2, side // 4 - 1 : side // 2 + 2] = 0.9
    return np.rint(255 * scene.clip(0, 1)).astype(np.uint8)


def apart(kind: str, severity: int, image: np.ndarray) -> float:
    """How far a picture gets, over several draws."""
    made = [corrupted(image, kind, severity, generator(1, "t", k)).astype(float) for k in range(6)]
    return float(np.mean([np.abs(one - image).mean() for one in made]))


def test_names_agree() -> None:
    assert set(CHANGES) == set(ALL)
    assert set(get_args(Kind)) == {"none", "any", *FAMILIES, *ALL}
    assert Corruption("weather").kinds == FAMILIES["weather"]
    assert Corruption("any").kinds == tuple(ALL)


@pytest.mark.parametrize("kind", ALL)
def test_each_severity_is_worse_than_the_one_before(kind: str) -> None:
    image = picture()
    distances = [apart(kind, severity, image) for severity in range(6)]
    assert distances[0] == 0
    assert all(before < after for before, after in itertools.pairwise(distances)), distances


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize(("side", "channels"), [(8, 1), (28, 1), (64, 3)])
def test_shape_and_kind_of_numbers_stay(kind: str, side: int, channels: int) -> None:
    image = picture(side, channels)
    before = image.copy()
    made = corrupted(image, kind, 5, generator(0, "t"))
    assert made.shape == image.shape
    assert made.dtype == np.uint8
    assert np.array_equal(image, before)
    assert not np.array_equal(made, image)
    assert np.array_equal(made, corrupted(image, kind, 5, generator(0, "t")))


def test_pictures_of_any_form_will_do() -> None:
    for kind in ALL:
        for shape in ((9, 20, 3), (16, 16, 4)):
            assert corrupted(np.full(shape, 77, np.uint8), kind, 3, generator(0, "t")).shape == shape
        assert corrupted(np.zeros((8, 8, 1), np.uint8), kind, 3, generator(0, "t")).shape == (8, 8, 1)


def test_hand_computed_changes() -> None:
    flat = np.full((8, 8, 3), 51, np.uint8)  # 0.2
    assert set(corrupted(flat, "brightness", 2, generator(0, "t")).ravel()) == {102}
    halves = np.repeat(np.array([[0, 200]], np.uint8), 4, axis=1).repeat(8, axis=0)[..., None]
    assert set(corrupted(halves, "contrast", 1, generator(0, "t")).ravel()) == {60, 140}  # 100 -+ 0.4 * 100
    for kind in ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "elastic_transform", "pixelate"):
        assert set(corrupted(flat, kind, 4, generator(0, "t")).ravel()) == {51}  # a flat picture has nothing to blur
    peppered = corrupted(np.full((100, 100, 1), 128, np.uint8), "impulse_noise", 5, generator(0, "t"))
    assert [(peppered == value).mean() for value in (0, 255)] == pytest.approx([0.135, 0.135], abs=0.02)


def test_a_federation_is_corrupted_once_by_seed_and_sample(wish: Any) -> None:
    clean = federation(Digits(limit=5), wish(), 0)
    source = Digits(limit=5, corrupt="noise", corrupt_severity=4)
    first, again, other = (federation(source, wish(seed=3), seed) for seed in (0, 0, 1))
    assert np.array_equal(first.as_trained.x, again.as_trained.x)
    assert np.array_equal(first.as_trained.x, other.as_trained.x)  # split.seed takes the place of the run's
    used = len(np.unique(np.concatenate([*first.split.train, *first.split.test, first.split.global_test])))
    assert first.notes["corrupted"] == used
    assert not np.array_equal(first.as_trained.x, federation(source, wish(seed=4), 0).as_trained.x)
    assert first.dataset is clean.dataset  # the files are read once, whatever is done to them
    worker = divided(first.as_trained, source, wish(seed=3), 0)
    assert np.array_equal(worker.as_trained.x, first.as_trained.x)
    assert federation(Digits(corrupt="fog", corrupt_severity=0), wish(), 0).as_trained is clean.dataset


@pytest.mark.parametrize(("on", "train", "test"), [("train", True, False), ("test", False, True), ("all", True, True)])
def test_one_part_alone_is_corrupted(wish: Any, on: str, train: bool, test: bool) -> None:
    fed = federation(Digits(corrupt="brightness", corrupt_on=on), wish(Iid(), 2), 0)
    for client in fed.clients:
        for samples, changed in ((client.train, train), (client.test, test)):
            rows = samples.rows.numpy()
            assert np.array_equal(fed.as_trained.x[rows], fed.dataset.x[rows]) is not changed


def test_clients_drift_apart_when_each_draws_its_kind(wish: Any) -> None:
    fed = federation(Digits(limit=3), wish(Iid(), 5), 0)
    made, count = corrupt_rows(fed.dataset.x, fed.split, Corruption("any", 5, by="client", on="train"), 0)
    assert count == sum(len(rows) for rows in fed.split.train)
    kinds = []
    for client, rows in enumerate(fed.split.train):
        kind = ALL[generator(0, "corrupt client", client).integers(15)]
        kinds.append(kind)
        for row in rows:
            draw = generator(0, "corrupt", int(row))
            draw.integers(15)
            assert np.array_equal(made[row], corrupted(fed.dataset.x[row], kind, 5, draw))
    assert len(set(kinds)) > 1


def test_workers_train_on_the_same_bits() -> None:
    keys = {"rounds": 2, "data": {"name": "digits", "limit": 10, "corrupt": "any", "corrupt_by": "client"}}
    keys |= {"split.clients": 3, "model": "mlp", "model.width": 0.1}
    alone, many = (polyfed.run(keys, **{"engine.workers": n}) for n in (0, 2))
    assert alone.clients.equals(many.clients)


def test_wrong_uses_are_one_sentence(wish: Any) -> None:
    numbers = Arrays.hold(np.zeros((8, 3), np.float32), np.arange(8) % 2, corrupt="fog")
    with pytest.raises(UsageError, match=r"data.corrupt=fog is for images, and arrays holds none"):
        federation(numbers, wish(), 0)
    with pytest.raises(UsageError, match=r"data.corrupt"):
        polyfed.federation(data={"name": "digits", "corrupt": "rain"})
    with pytest.raises(UsageError, match=r"data.corrupt_severity.*less than or equal to 5"):
        polyfed.federation(data={"name": "digits", "corrupt": "snow", "corrupt_severity": 6})
    live = Digits(corrupt="fog")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Digits, "reader", lambda self: lambda row: row)
        with pytest.raises(UsageError, match=r"data.corrupt changes samples once, and data.live=true reads them anew"):
            federation(live, wish(), 0)
