"""Data sets of Hugging Face, made in memory."""

from typing import Any

import numpy as np
import pytest
from PIL import Image

import polyfed
from polyfed.errors import UsageError

datasets: Any = pytest.importorskip("datasets", reason="skipped: datasets is not installed (the extra hf)")
OWN: dict[str, Any] = {"model": "mlp", "model.width": 0.1, "train.lr": 0.5, "rounds": 2, "engine.workers": 0}
KINDS = ["cat", "dog", "eel"]


def pictures(count: int = 60, seed: int = 0) -> Any:
    """Pictures, their kinds, and the hospital of each."""
    draw, y = np.random.default_rng(seed), np.arange(count) % 3
    x = [Image.fromarray((draw.integers(0, 60, (8, 8, 3)) + 80 * k).astype(np.uint8)) for k in y]
    kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(names=KINDS), "hospital": datasets.Value("string")}
    rows = {"image": x, "label": y.tolist(), "hospital": (["north", "south", "south", "south"] * count)[:count]}
    return datasets.Dataset.from_dict(rows, features=datasets.Features(kinds))


def held(fed: Any) -> dict[str, tuple[int, int]]:
    return {client.name: (len(client.train), len(client.test)) for client in fed.clients}


def test_a_column_of_clients() -> None:
    result = polyfed.run(OWN, data={"dataset": pictures(), "users": "hospital"})
    assert sorted(set(result.clients["name"])) == ["north", "south"]
    assert result["personal.accuracy"] > 0.5
    assert result.config["data"]["classes"] == KINDS


def test_train_and_test() -> None:
    both = datasets.DatasetDict(train=pictures(), test=pictures(20, 1)).rename_column("hospital", "client")
    fed = polyfed.federation(OWN, data=both)
    assert held(fed) == {"north": (15, 5), "south": (45, 15)}
    assert fed.shape == (3, 8, 8)
    with pytest.raises(UsageError, match="has the split 'validation': give a mapping with the splits train and"):
        polyfed.federation(OWN, data=datasets.DatasetDict(train=pictures(), validation=pictures()))


def test_one_for_each_client() -> None:
    fed = polyfed.federation(OWN, data={"rome": pictures(30), "bonn": (pictures(21, 1), pictures(9, 2))})
    assert held(fed) == {"rome": (24, 6), "bonn": (21, 9)}
    assert fed.class_names == tuple(KINDS)


def test_arrays_of_numbers_and_of_pixels() -> None:
    draw, y = np.random.default_rng(0), (np.arange(60) % 3).tolist()
    numbers = datasets.Dataset.from_dict({"x": draw.normal(size=(60, 5)).tolist(), "y": y})
    assert polyfed.federation(OWN, data=numbers).shape == (5,)
    kinds = datasets.Features({"scan": datasets.Array2D((8, 8), "uint8"), "kind": datasets.Value("int64")})
    rows = {"scan": draw.integers(0, 255, (60, 8, 8)).astype(np.uint8), "kind": y}
    pixels = datasets.Dataset.from_dict(rows, features=kinds)
    fed = polyfed.federation(OWN, data={"dataset": pixels, "x": "scan", "y": "kind"})
    assert fed.dataset.images
    assert fed.shape == (1, 8, 8)
    with pytest.raises(UsageError, match=r"has the columns scan, kind; say which is y"):
        polyfed.federation(OWN, data=pixels)
    with pytest.raises(UsageError, match=r"has no column 'clinic' for users; its columns are scan, kind"):
        polyfed.federation(OWN, data={"dataset": pixels, "users": "clinic"})


def test_a_random_transform_is_noticed() -> None:
    def noisy(rows: dict[str, Any]) -> dict[str, Any]:
        return {**rows, "image": [np.asarray(x) // 2 + np.random.randint(0, 9) for x in rows["image"]]}

    moving = pictures().with_transform(noisy)
    with pytest.raises(UsageError, match="changes at random when it is read again"):
        polyfed.run(OWN, data=moving)
    assert polyfed.run(OWN, data=moving, **{"data.live": True, "split.clients": 2}).finished
