"""Masks at real sites: what a site makes of its own folders alone, and what the server knows of them."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import masked
from polyfed.config import make_config
from polyfed.engine.work import World, federation_of
from polyfed.errors import DataError

if importlib.util.find_spec("flwr") is None:
    pytest.skip("flwr is not installed", allow_module_level=True)

from polyfed.engine.flower.deploy import schema

pytestmark = pytest.mark.extras

SITES = ("a", "b", "c")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return masked.folders(tmp_path, SITES, count=8)


def config_of(root: Path, **keys: Any) -> Any:
    data = {"name": "folder", "root": str(root), "classes": masked.CLASSES, **keys}
    return make_config({"data": data, "model": "lraspp-small", "split": {"partition": "users", "test": 0.3}})


def site(root: Path, name: str) -> Any:
    return SimpleNamespace(name=name, data=root / name)


@pytest.mark.parametrize("keys", [{}, {"size": [10, 14]}], ids=["as they are", "resized"])
def test_a_site_splits_its_masks_as_the_local_engine_does(root: Path, keys: dict[str, Any]) -> None:
    config = config_of(root, **keys)
    whole = federation_of(config)
    for k, name in enumerate(SITES):
        own = schema.own_federation(config, schema.own_data(config, site(root, name)), name, {"sites": list(SITES)})
        for part in ("train", "test"):
            mine, theirs = getattr(own.clients[k], part), getattr(whole.clients[k], part)
            assert len(mine) == len(theirs) > 0
            assert (mine.pool.x[mine.rows] == theirs.pool.x[theirs.rows]).all()
            assert (mine.y == theirs.y).all()


def test_the_server_knows_that_labels_are_masks(root: Path) -> None:
    config = config_of(root)
    said = schema.schema_of(schema.own_data(config, site(root, "a")), "counts")
    known = schema.Schema.from_record(said.to_record())
    made = schema.server_federation(config, known, SITES)
    assert known.masks
    assert made.masks
    assert made.pool.y[0].numel() == masked.HIGH * masked.WIDE
    assert World(config, made).origin_of(0) == World(config).origin_of(0)


def test_sites_with_masks_and_without_are_named(root: Path) -> None:
    config = config_of(root)
    one = schema.schema_of(schema.own_data(config, site(root, "a")), "n")
    record = {**one.to_record(), "masks": False}
    with pytest.raises(DataError, match="those of 'a' are masks, those of 'b' one for each sample"):
        schema.agreed({"a": one, "b": schema.Schema.from_record(record)})
