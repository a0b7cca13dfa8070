"""The clients' data as tensors."""

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from polyfed.data.federation import Federation, federation
from polyfed.data.partition import Dirichlet, Iid, Users
from polyfed.data.preparation import resized
from polyfed.data.sources import sources
from polyfed.data.sources.arrays import Arrays
from polyfed.errors import UsageError


def digits(**settings: Any) -> Any:
    return sources.build({"name": "digits", **settings}, "data")


@pytest.fixture
def skewed(wish: Any) -> Federation:
    return federation(digits(), wish(Dirichlet(alpha=0.3), 10, longtail=5, val=0.1, heldout=3), 0)


def test_clients_are_views_of_one_pool(skewed: Federation) -> None:
    assert len(skewed.clients) == 10
    assert skewed.shape == (1, 8, 8)
    assert skewed.classes == len(skewed.class_names) == 10
    assert skewed.pool.x.is_contiguous(memory_format=torch.channels_last)
    for client in skewed.clients:
        assert client.train.pool is client.test.pool is skewed.pool
        assert client.counts.tolist() == np.bincount(client.train.y.numpy(), minlength=10).tolist()
    x, _ = skewed.clients[0].train.take(torch.arange(3))
    assert x.shape == (3, 1, 8, 8)
    assert x.dtype == torch.float32


def test_mean_and_std_lie_in_memory_as_a_sample_does(skewed: Federation) -> None:
    for values in (skewed.pool.mean, skewed.pool.std):
        assert values is not None
        assert (values.shape, values.stride()) == (skewed.pool.x[0].shape, skewed.pool.x[0].stride())


def test_prepared_training_rows_are_standardised(wish: Any) -> None:
    fed = federation(digits(), wish(Iid(), 1, test="none"), 0)
    x, _ = fed.clients[0].train.take(torch.arange(len(fed.clients[0].train)))
    assert abs(float(x.mean())) < 1e-4
    assert abs(float(x.std()) - 1) < 1e-3


def test_participants_and_held_out_clients_are_everyone(skewed: Federation) -> None:
    assert len(skewed.heldout) == 3
    assert sorted([*skewed.participants, *skewed.heldout]) == list(range(10))


def test_describe_is_plain_and_adds_up(skewed: Federation) -> None:
    said = json.loads(json.dumps(skewed.describe()))
    assert list(said) == ["total", "classes", "global_test", "clients", "imbalance_factor", "mean_distance", "notes"]
    assert said["total"] == sum(c["train"] + c["val"] + c["test"] for c in said["clients"])
    assert said["total"] + said["notes"]["longtail_left_out"] == 1438
    assert said["global_test"] == 359
    assert list(said["clients"][0]) == ["id", "name", "train", "val", "test", "counts"]
    assert all(sum(c["counts"]) == c["train"] for c in said["clients"])
    assert said["imbalance_factor"] == pytest.approx(5, rel=0.05)
    assert 0 < said["mean_distance"] < 1


