"""Named, typed things: how they are found, built from sections, and what a mistake in one says."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
from pydantic import Field

from polyfed.errors import UsageError, did_you_mean
from polyfed.registry import Registry, Spec, contradiction, param, registries


class Fruit(Spec):
    """What grows."""

    kind: ClassVar[str] = "fruit"


@pytest.fixture
def fruits() -> Any:
    """A registry with two fruits, one of which can sit on another."""
    registry = Registry("fruit", __name__, Fruit)
    enter: Callable[..., Any] = registry.register

    @enter("apple", paper="Newton 1687")
    class Apple(Fruit):
        weight: float = param(0.2, "kilograms", gt=0)
        colour: Literal["red", "green"] = param("red", "of the skin")
        worms: int | None = param(None, "how many", ge=0)

    @enter("tart")
    class Tart(Fruit):
        filling: Fruit = param(Apple(), "what is inside")
        sugar: int | Literal["none"] = param("none", "spoons")
        pair: tuple[float, int] = param((1.0, 2), "two numbers")

    yield registry
    registries.pop("fruit")


class TestBuild:
    def test_from_name_mapping_and_spec(self, fruits: Registry) -> None:
        assert fruits.build("apple", "fruit").weight == 0.2
        apple = fruits.build({"name": "apple", "weight": 1}, "fruit")
        assert (apple.weight, type(apple.weight)) == (1.0, float)
        assert fruits.build(apple, "fruit") is apple

    def test_nested(self, fruits: Registry) -> None:
        tart = fruits.build({"name": "tart", "filling": {"name": "apple", "weight": 3}}, "fruit")
        assert tart.filling.weight == 3
        assert fruits.build({"name": "tart", "filling": "apple"}, "fruit").filling.weight == 0.2

    def test_unnamed_nested_section_means_the_default_one(self, fruits: Registry) -> None:
        assert fruits.build({"name": "tart", "filling": {"weight": 4}}, "fruit").filling.weight == 4

    def test_dump_builds_the_same_again(self, fruits: Registry) -> None:
        tart = fruits.build({"name": "tart", "filling": {"colour": "green"}, "sugar": 3, "pair": [2, 3]}, "fruit")
        plain = tart.dump()
        assert plain["filling"] == {"name": "apple", "weight": 0.2, "colour": "green", "worms": None}
        assert plain["pair"] == [2.0, 3]
        assert fruits.build(plain, "fruit") == tart

    def test_what_is_built_does_not_change(self, fruits: Registry) -> None:
        with pytest.raises(ValueError, match="frozen"):
            fruits.build("apple", "fruit").weight = 5

    WRONG = [
        ({"name": "aple"}, "unknown fruit 'aple'; did you mean 'apple'?"),
        ({"name": 5}, "a fruit is chosen by its name, not by 5"),
        (5, "'my.fruit' must be a name or a mapping, not 5"),
        ({"name": "apple", "wieght": 1}, "unknown key 'my.fruit.wieght' for fruit 'apple'; did you mean 'weight'?"),
        ({"name": "apple", 5: 1}, "'my.fruit' has the key 5, which is not a word"),
        ({"name": "apple", "weight": 0}, "'my.fruit.weight': input should be greater than 0 (got 0)"),
        ({"name": "apple", "weight": float("inf")}, "'my.fruit.weight': input should be a finite number (got inf)"),
        ({"name": "apple", "weight": True}, "'my.fruit.weight': input should be a number (got True)"),
        ({"name": "apple", "worms": False}, "'my.fruit.worms': input should be a number (got False)"),
        ({"name": "apple", "colour": "blue"}, "'my.fruit.colour': input should be 'red' or 'green' (got 'blue')"),
        ({"name": "tart", "filling": "appel"}, "unknown fruit 'appel'; did you mean 'apple'?"),
        (
            {"name": "tart", "filling": {"wieght": 1}},
            "unknown key 'my.fruit.filling.wieght' for fruit 'apple'; did you",
        ),
        (
            {"name": "tart", "sugar": "much"},
            "'my.fruit.sugar': input should be a valid integer, unable to parse string",
        ),
        ({"name": "tart", "pair": [1, "x"]}, "'my.fruit.pair': input should be a valid integer"),
    ]

    @pytest.mark.parametrize(("section", "sentence"), WRONG, ids=[s for _, s in WRONG])
    def test_wrong(self, section: Any, sentence: str, fruits: Registry) -> None:
        with pytest.raises(UsageError) as caught:
            fruits.build(section, "my.fruit")
        assert str(caught.value).startswith(sentence)

    def test_several_kinds_of_values_are_all_named(self, fruits: Registry) -> None:
        with pytest.raises(UsageError, match=r"'fruit\.sugar': .*valid integer.*, or 'none' \(got 2\.5\)"):
            fruits.build({"name": "tart", "sugar": 2.5}, "fruit")

    def test_what_must_be_given(self, fruits: Registry) -> None:
        @fruits.register("pear")
        class Pear(Fruit):
            ripe: bool = param(..., "whether")

        with pytest.raises(UsageError, match=r"'fruit\.ripe' must be given for fruit 'pear'"):
            fruits.build("pear", "fruit")
        assert fruits.build({"name": "pear", "ripe": True}, "fruit").ripe is True

    def test_contradiction_speaks_for_itself(self, fruits: Registry) -> None:
        from pydantic import model_validator

        @fruits.register("plum")
        class Plum(Fruit):
            stone: Annotated[int, Field(ge=0)] = 1

            @model_validator(mode="after")
            def _stony(self) -> "Plum":
                if self.stone == 0:
                    raise contradiction("a plum has {a} stone")
                return self

        with pytest.raises(UsageError) as caught:
            fruits.build({"name": "plum", "stone": 0}, "fruit")
        assert str(caught.value) == "a plum has {a} stone"


class TestFind:
    def test_names_are_sorted(self, fruits: Registry) -> None:
        assert fruits.names() == ["apple", "tart"]
        assert [spec.name for spec in fruits] == ["apple", "tart"]
        assert fruits.get("apple").paper == "Newton 1687"

    def test_by_file(self, fruits: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "garden.py").write_text(f"from {__name__} import Fruit\nclass Fig(Fruit):\n    size: int = 3\n")
        found = fruits.get(f"{tmp_path / 'garden.py'}:Fig")
        assert found.name == f"{tmp_path / 'garden.py'}:Fig"
        assert fruits.get(found.name) is found
        assert fruits.build({"name": found.name, "size": 4}, "fruit").dump() == {"name": found.name, "size": 4}
        monkeypatch.chdir(tmp_path)
        assert fruits.get("garden.py:Fig").model_fields.keys() == {"size"}

    def test_two_files_of_one_name(self, fruits: Registry, tmp_path: Path) -> None:
        for folder, size in (("a", 1), ("b", 2)):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / "twin.py").write_text(
                f"from {__name__} import Fruit\nclass T(Fruit):\n    size: int = {size}\n"
            )
        assert [fruits.build(f"{tmp_path / f / 'twin.py'}:T", "fruit").size for f in "ab"] == [1, 2]

    def test_file_that_fails_leaves_nothing_behind(self, fruits: Registry, tmp_path: Path) -> None:
        (tmp_path / "rotten.py").write_text("raise RuntimeError('rotten')\n")
        for _ in range(2):
            with pytest.raises(UsageError, match="RuntimeError: rotten"):
                fruits.get(f"{tmp_path / 'rotten.py'}:Any")
        assert not [name for name in sys.modules if "rotten" in name]

    def test_by_module(self, fruits: Registry) -> None:
        with pytest.raises(UsageError, match="'collections:OrderedDict' is not a subclass of Fruit"):
            fruits.get("collections:OrderedDict")
        with pytest.raises(UsageError, match="cannot import fruit 'nosuch:Thing': ModuleNotFoundError"):
            fruits.get("nosuch:Thing")

    def test_class_given_from_python(self, fruits: Registry) -> None:
        apple = fruits.get("apple")
        assert fruits.hold(apple).name == "apple"

        class Better(apple):  # type: ignore[misc, valid-type]
            """Inherits everything, the name too."""

        held = fruits.hold(Better)
        assert held.name.endswith("Better")
        assert fruits.get(held.name) is Better
        assert fruits.get("apple") is apple
        assert fruits.build({"name": held.name, "weight": 2}, "fruit").dump()["name"] == held.name


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("aple", "did you mean 'apple'?"),
        ("xyz", "valid: apple, tart"),
        ("tarts", "did you mean 'tart'?"),
    ],
)
def test_did_you_mean(word: str, hint: str) -> None:
    assert did_you_mean(word, ["tart", "apple"]) == hint


def test_did_you_mean_where_there_is_nothing() -> None:
    assert did_you_mean("word", []) == "there is none here"
