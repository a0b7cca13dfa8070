"""The config: merging, the YAML dialect, schedules, and the tree that makes the same experiment again."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from polyfed.config import (
    Train,
    deciding,
    differences,
    make_config,
    merge,
    named_sections,
    read_assignments,
    read_config,
    read_yaml,
    unflatten,
    write_yaml,
)
from polyfed.data.sources.arrays import Arrays
from polyfed.engine.work import federation_of
from polyfed.errors import UsageError


class TestMerge:
    def test_the_second_holds(self) -> None:
        assert merge({"a": 1, "b": {"c": 2, "d": 3}}, {"a": 4, "b": {"d": 5}}) == {"a": 4, "b": {"c": 2, "d": 5}}

    def test_neither_is_changed(self) -> None:
        under, over = {"a": {"b": 1}}, {"a": {"c": 2}}
        merge(under, over)
        assert (under, over) == ({"a": {"b": 1}}, {"a": {"c": 2}})

    def test_kinds_replace_each_other(self) -> None:
        assert merge({"a": {"b": 1}}, {"a": 3}) == {"a": 3}
        assert merge({"a": 3}, {"a": {"b": 1}}) == {"a": {"b": 1}}
        assert merge({"a": [1, 2]}, {"a": [3]}) == {"a": [3]}

    def test_a_mapping_by_numbers_is_one_value(self) -> None:
        assert merge({"s": {5: 0.1}}, {"s": {7: 0.2}}) == {"s": {7: 0.2}}
        assert merge({"s": {5: 0.1}}, {"s": {"lr": 1}}) == {
            "s": {5: 0.1, "lr": 1}
        }  # nothing is lost, and is refused later


class TestNames:
    def test_bare_values_become_names(self) -> None:
        tree = {"method": "fedavg", "model": "mlp", "data": "digits", "engine": "local", "init": "run"}
        names = {key: {"name": value} for key, value in tree.items() if key != "init"}
        assert named_sections(tree) == {**names, "init": "run"}

    def test_nested_base(self) -> None:
        tree = named_sections({"method": {"name": "ecl", "base": "fedprox"}})
        assert tree["method"]["base"] == {"name": "fedprox"}

    def test_a_parameter_may_be_called_like_a_section(self) -> None:
        """method.data is whatever the method says it is."""
        assert named_sections({"method": {"name": "x", "data": "all"}})["method"]["data"] == "all"
        assert unflatten({"method.model": "vgg"}) == {"method": {"model": "vgg"}}


class TestUnflatten:
    @pytest.mark.parametrize(
        ("flat", "nested"),
        [
            ({"train.lr": 0.1, "train.batch": 8}, {"train": {"lr": 0.1, "batch": 8}}),
            ({"train.lr": 0.1, "train": {"batch": 8}}, {"train": {"lr": 0.1, "batch": 8}}),
            ({"method": "fedprox", "method.mu": 1}, {"method": {"name": "fedprox", "mu": 1}}),
            ({"method.mu": 1, "method": "fedprox"}, {"method": {"mu": 1, "name": "fedprox"}}),
            (
                {"method": {"name": "ft", "base.mu": 1, "base": "fedprox"}},
                {"method": {"name": "ft", "base": {"mu": 1, "name": "fedprox"}}},
            ),
            ({"train.schedule": {50: 0.01}}, {"train": {"schedule": {50: 0.01}}}),
            ({"a.b.c": 1, "a.b.d": 2}, {"a": {"b": {"c": 1, "d": 2}}}),
        ],
    )
    def test_dots_are_levels(self, flat: dict[str, Any], nested: dict[str, Any]) -> None:
        assert unflatten(flat) == nested

    def test_assignments(self) -> None:
        words = ["method=fedavg-ft", "method.base=fedprox", "method.base.mu=0.1", "train.lr=1e-3", "init=a=b"]
        assert read_assignments(words) == {
            "method": {"name": "fedavg-ft", "base": {"name": "fedprox", "mu": 0.1}},
            "train": {"lr": 1e-3},
            "init": "a=b",
        }

    @pytest.mark.parametrize(
        ("words", "key"),
        [
            (["rounds=1", "rounds=2"], "rounds"),
            (["rounds=1", "seed=2", "rounds=1"], "rounds"),
            (["method=fedavg", "method.name=fedprox"], "method.name"),
            (["train={lr: 0.1}", "train.lr=0.2"], "train.lr"),
            (["methods=a,b", "methods=[a]"], "methods"),
        ],
    )
    def test_a_key_is_said_once(self, words: list[str], key: str) -> None:
        first, *_, last = words
        sentence = f"'{key}' is given twice, as {first} and as {last}; say which one holds"
        with pytest.raises(UsageError, match=re.escape(sentence)):
            read_assignments(words)

    def test_different_keys_of_one_section_are_no_repetition(self) -> None:
        words = ["method=fedprox", "method.mu=0.1", "train.lr=1", "train.batch=2"]
        assert read_assignments(words) == {"method": {"name": "fedprox", "mu": 0.1}, "train": {"lr": 1, "batch": 2}}


class TestListsWithoutBrackets:
    @pytest.mark.parametrize(
        ("word", "value"),
        [
            ("methods=fedavg,fedprox", ["fedavg", "fedprox"]),
            ("methods=fedavg, mine.py:Mine", ["fedavg", "mine.py:Mine"]),
            ("methods=[fedavg,fedprox]", ["fedavg", "fedprox"]),
            ("methods=fedavg", "fedavg"),
            ("seeds=3,5", [3, 5]),
            ("seeds=3", 3),
            ("tag=a,b", "a,b"),
            ("init=runs/a,b", "runs/a,b"),
        ],
    )
    def test_a_key(self, word: str, value: Any) -> None:
        assert list(read_assignments([word]).values()) == [value]

    @pytest.mark.parametrize(
        ("word", "value"),
        [
            ("split.alpha=0.1,1e-2", [0.1, 0.01]),
            ("train.schedule=0.5,10", [0.5, 10]),
            ("train.schedule={1: 0.1, 5: 0.2}", {1: 0.1, 5: 0.2}),
            ("fedprox.mu=0.1,1", [0.1, 1]),
            ("data.classes=cat,dog", ["cat", "dog"]),
            ("data.root=/data/a,b", "/data/a,b"),
            ("track.dir=logs/a,b", "logs/a,b"),
        ],
    )
    def test_a_key_of_a_section(self, word: str, value: Any) -> None:
        ((inside,),) = (section.values() for section in read_assignments([word]).values())
        assert inside == value


class TestReading:
    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("1e-5", 1e-5),
            ("1E5", 1e5),
            ("-2e3", -2000.0),
            ("1.", 1.0),
            (".5", 0.5),
            ("+3", 3),
            ("010", 10),
            ("0", 0),
            (".inf", math.inf),
            ("-.inf", -math.inf),
            ("true", True),
            ("False", False),
            ("yes", "yes"),
            ("no", "no"),
            ("on", "on"),
            ("null", None),
            ("~", None),
            ("", None),
            ("1e", "1e"),
            ("e5", "e5"),
            ("1_000", "1_000"),
            ("12:30", "12:30"),
            ("2024-01-01", "2024-01-01"),
            ("0x10", "0x10"),
            ("cuda:0", "cuda:0"),
            ("[1e-1, 3]", [0.1, 3]),
            ("{50: 1e-2}", {50: 0.01}),
            ("'1e5'", "1e5"),
        ],
    )
    def test_dialect(self, text: str, value: Any) -> None:
        found = read_yaml(text, "it")
        assert found == value
        assert type(found) is type(value)

    def test_nan(self) -> None:
        assert math.isnan(read_yaml(".nan", "it"))

    def test_merge_keys_of_yaml(self) -> None:
        text = "base: &base {lr: 0.1, batch: 4}\ntrain: {<<: *base, batch: 8}\n"
        assert read_yaml(text, "it")["train"] == {"lr": 0.1, "batch": 8}

    @pytest.mark.parametrize("text", ["a: {b: 1, b: 2}", "{1: a, 1.0: b}", "x: 1\ny: 2\nx: 1"])
    def test_a_key_said_twice(self, text: str) -> None:
        with pytest.raises(UsageError, match="is given twice"):
            read_yaml(text, "it")

    @pytest.mark.parametrize("tag", ["!!python/name:os.system", "!!python/object/new:list [[1]]", "!mine 5"])
    def test_tags_execute_nothing(self, tag: str) -> None:
        with pytest.raises(UsageError, match="could not determine a constructor"):
            read_yaml(f"a: {tag}", "it")


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.from_regex(r"[-+]?[0-9._]{1,6}([eE:][-+]?[0-9]{1,3})?", fullmatch=True)
    | st.sampled_from(["no", "yes", "on", "True", "null", "~", "1e5", "08", "010", "0x1F", "1:30", "=", "<<", ".inf"])
)
words = st.text("abcxyz_-", min_size=1)
trees = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3))


class TestWriting:
    @given(st.dictionaries(words, trees, max_size=4))
    def test_reads_back_the_same(self, tree: dict[str, Any]) -> None:
        again = read_yaml(write_yaml(tree), "it")
        assert again == tree
        assert repr(again) == repr(tree)  # 1, 1.0 and True are equal but not the same

    @given(st.dictionaries(words, st.text(st.characters(exclude_categories=["Cs"])), max_size=4))
    def test_other_readers_of_yaml_see_the_same_strings(self, tree: dict[str, str]) -> None:
        assert yaml.safe_load(write_yaml(tree)) == tree

    def test_keeps_the_order(self) -> None:
        assert write_yaml({"b": 1, "a": 2}) == "b: 1\na: 2\n"


class TestSchedules:
    @pytest.mark.parametrize(
        ("schedule", "expected"),
        [
            ("constant", {1: 0.1, 10: 0.1}),
            ({3: 0.05, 5: 0.01}, {1: 0.1, 2: 0.1, 3: 0.05, 4: 0.05, 5: 0.01, 10: 0.01}),
            ((0.5, 3), {1: 0.1, 3: 0.1, 4: 0.05, 6: 0.05, 7: 0.025, 10: 0.0125}),
            ((0.9, 1), {1: 0.1, 2: 0.09, 3: 0.081}),
            ("cosine", {1: 0.1, 6: 0.05, 10: 0.1 * 0.5 * (1 + math.cos(0.9 * math.pi))}),
        ],
        ids=str,
    )
    def test_by_hand(self, schedule: Any, expected: dict[int, float]) -> None:
        train = Train(lr=0.1, schedule=schedule)
        assert {at: train.lr_at(at, 10) for at in expected} == pytest.approx(expected)

    def test_round_after_the_last(self) -> None:
        """Finish is a round of its own: no schedule fails there, and none goes below zero."""
        for schedule in ("constant", "cosine", {2: 0.3}, (0.5, 2)):
            assert Train(lr=0.1, schedule=schedule).lr_at(11, 10) >= 0  # type: ignore[arg-type]

    def test_from_words(self) -> None:
        schedules = ["{50: 1e-2}", "[0.995, 3]", "cosine"]
        made = [make_config(read_assignments([f"train.schedule={text}"])).train.schedule for text in schedules]
        assert made == [{50: 0.01}, (0.995, 3), "cosine"]


class TestConfig:
    @pytest.mark.parametrize(
        "words",
        [
            [],
            [
                "method=fedavg-ft",
                "method.base=fedprox",
                "method.base.mu=0.3",
                "split.partition=shards",
                "split.shards=3",
            ],
            [
                "train.schedule={3: 0.1, 9: 1e-3}",
                "split.test=mirror",
                "eval.clients=3",
                "eval.classes=true",
                "device=cpu",
            ],
            [
                "train.schedule=[0.9,2]",
                "weighting=uniform",
                "init=1e5",
                "train.clip=1",
                "split.seed=4",
                "buffers=local",
            ],
            [
                "data=folder",
                "data.root=/tmp/here",
                "data.size=32",
                "model=resnet8",
                "model.width=0.5",
                "split.test=none",
            ],
        ],
        ids=str,
    )
    def test_dump_reads_back_to_the_same_config(self, words: list[str], tmp_path: Path) -> None:
        if "init=1e5" in words:
            words = ["init='1e5'" if word == "init=1e5" else word for word in words]
        config = make_config(read_assignments(words))
        (tmp_path / "c.yaml").write_text(write_yaml(config.dump()), encoding="utf-8")
        tree = read_config(tmp_path / "c.yaml")
        assert tree == config.dump()
        assert make_config(tree) == config

    def test_partition_keys_are_its_own(self) -> None:
        config = make_config({"split": {"partition": "dirichlet", "alpha": 0.1, "variant": "client", "clients": 7}})
        assert (config.split.partition.alpha, config.split.partition.variant, config.split.clients) == (
            0.1,
            "client",
            7,
        )
        assert config.dump()["split"]["alpha"] == 0.1

    def test_later_trees_come_over_earlier_ones(self) -> None:
        config = make_config({"train": {"lr": 0.1, "batch": 4}}, {"train": {"lr": 0.2}}, {"method": "local"})
        assert (config.train.lr, config.train.batch, config.method.name) == (0.2, 4, "local")

    def test_nothing_in_it_changes(self) -> None:
        config = make_config()
        for target, key in ((config, "seed"), (config.train, "lr"), (config.split, "clients"), (config.model, "width")):
            with pytest.raises(ValueError, match="frozen"):
                setattr(target, key, 3)

    def test_nesterov_with_momentum(self) -> None:
        assert make_config({"train": {"nesterov": True, "momentum": 0.9}}).train.nesterov

    @pytest.mark.parametrize("device", ["auto", "cpu"])
    def test_device(self, device: str) -> None:
        assert make_config({"device": device}).device == device


# ---- the partition that data come with


def test_data_with_users_have_them_as_clients_unless_told_otherwise(tmp_path):
    rows = {"x": np.zeros((6, 2), "float32"), "y": np.arange(6) % 2}
    for name in ("north", "south", "west"):
        (tmp_path / name).mkdir()
        np.savez(tmp_path / name / "samples.npz", **rows)
    folder = {"data": {"name": "folder", "root": str(tmp_path)}}
    split = make_config(folder).split
    assert (split.partition.name, split.clients) == ("users", None)
    assert make_config(folder, {"split": {"partition": "iid"}}).split.partition.name == "iid"
    assert [client.name for client in federation_of(make_config(folder)).clients] == ["north", "south", "west"]
    with pytest.raises(UsageError, match=r"'split.alpha' for partition 'users'; these data have users"):
        make_config(folder, {"split": {"alpha": 0.1}})


def test_arrays_with_users_have_them_as_clients_and_others_are_divided():
    x, y = np.zeros((6, 2), "float32"), np.arange(6) % 2
    assert make_config({"data": Arrays.hold(x, y)}).split.partition.name == "dirichlet"
    assert make_config({"data": Arrays.hold(x, y, users=list("aabbcc"))}).split.partition.name == "users"


def test_there_are_as_many_clients_as_domains_unless_told_otherwise(tmp_path):
    for name in ("photo", "sketch"):
        (tmp_path / name).mkdir()
        np.savez(tmp_path / name / "samples.npz", x=np.zeros((8, 2), "float32"), y=np.arange(8) % 2)
    tree = {"data": {"name": "folder", "root": str(tmp_path)}, "split": {"partition": "domains"}}
    assert len(federation_of(make_config(tree)).clients) == 2
    assert len(federation_of(make_config(tree, {"split": {"clients": 4}})).clients) == 4


def test_who_does_the_work_may_change_between_sittings_but_not_the_threads_that_decide_bits():
    one, two = (deciding(make_config({"engine": {"workers": 1, "server_threads": n}}).dump()) for n in (1, 2))
    assert differences(one, two) == ["engine.server_threads (1, now 2)"]
    other = deciding(make_config({"engine": {"workers": 2}, "checkpoint": {"every": 3}}).dump())
    assert differences(one, other) == []


def test_models_of_clients_are_given_by_name_or_section_and_merged_client_by_client(tmp_path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("method: local\nmodel.per_client:\n  0: lenet\n  a.b: {name: cnn, width: 2}\n")
    config = make_config(read_config(file), read_assignments(["model.per_client.site-a=cnn5"]))
    own = config.model.per_client
    assert {who: model.name for who, model in own.items()} == {"0": "lenet", "a.b": "cnn", "site-a": "cnn5"}
    assert own["a.b"].width == 2
    again = make_config(read_yaml(write_yaml(config.dump()), "what was written"))
    assert again == config
    assert "per_client" not in make_config({}).dump()["model"]


def test_a_command_line_gives_clients_models_as_a_mapping_too() -> None:
    words = ["method=local", "model.per_client={0: lenet, site-*: {name: cnn, width: 2}}"]
    assert [one.name for one in make_config(read_assignments(words)).model.architectures] == ["mlp", "lenet", "cnn"]


def test_columns_with_categories_may_have_any_name(tmp_path) -> None:
    declared = {"blood.group": ["A", "B"], "base": ["x", "y"], "colour": ["red"]}
    tree = {"data": {"name": "manifest", "file": "a.csv", "categories": declared}, "split.partition": "users"}
    file = tmp_path / "own.yaml"
    file.write_text(write_yaml(tree))
    words = read_assignments(["data.categories.colour=[red, blue]"])
    config = make_config(read_config(file), words)
    expected = {"blood.group": ("A", "B"), "base": ("x", "y"), "colour": ("red", "blue")}
    assert config.data.categories == expected
    assert list(config.data.categories) == list(declared), "the order is that of the model's columns"
    again = make_config(read_yaml(write_yaml(config.dump()), "what was written"))
    assert again == config
    assert list(again.data.categories) == list(declared)
