"""Grids: which lists are axes, which cells come of them, what they are called, and what is refused in one sentence."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyfed.comparison.grid import make_grid, read_grid
from polyfed.comparison.values import plain
from polyfed.config import read_config, unflatten, write_yaml
from polyfed.errors import UsageError
from polyfed.methods.fedprox import FedProx


def grid(**keys: Any) -> Any:
    """The grid of flat keys; dots are written as two underscores."""
    return make_grid(unflatten({key.replace("__", "."): value for key, value in keys.items()}))


def names(**keys: Any) -> list[str]:
    return [cell.name for cell in grid(**keys).cells]


class TestCells:
    def test_methods_and_seeds(self) -> None:
        """Seeds outermost: the first results compare all methods."""
        assert names(methods=["fedavg", "fedper"], seeds=2) == ["fedavg-s0", "fedper-s0", "fedavg-s1", "fedper-s1"]
        assert names(methods="fedavg", seeds=[7, 5]) == ["fedavg-s7", "fedavg-s5"]
        assert len(names(methods=["fedavg"])) == 3

    def test_settings(self) -> None:
        cells = grid(methods=["fedavg"], seeds=1, split__alpha=[0.1, 0.5], rounds=[2, 3]).cells
        assert [cell.name for cell in cells] == [
            "fedavg-split.alpha=0.1-rounds=2-s0",
            "fedavg-split.alpha=0.1-rounds=3-s0",
            "fedavg-split.alpha=0.5-rounds=2-s0",
            "fedavg-split.alpha=0.5-rounds=3-s0",
        ]
        assert [(c.config.split.partition.alpha, c.config.rounds) for c in cells] == [
            (0.1, 2),
            (0.1, 3),
            (0.5, 2),
            (0.5, 3),
        ]
        assert cells[1].setting == {"split.alpha": 0.1, "rounds": 3}

    def test_things_chosen_by_name(self) -> None:
        """What else is said of the section holds for all that are named."""
        cells = grid(methods=["fedavg"], seeds=1, model=["mlp", "lenet"], model__width=0.5).cells
        assert [cell.name for cell in cells] == ["fedavg-model=mlp-s0", "fedavg-model=lenet-s0"]
        assert [(c.config.model.name, c.config.model.width) for c in cells] == [("mlp", 0.5), ("lenet", 0.5)]

    def test_things_chosen_with_parameters(self) -> None:
        model = ["mlp", {"name": "lenet", "width": 2}]
        cells = grid(methods=["fedavg"], seeds=1, model=model).cells
        assert [cell.name for cell in cells] == ["fedavg-model=mlp-s0", "fedavg-model=lenet-width=2-s0"]
        assert cells[1].config.model.width == 2

    def test_categories_of_a_table_are_no_axes(self, tmp_path: Path) -> None:
        """FedPer, Ditto, MAP and ECL on one table, and not on as many tables as it has colours."""
        declared = {"colour": ["red", "blue"], "blood.group": ["A", "B", "AB"]}
        data = {"name": "manifest", "file": str(tmp_path / "visits.csv"), "categories": declared}
        keys: dict[str, Any] = {"methods": ["fedper", "ditto", "map", "ecl"], "seeds": 1, "model": "table-mlp"}
        cells = grid(data=data, split__partition="users", **keys).cells
        assert [cell.name for cell in cells] == ["fedper-s0", "ditto-s0", "map-s0", "ecl-s0"]
        assert all(cell.config.data.sizes == cell.config.model.categories == (2, 3) for cell in cells)

    def test_partitions(self) -> None:
        cells = grid(methods=["fedavg"], seeds=1, split__partition=["iid", "shards"]).cells
        assert [cell.config.split.partition.name for cell in cells] == ["iid", "shards"]

    def test_a_methods_own_parameter_makes_rows(self) -> None:
        made = grid(methods=["fedavg", "fedprox"], seeds=1, fedprox__mu=[0.1, 1], split__alpha=[0.3])
        assert made.rows == ["fedavg", "fedprox, mu=0.1", "fedprox, mu=1"]
        assert [cell.name for cell in made.cells] == [
            "fedavg-split.alpha=0.3-s0",
            "fedprox-mu=0.1-split.alpha=0.3-s0",
            "fedprox-mu=1-split.alpha=0.3-s0",
        ]
        assert [c.config.method.mu for c in made.cells[1:]] == [0.1, 1]

    def test_a_base_is_chosen_by_name_too(self) -> None:
        made = grid(methods=["fedavg-ft"], seeds=1, **{"fedavg-ft": {"base": ["fedavg", "fedprox"]}})
        assert made.rows == ["fedavg-ft, base=fedavg", "fedavg-ft, base=fedprox"]
        assert made.cells[1].config.method.base.name == "fedprox"

    def test_rows(self) -> None:
        rows = [{"name": "K, k=2.5 (w/o)", "method": {"name": "fedprox", "mu": 1}}, {"name": "wide", "model.width": 2}]
        made = grid(rows=rows, seeds=1, split__alpha=[0.1], method="fedavg")
        assert [cell.name for cell in made.cells] == ["K-k=2.5-w-o-split.alpha=0.1-s0", "wide-split.alpha=0.1-s0"]
        assert [(c.config.method.name, c.config.model.width) for c in made.cells] == [("fedprox", 1), ("fedavg", 2)]

    def test_any_key_can_be_a_rows_own(self) -> None:
        made = grid(
            methods=["fedavg", "ditto"], seeds=1, rounds=5, ditto={"train.lr": 0.03, "model": "lenet", "lam": 2}
        )
        plain, ditto = (cell.config for cell in made.cells)
        assert (plain.train.lr, plain.model.name, plain.rounds) == (0.05, "mlp", 5)
        assert (ditto.train.lr, ditto.model.name, ditto.rounds, ditto.method.lam) == (0.03, "lenet", 5, 2)
        assert made.rows == ["fedavg", "ditto"]
        assert made.own == ("train.lr", "model")

    def test_a_list_for_a_rows_own_key_makes_rows(self) -> None:
        made = grid(methods=["fedavg", "fedprox"], seeds=1, fedprox={"mu": [0.1, 1], "train": {"lr": [0.1, 0.2]}})
        labels = ["mu=0.1, train.lr=0.1", "mu=0.1, train.lr=0.2", "mu=1, train.lr=0.1", "mu=1, train.lr=0.2"]
        assert made.rows == ["fedavg", *(f"fedprox, {label}" for label in labels)]
        assert [(c.config.method.mu, c.config.train.lr) for c in made.cells[1:]] == [
            (0.1, 0.1),
            (0.1, 0.2),
            (1, 0.1),
            (1, 0.2),
        ]

    def test_a_methods_parameter_comes_before_a_key_of_the_same_name(self) -> None:
        """MAP's parameter `split` is a number, an experiment's `split` holds keys."""
        made = grid(methods=["map", "distfl"], seeds=1, map={"split": 0.25, "eval.every": 2}, distfl__lr=0.5)
        assert made.cells[0].config.method.split == 0.25
        assert made.cells[1].config.method.lr == 0.5
        assert made.own == ("eval.every",)
        (cell,) = grid(methods=["map"], seeds=1, map__split__clients=7).cells
        assert (cell.config.split.clients, cell.config.method.split) == (7, 0.5)

    def test_a_base_is_a_parameter(self) -> None:
        (cell,) = grid(methods=["ecl"], seeds=1, ecl={"base": {"name": "fedprox", "mu": 0.5}, "rounds": 4}).cells
        assert (cell.config.method.base.mu, cell.config.rounds) == (0.5, 4)

    def test_methods_from_files(self, tmp_path: Path) -> None:
        (tmp_path / "mine.py").write_text("from polyfed.methods import Method\nclass Mine(Method):\n    x: int = 1\n")
        made = grid(methods=[f"{tmp_path}/mine.py:Mine"], seeds=1, Mine__x=[1, 2])
        assert [cell.config.method.x for cell in made.cells] == [1, 2]
        assert all(cell.name.endswith(f"mine.py-Mine-x={x}-s0") for x, cell in zip((1, 2), made.cells, strict=True))
        assert not any("/" in cell.name for cell in made.cells)


LISTS = [
    ("train.schedule", [0.5, 2], {}),
    ("fedcrc.epochs", [1.0, 2.0, 1.0], {"methods": ["fedcrc"]}),
    ("data.subjects", [1, 3], {"data": "uci-har"}),
    ("data.classes", ["cat", "dog"], {"data": "folder", "data.root": "."}),
]


@pytest.mark.parametrize(("key", "value", "more"), LISTS, ids=[key for key, _, _ in LISTS])
def test_keys_whose_type_is_a_list_keep_their_meaning(key: str, value: Any, more: dict[str, Any]) -> None:
    (cell,) = make_grid(unflatten({"methods": ["fedavg"], "seeds": 1, key: value, **more})).cells
    assert cell.setting == {}
    section, word = key.split(".")
    held = getattr(getattr(cell.config, "method" if section == "fedcrc" else section), word)
    assert list(held) == value


class TestFile:
    def test_reads_back_as_the_same_grid(self, tmp_path: Path) -> None:
        rows = [{"name": "a 0.5", "method": "fedavg"}, {"name": "b", "method": {"name": "fedprox", "mu": 0.5}}]
        for made in (
            grid(rows=rows, seeds=2, split__alpha=[0.1, 1e-5], baseline="a 0.5"),
            grid(methods=["fedavg", FedProx], seeds=(1, 2), fedprox__mu=np.float32(0.5), rounds=[np.int64(3)]),
            grid(methods=["fedavg", "map"], seeds=1, map={"split": 0.25, "train.lr": [0.1, 0.2], "model": "lenet"}),
        ):
            (tmp_path / "grid.yaml").write_text(write_yaml(made.tree))
            again = make_grid(read_config(tmp_path / "grid.yaml"))
            assert again.same_as(made)
            assert (again.tree, again.baseline) == (made.tree, made.baseline)
            untyped = read_grid(read_config(tmp_path / "grid.yaml"))
            assert (untyped.rows, untyped.own) == (made.rows, made.own)
            assert [cell.name for cell in untyped.cells] == [cell.name for cell in made.cells]

    def test_another_engine_is_the_same_comparison(self) -> None:
        assert grid(methods=["fedavg"]).same_as(grid(methods=["fedavg"], engine__workers=3))
        assert not grid(methods=["fedavg"]).same_as(grid(methods=["fedavg"], rounds=3))
        assert not grid(methods=["fedavg"]).same_as(grid(methods=["fedavg"], seeds=4))

    def test_plain(self) -> None:
        assert plain({"a": (np.float64(0.5), Path("x/y"), None, True)}) == {"a": [0.5, "x/y", None, True]}
        assert type(plain(np.float64(0.5))) is float
        with pytest.raises(UsageError, match=r"'a\.b' cannot be part of a comparison: object is no plain value"):
            plain({"a": {"b": object()}})


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"split.alpha": []}, "'split.alpha' is an empty list; give the values to compare"),
    ({"split.alpha": [0.1, 0.1]}, "'split.alpha' has the value 0.1 twice"),
    (
        {"split.alpha": [0.1, "x"]},
        "'split.alpha': input should be a valid number, unable to parse string as a number (got 'x'); "
        "'split.alpha' takes one value, so its list is an axis of the comparison",
    ),
    (
        {"train.schedule": ["constant", "cosine"]},
        "'train.schedule' takes a list itself, so this list is one value and no axis: vary it in rows",
    ),
    (
        {"methods": ["fedprox"], "fedprox.mu": [0.1, -1]},
        "(got -1); 'fedprox.mu' takes one value, so its list is an axis of the comparison",
    ),
    (
        {"methods": ["fedcrc"], "fedcrc.epochs": [1, 2]},
        "'fedcrc.epochs' takes a list itself, so this list is one value and no axis: vary it in rows",
    ),
    (
        {"methods": ["ditto"], "ditto.trian.lr": 1},
        "unknown key 'ditto.trian' for method 'ditto' and for an experiment; did you mean 'train'?",
    ),
    ({"methods": ["ditto"], "ditto.train.lrr": 1}, "unknown key 'train.lrr' for 'train'; did you mean 'lr'?"),
    ({"methods": ["ditto"], "ditto.seed": 1}, "'ditto.seed' has no place in a comparison; give seeds=..."),
    (
        {"methods": ["ditto"], "ditto.train.lr": [1, -1]},
        "(got -1); 'ditto.train.lr' takes one value, so its list is an axis of the comparison",
    ),
    (
        {"methods": ["ditto"], "ditto.train.lr": 1, "train.lr": [1, 2]},
        "row 'ditto' sets 'train.lr', which is an axis of the comparison",
    ),
    ({"split.aplha": [0.1, 0.2]}, "unknown key 'split.aplha' for partition 'dirichlet'; did you mean 'alpha'?"),
    ({"rouns": [1, 2]}, "unknown key 'rouns' for an experiment; did you mean 'rounds'?"),
    ({"model": ["mlp", "lnet"]}, "unknown model 'lnet'; did you mean 'lenet'?"),
    ({"baseline": "fedprox"}, "the baseline 'fedprox' is not in the comparison; valid: fedavg"),
    ({"rows": [{"name": "a"}]}, "a comparison has methods or rows, not both"),
    ({"methods": None, "rows": []}, "rows must be a list of mappings with a name each"),
    ({"methods": None, "rows": [{"method": "fedavg"}]}, "rows must be a list of mappings with a name each"),
    ({"methods": None, "rows": [{"name": "a", "seed": 3}]}, "'seed' has no place in row 'a'; give seeds=..."),
    (
        {"methods": None, "rows": [{"name": "a", "split.alpha": 1}], "split.alpha": [1, 2]},
        "row 'a' sets 'split.alpha', which is an axis of the comparison",
    ),
    (
        {"methods": None, "rows": [{"name": "a b"}, {"name": "A/b"}]},
        "'a b' and 'A/b' would share the directory 'A-b-s0'; name them apart",
    ),
    ({"methods": None, "rows": [{"name": "a", "rouns": 3}]}, "did you mean 'rounds'?"),
]


@pytest.mark.parametrize(("wrong", "sentence"), WRONG, ids=[str(wrong) for wrong, _ in WRONG])
def test_wrong(wrong: dict[str, Any], sentence: str) -> None:
    tree = {key: value for key, value in {"methods": ["fedavg"], **wrong}.items() if value is not None}
    with pytest.raises(UsageError) as raised:
        make_grid(unflatten(tree))
    assert sentence in str(raised.value)
