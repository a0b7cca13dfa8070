"""What spawned workers are given: samples where they lie, and objects that only this process has."""

import threading

import numpy as np
import pytest
from torch import nn

from polyfed.api import config_of
from polyfed.data.sources.base import Dataset
from polyfed.data.sources.digits import Digits
from polyfed.engine.local.shelf import KEPT, Shelf, hold_objects, objects_of, taken
from polyfed.engine.work import federation_of
from polyfed.errors import UsageError
from polyfed.methods.base import Method, methods
from polyfed.models import own


@pytest.fixture
def shelf():
    made = Shelf()
    yield made
    made.close()


def small(value: int) -> Dataset:
    return Dataset(
        "small",
        np.full((4, 3), value, np.float32),
        np.arange(4),
        3,
        tuple("abcd"),
        users=np.arange(4) - 1,
        user_names=tuple("xyz"),
    )


def test_a_data_set_is_read_where_it_lies(shelf):
    given = Digits().load()
    found = taken(shelf.put(given), shelf.reader())
    assert (found.name, found.train, found.mean, found.class_names) == ("digits", 1438, given.mean, given.class_names)
    assert found.x.dtype == np.uint8
    assert np.array_equal(found.x, given.x)
    assert np.array_equal(found.y, given.y)
    assert found.users is None


def test_it_lies_there_once_and_what_a_worker_writes_stays_its_own(shelf):
    given, others = small(1), shelf.reader()
    first = taken(shelf.put(given), others)
    assert shelf.put(given) is shelf.put(given)
    first.x[:] = 5
    assert taken(shelf.put(given), shelf.reader()).x.max() == 1


def test_the_last_ones_are_kept_and_older_ones_make_room(shelf):
    many = [shelf.put(small(value)) for value in range(3 * KEPT)]
    assert len({shelved.arrays.start for shelved in many}) == KEPT + 1
    for value, shelved in list(enumerate(many))[-KEPT:]:
        assert taken(shelved, shelf.reader()).x[0, 0] == value


def test_images_are_resized_once_for_all():
    federation = federation_of(config_of(model="lenet"))
    assert federation.as_trained.shape == federation.shape != federation.dataset.shape
    assert federation.as_trained is federation.as_trained
    plain = federation_of(config_of(model="mlp"))
    assert plain.as_trained is plain.dataset


def test_what_can_be_found_by_its_name_is_not_carried(own):
    assert objects_of(config_of(method="mupfl")) == b""
    assert objects_of(config_of(method=own("Counting"), model="torch.nn:Linear")) == b""


def test_classes_and_modules_of_this_process_are_carried(monkeypatch):
    class Mine(Method):
        """FedAvg, but mine."""

        mu: float = 0.5

    carried = objects_of(config_of(method=Mine, model=nn.Sequential(nn.Flatten(), nn.Linear(64, 10))))
    monkeypatch.setattr(methods, "_specs", {})
    monkeypatch.setattr(own, "_held", {})
    hold_objects(carried)
    (name,) = methods._specs
    assert name.endswith("<locals>.Mine")
    assert methods.get(name)().mu == 0.5
    (module,) = own._held.values()
    assert module[1].out_features == 10


def test_what_cannot_be_carried_is_one_sentence():
    lock = threading.Lock()

    class Locked(Method):
        """Holds something of this process only."""

        def finish(self, client):
            lock.acquire()

    with pytest.raises(UsageError, match=r"Locked: a spawned worker cannot be given this object .*file.py:Class"):
        objects_of(config_of(method=Locked))
