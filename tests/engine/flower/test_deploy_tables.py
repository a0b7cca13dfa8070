"""Tables and texts at real sites: categories, missing numbers and words are read as the local engine reads them."""

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from polyfed.config import Config, make_config
from polyfed.engine.statements import Hello, fault_of_statement
from polyfed.engine.work import Job, World, federation_of
from polyfed.errors import DataError, UsageError
from polyfed.message import Message

if importlib.util.find_spec("flwr") is None:
    pytest.skip("flwr is not installed", allow_module_level=True)

from polyfed.engine.flower.deploy import check, schema

pytestmark = pytest.mark.extras

SITES = ("a", "b", "c")
TABLE: dict[str, Any] = {
    "data": {"name": "manifest", "missing": "mean", "categories": {"colour": ["red", "blue"]}, "classes": 2},
    "model": {"name": "table-mlp", "width": 0.1},
}
TEXT: dict[str, Any] = {
    "data": {"name": "text", "length": 6, "ids": 64, "classes": ["bad", "good"]},
    "model": {"name": "text-bag", "width": 0.1},
}


def visits(k: int) -> tuple[str, list[str]]:
    """Colours of which pink is not declared, ages of which some are missing, and a test of the site's own."""
    draw = np.random.default_rng(k)
    rows = []
    for at in range(30):
        colour, age = ("red", "blue", "pink", "")[draw.integers(4)], draw.integers(20, 60) + 10 * k
        rows.append(f"{colour},{'' if at % 7 == 3 else age},{draw.normal():.3f},{int(colour == 'red')}")
    return "colour,age,dose,label", rows


def reviews(k: int) -> tuple[str, list[str]]:
    """Texts of two kinds; every site has words of its own."""
    draw = np.random.default_rng(k)
    words = {"good": ["fine", f"great{k}"], "bad": ["late", f"rude{k}"]}
    kinds = [("good", "bad")[draw.integers(2)] for _ in range(24)]
    return "text,label", [f"the food was {' '.join(draw.choice(words[kind], 2))},{kind}" for kind in kinds]


@pytest.fixture(params=["categories", "texts"])
def world_of_rows(request: pytest.FixtureRequest, tmp_path: Path) -> Config:
    """The sites' files in folders of their own, and all of them in the one table that a simulation reads."""
    tree, rows_of = (TABLE, visits) if request.param == "categories" else (TEXT, reviews)
    together = []
    for k, name in enumerate(SITES):
        head, rows = rows_of(k)
        written(tmp_path / name, head, rows)
        together += [f"{row},{name}" for row in rows]
    written(tmp_path, f"{head},client", together)
    data = {**tree["data"], "file": str(tmp_path / "rows.csv")}
    return make_config({**tree, "data": data, "method": "fedper", "split": {"partition": "users", "test": 0.2}})


def written(folder: Path, head: str, rows: list[str]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "rows.csv").write_text("\n".join([head, *rows]) + "\n")
    return folder / "rows.csv"


def site(folder: Path, name: str) -> Any:
    return SimpleNamespace(name=name, data=folder / name)


def at_site(config: Config, folder: Path, name: str) -> World:
    data = schema.own_data(config, site(folder, name))
    return World(config, schema.own_federation(config, data, name, {"sites": list(SITES)}), secret=True)


def test_a_site_trains_on_the_local_engines_bits(world_of_rows: Config, tmp_path: Path) -> None:
    whole = World(world_of_rows)
    start = whole.resident.initial.get(whole.method.shared)[0]
    for k, name in enumerate(SITES):
        alone = at_site(world_of_rows, tmp_path, name)
        for part in ("train", "test"):
            mine, theirs = (getattr(each.federation.clients[k], part) for each in (alone, whole))
            assert torch.equal(mine.pool.x[mine.rows], theirs.pool.x[theirs.rows])
            assert torch.equal(mine.y, theirs.y)
        job = Job("train", k, 1, Message(w=start.clone()))
        ours, expected = alone.do(job, None), whole.do(job, None)
        assert (ours.error, expected.error) == ("", "")
        assert torch.equal(ours.up.w, expected.up.w)
        assert ours.digest == expected.digest
        assert not torch.equal(ours.up.w, start), "it was trained"


def test_the_server_builds_the_same_model_from_hellos_that_can_be_true(world_of_rows: Config, tmp_path: Path) -> None:
    told = {name: schema.schema_of(schema.own_data(world_of_rows, site(tmp_path, name)), "n") for name in SITES}
    for name, said in told.items():
        numbers = {"name": name, "n": 1, "tests": 1, "params": "0" * 64, "layout": "0" * 64}
        assert fault_of_statement(Hello, {**numbers, **said.to_record()}) == ""
        assert schema.Schema.from_record(said.to_record()) == said
    made = schema.server_federation(world_of_rows, schema.agreed(told), SITES)
    assert World(world_of_rows, made).origin_of(0) == World(world_of_rows).origin_of(0)
    assert told["a"].columns == (("age", "dose") if made.dataset.categories else ())