def test_mean_distance_of_equal_and_of_disjoint_clients(wish: Any) -> None:
    y = np.array([0, 1] * 20)
    same = Arrays.hold(np.zeros((40, 2), np.float32), y, users=np.arange(40) // 20)
    apart = Arrays.hold(np.zeros((40, 2), np.float32), y, users=y)
    near, far = (federation(s, wish(Users(), None, test="none"), 0).describe() for s in (same, apart))
    assert near["mean_distance"] == 0
    assert far["mean_distance"] == 0.5
    assert near["imbalance_factor"] == 1


def test_the_imbalance_is_that_of_the_classes_that_are_there(wish: Any) -> None:
    y = np.repeat([0, 2], [30, 10])  # nobody has class 1
    said = federation(Arrays.hold(np.zeros((40, 2), np.float32), y), wish(test="none"), 0).describe()
    assert said["classes"] == 3
    assert said["imbalance_factor"] == 3


def test_a_mirrored_test_is_not_part_of_the_total(wish: Any) -> None:
    said = federation(digits(), wish(Dirichlet(), 5, test="mirror"), 0).describe()
    assert said["total"] == 1438 == sum(c["train"] for c in said["clients"])
    assert sum(c["test"] for c in said["clients"]) == 359


def test_images_are_resized_once_and_it_is_noted(wish: Any) -> None:
    fed = federation(digits(), wish(), 0, size=16)
    assert fed.shape == (1, 16, 16)
    assert fed.notes["resized"] == 16
    assert federation(digits(size=12), wish(), 0).shape == (1, 12, 12)
    assert "resized" not in federation(digits(), wish(), 0, size=8).notes


def test_resizing_keeps_flat_images_and_the_mean() -> None:
    flat = np.full((3, 8, 8, 2), 77, np.uint8)
    assert np.all(resized(flat, 32) == 77)
    images = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
    assert abs(resized(images, 16).mean() - images.mean()) < 1


def test_augmenting_a_prepared_batch_pads_with_black(wish: Any) -> None:
    fed = federation(digits(augment="crop"), wish(), 0)
    x, _ = fed.clients[0].train.take(torch.arange(50))
    assert fed.augment is not None
    made = fed.augment(x, torch.Generator().manual_seed(0))
    black = float(fed.pool.prepare(torch.zeros(1, 1, 8, 8)).max())
    assert float(made.min()) == pytest.approx(black)
    assert federation(digits(), wish(), 0).augment is None


def test_public_samples_are_views_of_the_pool_that_nobody_is_tested_on(wish: Any) -> None:
    whole, made = (federation(digits(), wish(Dirichlet(), 10, public=n), 0) for n in (0, 100))
    assert len(whole.public) == 0
    assert made.public.pool is made.pool
    rows = [*made.public.rows.tolist(), *made.global_test.rows.tolist()]
    assert sorted(rows) == whole.global_test.rows.tolist()
    assert made.notes["public"] == 100
    assert made.describe()["global_test"] == len(whole.global_test) - 100


def test_a_sample_of_the_global_test_has_equally_many_of_each_class(skewed: Federation) -> None:
    sample, again, other = (skewed.class_sample(7, seed) for seed in (3, 3, 4))
    assert torch.equal(sample.rows, again.rows)
    assert not torch.equal(sample.rows, other.rows)
    assert torch.bincount(sample.y).tolist() == [7] * 10
    assert set(sample.rows.tolist()) < set(skewed.global_test.rows.tolist())
    everything = skewed.class_sample(1000, 3)
    assert torch.equal(everything.rows, skewed.global_test.rows), "as far as there are any"


def test_what_a_shift_brings_in_from_outside_is_black_as_it_is_normalised(wish: Any) -> None:
    fed = federation(digits(augment="crop"), wish(), 0)
    black = fed.pool.prepare(torch.zeros(5, 1, 8, 8, dtype=torch.uint8))
    assert black.max() < 0
    torch.testing.assert_close(fed.augment(black, torch.Generator().manual_seed(0)), black)


def test_size_and_augment_are_for_images(wish: Any) -> None:
    floats = np.zeros((20, 4), np.float32)
    with pytest.raises(UsageError, match=r"data.size=8 is for images"):
        federation(Arrays.hold(floats, np.arange(20) % 2, size=8), wish(), 0)
    with pytest.raises(UsageError, match=r"data.augment=flip is for images"):
        federation(Arrays.hold(floats, np.arange(20) % 2, augment="flip"), wish(), 0)


def test_ten_thousand_clients_share_one_pool(wish: Any) -> None:
    source = Arrays.hold(np.zeros((20_000, 2), np.float32), np.arange(20_000) % 3)
    fed = federation(source, wish(Iid(), 10_000), 0)
    assert len(fed.clients) == 10_000
    assert {len(client.train) for client in fed.clients} == {1}
    assert fed.clients[9_999].test.pool is fed.pool


def test_importing_the_room_is_light() -> None:
    heavy = ["pandas", "sklearn", "PIL", "rich", "matplotlib", "scipy"]
    code = f"import sys, polyfed.data.federation as f; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
