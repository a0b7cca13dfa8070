"""What there is to choose from: parameters as they are declared, in words and as plain data."""

import json
from pathlib import Path
from typing import Literal

import pytest

from polyfed.data.sources.base import sources
from polyfed.errors import UsageError
from polyfed.methods.base import Method, OnTop, methods
from polyfed.registry import Spec, param
from polyfed.report.catalogue import data_entries, data_text, method_entries, method_text, methods_text, parameters


class Garden(Spec):
    """Has one of everything."""

    root: Path = param(..., "where it is")
    depth: float = param(0.5, "of the holes", gt=0, le=2)
    tool: Literal["spade", "rake"] = param("rake", "in hand")
    rows: int | None = param(None, "how many", ge=1)
    sizes: tuple[int, ...] = param((1, 2), "of the beds")


def test_parameters() -> None:
    found = {entry["name"]: entry for entry in parameters(Garden)}
    assert list(found) == ["root", "depth", "tool", "rows", "sizes"]
    assert found["depth"] == {
        "name": "depth",
        "type": "float",
        "default": 0.5,
        "required": False,
        "range": {"gt": 0, "le": 2},
        "what": "of the holes",
    }
    assert (found["root"]["required"], found["root"]["default"]) == (True, None)
    assert found["tool"]["type"] == "Literal['spade', 'rake']"
    assert found["rows"]["range"] == {"ge": 1}
    json.dumps(list(found.values()))


@pytest.mark.parametrize("name", methods.names())
def test_every_method_is_described(name: str) -> None:
    (entry,) = method_entries(name)
    text = method_text(entry)
    assert text.startswith(f"{name}: {entry['what']}\npaper: {entry['paper']}\n")
    assert all(f"  method.{p['name']} " in text for p in entry["params"])
    assert all(p["what"] for p in entry["params"]), "a parameter says what it is for"
    assert all(f"  {kept}: {what}\n" in text for kept, what in entry["keeps"].items())
    assert all(f"  {field}: " in text for way in ("down", "up") for field in entry["wire"][way])
    json.dumps(entry)


def test_method_of_nothing() -> None:
    text = method_text(method_entries("local")[0])
    assert "parameters:\n  none" in text
    assert "goes down:\n  nothing" in text
    assert "goes up:\n  nothing" in text


def test_what_stays_at_home_is_said() -> None:
    assert "never sent:\n  personal_model: the client's full personal model v_k\n" in method_text(
        *method_entries("ditto")
    )
    assert "never sent:\n  personal: the slice 'head' of the model\n" in method_text(*method_entries("fedper"))
    assert "never sent:\n  nothing\n" in method_text(*method_entries("fedavg"))


def test_only_named_methods_are_listed() -> None:
    class Hidden(Method):
        """A user's."""

    methods.hold(Hidden)
    assert Hidden.name not in {entry["name"] for entry in method_entries(None)}
    assert len(methods_text(method_entries(None)).splitlines()) == len(method_entries(None))


def test_method_that_must_be_given_something() -> None:
    class Above(OnTop):
        """Needs a base."""

    with pytest.raises(UsageError, match=r"'method\.base' must be given"):
        method_entries(methods.hold(Above).name)


@pytest.mark.parametrize("name", sources.names())
def test_every_source_is_described(name: str) -> None:
    (entry,) = data_entries(name)
    text = data_text([entry])
    assert text.startswith(f"{name}  {entry['what']}")
    assert all(f"  data.{p['name']} " in text for p in entry["params"])
    json.dumps(entry)


def test_each_method_says_what_a_client_that_never_trained_gets() -> None:
    entries = [entry for entry in method_entries(None) if "tests" not in entry["name"]]
    for entry in entries:
        assert f"a client that never trained gets {entry['newcomer']}" in method_text(entry)
        if not entry["global"]:  # there is no global model to get
            assert entry["newcomer"] != Method.newcomer, entry["name"]