def config_of(folder: Path, **keys: Any) -> Config:
    data = {**TABLE["data"], "file": str(folder / "elsewhere" / "rows.csv"), **keys}
    return make_config({**TABLE, "data": data, "split": {"partition": "users", "test": 0.2}})


def test_a_number_that_a_site_never_sees_in_training_is_zero_there(tmp_path: Path) -> None:
    written(tmp_path / "a", "colour,age,dose,label,split", [*["red,,1,0,train"] * 4, "blue,30,2,1,test"])
    own = at_site(config_of(tmp_path), tmp_path, "a").federation
    assert own.notes["missing_values"] == 4
    train, test = own.clients[0].train, own.clients[0].test
    assert train.pool.x[train.rows][:, 1].tolist() == [0, 0, 0, 0], "the other sites' mean is not known here"
    assert test.pool.x[test.rows].tolist() == [[2, 30, 2]]
    scaled = at_site(config_of(tmp_path, normalise=True), tmp_path, "a").federation
    assert (scaled.dataset.mean, scaled.dataset.std) == ((0, 0, 1), (1, 1, 1))
    assert scaled.clients[0].train.take(torch.arange(4))[0].tolist() == [[1, 0, 0]] * 4


def test_columns_in_another_order_are_another_table(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    written(tmp_path / "a", "colour,age,dose,label", ["red,1,2,0", "blue,3,4,1"])
    written(tmp_path / "b", "colour,dose,age,label", ["red,1,2,0", "blue,3,4,1"])
    told = {name: schema.schema_of(schema.own_data(config, site(tmp_path, name)), "n") for name in ("a", "b")}
    with pytest.raises(DataError, match=r"columns.* differ: those of 'a' are age, dose, those of 'b' are dose, age; "):
        schema.agreed(told)
    named = config_of(tmp_path, features=["dose", "age"])
    mine, theirs = (schema.own_data(named, site(tmp_path, name)) for name in ("a", "b"))
    assert (mine.columns, theirs.columns) == (("dose", "age"),) * 2
    assert (mine.x[0].tolist(), theirs.x[0].tolist()) == ([1, 2, 1], [1, 1, 2])
    without = schema.replace(told["b"], columns=())
    assert schema.agreed({"a": told["a"], "b": without}).columns == ("age", "dose"), "an array has no names"


def test_what_no_site_can_read_alone_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("fine late\n")
    written(tmp_path / "a", "text,label", ["fine,good", "late,bad"])
    text = {**TEXT, "split": {"partition": "users"}}
    for data, told in (
        ({**TEXT["data"], "file": "rows.csv", "vocabulary": str(tmp_path / "words.txt")}, "data.vocabulary is a file"),
        ({"name": "digits"}, "data.name must be folder, manifest or text, not 'digits'"),
    ):
        with pytest.raises(UsageError, match=told):
            schema.own_data(make_config({**text, "data": data}), site(tmp_path, "a"))
    for file in ("other.csv", "../a/other.csv"):  # only the name counts: nothing outside its folder is read
        data = {**TEXT["data"], "file": file}
        with pytest.raises(DataError, match=rf"text: {tmp_path}/a/other.csv does not exist"):
            schema.own_data(make_config({**text, "data": data}), site(tmp_path, "a"))


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        ("rows.csv", "colour,label\nred,0\nblue,1\n", "the column 'colour' holds 'red' in line 2"),
        ("rows.csv", "age,label\n1,0\n,1\n", "line 3 has no value in the column 'age'"),
        ("rows.csv", "age,kind\n1,0\n2,1\n", "has no column 'label' for the labels"),
        ("rows.jsonl", json.dumps({"text": "fine", "label": "good"}) + "\n", "rows.jsonl holds texts"),
    ],
)
def test_check_leaves_to_the_config_how_a_table_is_read(file: str, text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / file).write_text(text)
    said = check._told_of_data(SimpleNamespace(data=tmp_path))
    assert told in said
    assert "the config may say how this is read" in said


def test_categories_of_a_simulation_and_of_its_sites_are_split_alike(tmp_path: Path) -> None:
    """The rows of a client, and so their order, are those of its own file."""
    for k, name in enumerate(SITES):
        written(tmp_path / name, *visits(k))
    rows = [f"{row},{name}" for at in range(30) for k, name in enumerate(SITES) for row in visits(k)[1][at : at + 1]]
    config = config_of(written(tmp_path / "elsewhere", "colour,age,dose,label,client", rows).parents[1])
    whole = federation_of(config)
    for k, name in enumerate(SITES):
        own = at_site(config, tmp_path, name).federation
        mine, theirs = own.clients[k].train, whole.clients[k].train
        assert torch.equal(mine.pool.x[mine.rows], theirs.pool.x[theirs.rows])
